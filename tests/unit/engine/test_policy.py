"""Under every policy each request is in one place, goes in the order that was told, and no key runs more than it may."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.policy import POLICIES, policy_named
from server.engine.request import WaitingRequest, start
from server.errors import OperatorError
from server.protocol import GenerationRequest
from server.requests import CLASSES
from tests.unit.engine.house import House, entry, nothing

LIMITS = {"free": 0, "one": 1, "two": 2}
policies = pytest.mark.parametrize("policy", sorted(POLICIES))


def any_entry(rng: random.Random, order: int) -> WaitingRequest:
    key = rng.choice(list(LIMITS))
    return entry(
        order,
        rng.randint(1, 60),
        max_tokens=rng.choice([-1, 0, 5, 40]),
        priority=rng.choice(CLASSES),
        key=key,
        weight=rng.choice([0.5, 1.0, 2.0]),
        max_running=LIMITS[key],
        address=rng.choice("xy"),
        session=rng.choice("uv"),
    )


@policies
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), n_slots=st.integers(1, 6), max_preemptions=st.integers(0, 3))
def test_nobody_is_lost_or_doubled(policy: str, seed: int, n_slots: int, max_preemptions: int) -> None:
    """Arrivals, cancels, pauses, reloaded weights, full houses, memory that runs out: what is promised holds at every step."""
    rng = random.Random(seed)
    house = House(policy, n_slots=n_slots, max_preemptions=max_preemptions, cached=lambda e: e.id * 7 % min(5, len(e.tokens)))
    gone = set()
    for _ in range(60):
        for _ in range(rng.choice([0, 0, 1, 1, 4])):
            house.submit(any_entry(rng, len(house.requests)), rng.randint(1, 12))
        if rng.random() < 0.1 and house.requests:
            request_id = rng.choice(list(house.requests))
            gone.add(request_id)
            house.cancel(request_id)
        if rng.random() < 0.1 and house.running:
            sequence = rng.choice(list(house.running.values()))
            sequence.paused = not sequence.paused
        if rng.random() < 0.05 and len(house.running) > 1:
            house.make_room(house.policy.yields(house.running.values()))
        told = list(house.policy)
        assert sorted(e.id for e in told) == sorted(house.waiting)
        if len(house.running) < n_slots:
            first = house.policy.next(nothing)
            assert first is None or first is told[0]
        house.step()
        running = [sequence.request.flow.key for sequence in house.running.values()]
        assert all(running.count(key) <= limit for key, limit in LIMITS.items() if limit)
        shares = {share.key: (share.n_running, share.n_waiting) for share in house.policy.shares()}
        waiting = [e.request.flow.key for e in house.waiting.values()]
        assert all((running.count(key), waiting.count(key)) == shares.get(key, (0, 0)) for key in LIMITS)
    for sequence in [*house.running.values(), *(e.sequence for e in house.waiting.values() if not isinstance(e, WaitingRequest))]:
        sequence.paused = False
    house.drain()
    assert len(house.ended) == len(set(house.ended)) and set(house.ended) | gone == set(house.requests)
    assert not list(house.policy) and house.policy.next(nothing) is None


@policies
def test_a_key_at_its_limit_is_passed_by_and_goes_on_afterwards(policy: str) -> None:
    house = House(policy, n_slots=4)
    for order in range(3):
        house.submit(entry(order, max_tokens=5, key="limited", max_running=1), 5)
    house.submit(entry(3, max_tokens=5, key="free"), 5)
    house.admit()
    assert house.started == [0, 3] and house.waiting[1].n_passed == house.waiting[2].n_passed == 0
    assert house.policy.next(nothing) is None
    house.submit(entry(4, max_tokens=5, key="limited", max_running=2), 5)  # the key file has been read again
    house.admit()
    assert house.started == [0, 3, 1]
    house.drain()
    assert sorted(house.ended) == [0, 1, 2, 3, 4]


@policies
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_order_that_is_told_is_the_order_they_go_in(policy: str, seed: int) -> None:
    """With one slot, nobody else coming, nothing cached and answers of the expected length, which nobody ends early."""
    rng = random.Random(seed)
    house = House(policy, n_slots=1, budget=1000, max_preemptions=0)
    for order in range(40):
        length = rng.choice([1, 4, 16])
        waiting = entry(
            order, rng.randint(1, 30), max_tokens=length, priority=rng.choice(CLASSES), key=rng.choice("abc"), address=rng.choice("xy")
        )
        house.submit(waiting, length)
    told = [e.id for e in house.policy]
    house.drain()
    assert house.started == told


@policies
def test_the_place_that_is_told_at_the_door_is_about_right(policy: str) -> None:
    rng = random.Random(5)
    house = House(policy)
    off = []
    for order in range(400):
        waiting = entry(order, rng.randint(20, 40), max_tokens=20, key=rng.choice("aaaabc"), address=rng.choice("wxyz"))
        ahead = house.submit(waiting)
        off.append(abs(ahead - [e.id for e in house.policy].index(order)))
    assert max(off) <= (25 if policy == "fair" else 50 if policy == "shortest-prompt" else 0)
    assert sum(off) / len(off) <= 8


@policies
def test_a_victim_is_never_asked_for_more_than_it_can_bear(policy: str) -> None:
    """When memory runs out, whoever has been put aside often enough yields only if there is nobody else."""
    house = House(policy, max_preemptions=2)
    for order in range(3):
        house.submit(entry(order, 10, key=str(order)), 10)
    house.admit()
    for sequence in house.running.values():
        sequence.n_preemptions = 2
    house.running[1].n_preemptions = 0
    assert house.policy.yields(house.running.values()).id == 1
    assert house.policy.yields([house.running[0]]).id == 0


def test_fcfs_is_by_order_of_submission() -> None:
    policy = policy_named("fcfs")
    entries = {order: entry(order) for order in (0, 2, 3, 1)}
    assert [policy.add(waiting) for waiting in entries.values()] == [0, 1, 2, 1]
    for order in range(4):
        assert policy.next(nothing) is entries[order]
        policy.start(entries[order])
    assert policy.next(nothing) is None
    assert policy.victim(entry(9, priority="interactive"), [start(entries[1], 0, 0)]) is None


def test_any_can_be_taken_out() -> None:
    policy = policy_named("fcfs")
    requests = [entry(order) for order in range(50)]
    for request in requests:
        policy.add(request)
    gone = random.Random(1).sample(requests, 30)
    for request in gone:
        policy.remove(request)
    assert list(policy) == [request for request in requests if request not in gone] and len(policy) == 20


def test_priority_is_strict_and_takes_slots_from_lower_classes() -> None:
    house = House("priority", n_slots=2)
    for order, priority in enumerate(["batch", "normal", "normal", "interactive", "batch", "interactive"]):
        house.submit(entry(order, 2, priority=priority), 3)  # type: ignore[arg-type]
    assert [e.id for e in house.policy] == [3, 5, 1, 2, 0, 4]
    house.drain()
    assert house.started == [3, 5, 1, 2, 0, 4] and not house.put_aside
    for order, priority in ((10, "batch"), (11, "batch")):
        house.submit(entry(order, 2 + order % 2, priority=priority), 50)  # type: ignore[arg-type]
    house.step(5)
    house.submit(entry(12, 2, priority="normal"), 50)
    house.admit()
    assert house.put_aside == [10], "the one with least computed"
    house.submit(entry(13, 2, priority="interactive"), 1)
    house.step()
    assert house.put_aside == [10, 11] and house.policy.yields(house.running.values()).id == 12
    house.drain()
    assert house.started[-5:] == [12, 13, 10, 11, 11] or sorted(house.ended[-4:]) == [10, 11, 12, 13]


def test_the_shortest_prompt_goes_first_and_what_is_cached_does_not_count() -> None:
    house = House("shortest-prompt", n_slots=1, cached=lambda e: 90 if e.id == 2 else 0)
    for order, n_prompt in enumerate([50, 20, 100, 30]):
        house.submit(entry(order, n_prompt))
    assert [e.id for e in house.policy] == [1, 3, 0, 2]
    house.drain()
    assert house.started == [2, 1, 3, 0]


@settings(max_examples=20, deadline=None)
@given(n_older=st.integers(0, 4), n_slots=st.integers(1, 4), seed=st.integers(0, 10**6))
def test_a_long_prompt_is_passed_a_bounded_number_of_times(n_older: int, n_slots: int, seed: int) -> None:
    rng = random.Random(seed)
    house = House("shortest-prompt", n_slots=n_slots)
    for order in range(n_older + 1):
        house.submit(entry(order, 200))
    while n_older not in house.started:
        while len(house.waiting) < 20:
            house.submit(entry(len(house.requests), rng.randint(1, 9)))
        house.step()
    assert house.started.index(n_older) < (n_older + 1) * 9


def test_an_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(OperatorError) as caught:
        policy_named("lottery")
    assert "lottery" in caught.value.message and "fcfs" in caught.value.hint and "fair" in caught.value.hint


def test_a_waiting_request_keeps_no_text() -> None:
    assert WaitingRequest(1, GenerationRequest(prompt="secret"), [1], 0.0, 1).request.prompt == ""
