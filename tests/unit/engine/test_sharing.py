"""Requests with a common beginning compute it once, also when they run at the same time, and never across namespaces."""

from __future__ import annotations

from typing import Any

import pytest

from server.protocol import Finished, Started
from tests.unit.engine.fakes import POISON, FakeDecoder, poisoned_by
from tests.unit.engine.harness import World

SYSTEM = "you are a helpful assistant that answers in one short sentence. " * 3


def decoders() -> list[FakeDecoder]:
    return [
        FakeDecoder(n_slots=6, n_ctx_slot=400, n_batch=256, n_ubatch=64),
        FakeDecoder(n_slots=12, n_ctx_slot=400, n_batch=256, n_ubatch=64, unified=True, n_cells=1200),
    ]


@pytest.mark.parametrize("decoder", decoders(), ids=["streams", "pool"])
def test_many_at_once_compute_a_common_beginning_once(decoder: FakeDecoder) -> None:
    world = World(decoder, n_running=6)
    requests = [world.submit(f"{SYSTEM}{i} who?", max_tokens=8, seed=i) for i in range(6)]
    world.drain()
    for request in requests:
        world.check_answer(request)
    n_own = len(" who?") + 1
    assert world.finished(requests[0]).n_cached_tokens == 0
    assert [world.finished(request).n_cached_tokens for request in requests[1:]] == [len(SYSTEM)] * 5
    stats = world.steps[-1].stats
    assert stats.n_prompt_tokens == len(SYSTEM) + 6 * n_own
    assert stats.n_shared_tokens == 5 * len(SYSTEM) == stats.n_cached_tokens
    world.check_accounts()


def test_in_the_pool_a_shared_beginning_takes_its_cells_once() -> None:
    world = World(FakeDecoder(n_slots=12, n_ctx_slot=400, n_batch=256, n_ubatch=64, unified=True, n_cells=300), n_running=6, reserve=0.0)
    for i in range(6):
        world.submit(f"{SYSTEM}{i} who?", max_tokens=8, seed=4)
    most = 0
    for _ in range(40):
        world.step()
        running = list(world.scheduler.running.values())
        if sum(sequence.n_computed for sequence in running) > most:
            most, used = sum(sequence.n_computed for sequence in running), world.decoder.n_used
    assert most > 5 * len(SYSTEM) and used < len(SYSTEM) + 6 * 20


def test_a_follower_starts_when_its_leader_has_come_far_enough_and_is_announced_with_the_truth() -> None:
    world = World(FakeDecoder(n_slots=2, n_ctx_slot=400, n_batch=256, n_ubatch=32))
    first = world.submit(SYSTEM + "one?", max_tokens=30, seed=4)
    second = world.submit(SYSTEM + "two?", max_tokens=3)
    world.step(3)
    assert not any(isinstance(event, Started) for event in world.events[second])
    assert {row.slot for batch in world.decoder.batches for row in batch} == {0}
    world.step(6)
    started = next(event for event in world.events[second] if isinstance(event, Started))
    assert started.n_cached_tokens == len(SYSTEM) and world.terminal(first) is None
    world.drain()
    world.check_answer(first)
    world.check_answer(second)


@pytest.mark.parametrize("decoder", decoders(), ids=["streams", "pool"])
@pytest.mark.parametrize("how", ["cancel", "pause", "put aside", "fault", "one token"])
def test_whatever_becomes_of_the_leader_the_followers_go_on(decoder: FakeDecoder, how: str) -> None:
    world = World(decoder, n_running=4)
    poison = [POISON] if how == "fault" else []
    world.decoder.fault = poisoned_by(POISON)
    leader = world.submit([*SYSTEM.encode(), *b"0", *poison], max_tokens=1 if how == "one token" else 9, seed=4)
    followers = [world.submit(f"{SYSTEM}{i}", max_tokens=9, seed=i) for i in (1, 2)]
    world.step(2)
    if how == "cancel":
        world.cancel(leader)
    elif how == "pause":
        world.pause(leader)
    elif how == "put aside":
        world.scheduler.put_aside(world.scheduler.running[leader])
    world.drain()
    for request in followers:
        world.check_answer(request)
    if how in ("cancel", "pause"):
        done = min(world.finished(request).n_cached_tokens for request in followers)
        assert done >= 64, "what the leader had computed is not computed again"
    world.resume(leader)
    world.drain()
    if how not in ("cancel", "fault"):
        world.check_answer(leader)
    world.check_accounts()


def test_nobody_waits_for_a_leader_of_a_lower_class() -> None:
    world = World(FakeDecoder(n_slots=2, n_ctx_slot=400, n_batch=256, n_ubatch=32), policy="fair")
    world.submit(SYSTEM + "slow", priority="batch", max_tokens=2)
    world.step()
    urgent = world.submit(SYSTEM + "fast", priority="interactive", max_tokens=2)
    world.step()
    assert world.scheduler.running[urgent].follows is None
    world.drain()
    world.check_answer(urgent)


@pytest.mark.parametrize("decoder", decoders(), ids=["streams", "pool"])
def test_nothing_is_shared_across_namespaces_or_without_consent(decoder: FakeDecoder) -> None:
    world = World(decoder, n_running=3)
    groups: list[dict[str, Any]] = [{"namespace": "a"}, {"namespace": "b"}, {"cache_prompt": False}]
    together = [world.submit(SYSTEM, max_tokens=3, **group) for group in groups]
    world.drain()
    later = [world.submit(SYSTEM, max_tokens=3, namespace="c"), world.submit(SYSTEM, max_tokens=3, cache_prompt=False)]
    world.drain()
    assert [world.finished(request).n_cached_tokens for request in together + later] == [0] * 5
    again = world.submit(SYSTEM, max_tokens=3, namespace="b")
    world.drain()
    assert world.finished(again).n_cached_tokens == len(SYSTEM) - 1


def test_a_retry_goes_on_where_the_cancelled_prompt_stopped() -> None:
    world = World(FakeDecoder(n_slots=2, n_ctx_slot=400, n_batch=256, n_ubatch=32))
    first = world.submit(SYSTEM, max_tokens=3)
    world.step(3)
    world.cancel(first)
    world.step()
    second = world.submit(SYSTEM, max_tokens=3)
    world.drain()
    assert world.finished(second).n_cached_tokens == 96
    world.check_answer(second)


@pytest.mark.parametrize("can_rewind", [True, False])
def test_turns_of_more_conversations_than_slots_compute_only_what_is_new(can_rewind: bool) -> None:
    world = World(FakeDecoder(n_slots=4, n_ctx_slot=600, n_batch=256, n_ubatch=64, can_rewind=can_rewind))
    chats: list[list[int]] = [[*f"{i}: a long enough beginning of conversation number {i}. ".encode()] for i in range(8)]
    new = sum(map(len, chats))
    for turn in range(5):
        requests = []
        for chat in chats:
            requests.append(world.submit(chat, max_tokens=12, return_tokens=True, seed=turn))
            world.step(2)
        world.drain()
        for chat, request in zip(chats, requests, strict=True):
            world.check_answer(request)
            end = world.finished(request)
            said = [token for event in world.events[request] for token in getattr(event, "tokens", ())]
            assert isinstance(end, Finished)
            chat += [*said, *f" and turn {turn}? ".encode()]
            new += len(said) + len(f" and turn {turn}? ")
    new -= 8 * len(" and turn 4? ") + sum(len(chat) for chat in chats) * 0
    computed = world.steps[-1].stats.n_prompt_tokens
    assert computed <= (1.1 if can_rewind else 1.3) * new
