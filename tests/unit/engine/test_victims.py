"""Room is made for whoever is due more than the victim is, never back and forth, and never so that somebody does not come to an end."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.request import WaitingRequest
from server.requests import CLASSES
from tests.unit.engine.house import House, entry


def full(house: House, *crowd: WaitingRequest, n_steps: int = 5) -> House:
    for waiting in crowd:
        house.submit(waiting, 10_000)
    house.step(n_steps)
    assert len(house.running) == house.n_slots
    return house


def test_a_higher_class_takes_the_slot_of_the_lowest_at_once() -> None:
    house = full(House("fair", n_slots=3), entry(0, 10, priority="batch"), entry(1, 10, priority="normal"), entry(2, 20, priority="batch"))
    house.submit(entry(3, 10, priority="interactive"), 5)
    house.submit(entry(4, 10, priority="interactive"), 5)
    house.submit(entry(5, 10, priority="interactive"), 5)
    house.admit()
    assert house.started[-3:] == [3, 4, 5]
    assert house.put_aside == [0, 2, 1], "least computed first, the higher class last"
    house.submit(entry(6, 10, priority="interactive"), 5)
    house.admit()
    assert len(house.put_aside) == 3, "its own class makes no room within one flow"


def test_the_most_served_key_makes_room_first() -> None:
    house = House("fair", n_slots=3, budget=200)
    full(
        house,
        entry(0, 10, priority="batch", key="little"),
        entry(1, 90, priority="batch", key="much"),
        entry(2, 20, priority="batch", key="much"),
    )
    house.submit(entry(3, 10, priority="normal"), 5)
    house.admit()
    assert house.put_aside == [2], "of the key that was served most the one that has less to save"
    assert house.policy.yields(house.running.values()).id == 1


def test_a_flow_that_runs_its_share_makes_no_room_however_much_it_was_served() -> None:
    crowd = [entry(order, 200 if order < 2 else 10, key="served" if order < 2 else "many") for order in range(6)]
    house = full(House("fair", n_slots=6, budget=1000), *crowd)
    house.submit(entry(6, 10, key="new"), 10_000)
    house.admit()
    assert house.put_aside == [2]


@pytest.mark.parametrize(("level", "crowd"), [("key", 4), ("address", 4), ("session", 4)])
def test_a_flow_with_less_than_its_share_takes_a_slot_of_one_with_more(level: str, crowd: int) -> None:
    house = full(House("fair", n_slots=crowd), *[entry(order, 10, **{level: "heavy"}) for order in range(crowd)])  # type: ignore[arg-type]
    for order in range(10, 14):
        house.submit(entry(order, 10, **{level: "light"}), 10_000)  # type: ignore[arg-type]
    house.step(50)
    assert house.put_aside == [0, 1], "until both run two; of equals the first"
    assert Counter(sequence.request.flow for sequence in house.running.values()).most_common(1)[0][1] == 2


def test_nobody_is_put_aside_to_turn_the_tables() -> None:
    """One slot, or one more than the other: changing places would only change who complains."""
    house = full(House("fair", n_slots=1), entry(0, 10, key="a"))
    house.submit(entry(1, 10, key="b"), 5)
    house.step(500)
    assert not house.put_aside and house.started == [0]
    house = full(House("fair", n_slots=3), *[entry(order, 10, key="aab"[order]) for order in range(3)])
    house.submit(entry(3, 10, key="b"), 5)
    house.step(500)
    assert not house.put_aside


def test_weights_are_shares_of_the_slots() -> None:
    house = full(House("fair", n_slots=6), *[entry(order, 10, key="a") for order in range(6)])
    for order in range(10, 20):
        house.submit(entry(order, 10, key="b", weight=2.0), 10_000)
    house.step(20)
    assert Counter(sequence.request.flow.key for sequence in house.running.values()) == {"a": 2, "b": 4}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), n_slots=st.integers(1, 8))
def test_changing_places_comes_to_an_end(seed: int, n_slots: int) -> None:
    """Nobody comes, nobody ends, everybody may be put aside any number of times: after a while nobody is any more."""
    rng = random.Random(seed)
    house = House("fair", n_slots=n_slots, max_preemptions=10**9)
    weights = {"a": 1.0, "b": rng.choice([0.5, 1.0, 3.0]), "c": 2.0}
    order = 0
    for _ in range(3):
        for _ in range(rng.randint(1, 12)):
            key = rng.choice("abc")
            waiting = entry(
                order,
                rng.randint(1, 30),
                priority=rng.choice(CLASSES),
                key=key,
                weight=weights[key],
                address=rng.choice("xy"),
                session=rng.choice("uv"),
            )
            house.submit(waiting, 10**9)
            order += 1
        house.step(rng.randint(1, 30))
    house.step(1000)
    n_before = len(house.put_aside)
    house.step(400)
    assert len(house.put_aside) == n_before <= 3 * n_slots + order


def test_a_batch_request_comes_to_an_end_under_a_flood_of_higher_ones() -> None:
    house = House("fair", n_slots=2, max_preemptions=2)
    for order in range(4):
        house.submit(entry(order, 20, priority="batch", max_tokens=30), 30)
    house.step(3)
    while not {0, 1, 2, 3} <= set(house.ended):
        while len(house.waiting) < 8:
            house.submit(entry(len(house.requests), 10, priority="interactive", max_tokens=5), 5)
        house.step()
        assert house.n_steps < 20_000
    assert max(Counter(house.put_aside).values()) <= 2


def test_who_runs_on_its_class_s_minimum_share_is_left_alone() -> None:
    """It was let pass since its class was owed so much; put aside it would be owed it again."""
    house = House("fair", n_slots=1)
    house.submit(entry(0, 10, priority="interactive"), 2000)
    house.step()
    house.submit(entry(1, 10, priority="batch", max_tokens=20), 20)
    house.step(2000)
    assert 1 in house.running or 1 in house.ended
    house = House("fair", n_slots=1)
    house.submit(entry(0, 10, priority="interactive"), 1500)
    house.step()
    house.submit(entry(1, 10, priority="batch", max_tokens=20), 20)
    for order in range(2, 12):
        house.submit(entry(order, 10, priority="interactive", max_tokens=20), 20)
    house.drain()
    assert house.started[:3] == [0, 1, 2] and not house.put_aside


def test_a_low_class_s_turn_is_in_nobody_s_way_while_no_slot_is_free() -> None:
    house = full(House("fair", n_slots=4), *[entry(order, 10, priority="interactive", key="heavy") for order in range(4)])
    house.submit(entry(4, 10, priority="batch", max_tokens=10), 10)
    house.step(1000)
    house.submit(entry(5, 10, priority="interactive", key="light"), 1)
    house.step()
    assert house.started == [0, 1, 2, 3, 5] and len(house.put_aside) == 1, "the batch request is due, and nobody makes room for it"
    house.step()
    assert house.started[5] == 4, "the slot that has become free is its own"


def test_a_paused_one_makes_room_in_its_own_class_too_but_not_for_another_paused_one() -> None:
    house = full(House("fair", n_slots=3), *[entry(order, 10 + order, key="a") for order in range(3)])
    house.running[1].paused = True
    house.submit(entry(3, 10, key="a"), 10_000)
    house.admit()
    assert house.put_aside == [1] and 3 in house.running
    house.running[2].paused = True
    house.admit()
    assert house.put_aside == [1], "the next in line is paused itself"
    house.submit(entry(4, 10, key="a", priority="interactive"), 10_000)
    house.admit()
    assert house.put_aside == [1, 2], "a paused one before any other"


def test_whoever_was_put_aside_often_enough_is_left_alone() -> None:
    house = full(House("fair", n_slots=1, max_preemptions=1), entry(0, 10, priority="batch"))
    house.submit(entry(1, 10, priority="interactive"), 3)
    house.step(30)
    assert house.put_aside == [0] and 1 in house.ended and 0 in house.running
    house.submit(entry(2, 10, priority="interactive"), 3)
    house.running[0].paused = True
    house.step(30)
    assert house.put_aside == [0]


@pytest.mark.parametrize("policy", ["fcfs", "shortest-prompt"])
def test_orders_put_nobody_aside_for_a_slot(policy: str) -> None:
    house = full(House(policy, n_slots=2), entry(0, 10, priority="batch", key="a"), entry(1, 10, priority="batch", key="a"))
    house.submit(entry(2, 1, priority="interactive", key="b"), 1)
    house.step(50)
    assert not house.put_aside
