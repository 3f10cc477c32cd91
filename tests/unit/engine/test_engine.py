"""One request and a few on the fakes: what is said, in which order, with which numbers, and how each ending looks."""

from __future__ import annotations

import pytest

from server.protocol import Delta, Failed, Finished, GenerationRequest, GetQueue, Prefilled, Queued, SamplingParams, Started
from tests.unit.engine.fakes import FakeDecoder, next_token, state_of
from tests.unit.engine.harness import World
from tests.unit.engine.oracle import solo_answer

LONG = "a prompt of thirty-three letters "


def test_one_request_tells_its_life_in_order() -> None:
    world = World()
    request = world.submit(LONG, max_tokens=5, return_progress=True, seed=3)
    world.drain()
    kinds = [type(event) for event in world.events[request]]
    assert kinds[:2] == [Queued, Started] and kinds[-1] is Finished
    progress = [event for event in world.events[request] if isinstance(event, Prefilled)]
    assert [event.processed for event in progress] == [16, 32, 33] and {event.total for event in progress} == {33}
    world.check_answer(request)
    world.check_accounts()


def test_texts_in_a_crowd_are_the_solo_texts() -> None:
    world = World(FakeDecoder(n_slots=8, n_ctx_slot=128))
    requests = [world.submit(f"{i} " * (i + 1), seed=i, max_tokens=20 + i, stop=("ab", "é")) for i in range(20)]
    world.drain()
    for request in requests:
        world.check_answer(request)
    world.check_accounts()


def test_max_tokens_zero_evaluates_the_prompt_and_asks_for_no_logits() -> None:
    world = World()
    request = world.submit(LONG, max_tokens=0)
    world.drain()
    end = world.finished(request)
    assert (end.reason, end.stop_type, end.n_predicted, end.timings.prompt_n) == ("length", "limit", 0, len(LONG))
    assert not any(row.logits for batch in world.decoder.batches for row in batch)
    assert not any(isinstance(event, Delta) for event in world.events[request])
    world.check_accounts()


def test_generation_fills_the_slot_and_ends_with_length() -> None:
    world = World()
    requests = [(seed, GenerationRequest(prompt="", sampling=SamplingParams(seed=seed))) for seed in range(100)]
    seed = next(seed for seed, request in requests if solo_answer([*b"x"], request, 64)[1] == "limit")
    request = world.submit("x", seed=seed)
    world.drain()
    end = world.finished(request)
    assert (end.reason, end.stop_type) == ("length", "limit")
    assert end.n_prompt_tokens + end.n_predicted == world.decoder.n_ctx_slot


def test_a_prompt_that_leaves_room_for_one_token_gets_one() -> None:
    world = World()
    request = world.submit("y" * 63, seed=5)
    world.drain()
    assert world.finished(request).n_predicted == 1


def test_the_same_prompt_again_computes_its_last_token_only() -> None:
    world = World()
    first = world.submit(LONG, max_tokens=4)
    world.drain()
    second = world.submit(LONG, max_tokens=4)
    world.drain()
    end = world.finished(second)
    assert (end.n_cached_tokens, end.timings.cache_n, end.timings.prompt_n) == (len(LONG) - 1, len(LONG) - 1, 1)
    assert world.finished(first).n_cached_tokens == 0 and end.slot == world.finished(first).slot
    world.check_answer(second)


def test_a_conversation_goes_on_in_its_own_cells() -> None:
    world = World()
    first = world.submit("question", max_tokens=6, return_tokens=True, seed=2)
    world.drain()
    said = [token for event in world.events[first] if isinstance(event, Delta) for token in event.tokens]
    follow_up = world.submit([*b"question", *said, *b" and more"], max_tokens=3)
    world.drain()
    assert world.finished(follow_up).n_cached_tokens == len("question") + len(said) - 1
    world.check_answer(follow_up)


def test_without_cache_prompt_nothing_is_reused_and_nothing_kept() -> None:
    world = World()
    kept = world.submit(LONG, max_tokens=2)
    world.drain()
    private = world.submit(LONG, max_tokens=2, cache_prompt=False)
    world.drain()
    assert world.finished(private).n_cached_tokens == 0
    assert world.decoder.cells[world.finished(private).slot] == []
    assert world.finished(kept).slot != world.finished(private).slot
    world.check_accounts()


def test_a_model_that_cannot_rewind_starts_over() -> None:
    world = World(FakeDecoder(can_rewind=False, n_slots=1))
    for _ in range(2):
        request = world.submit(LONG, max_tokens=3)
        world.drain()
        assert world.finished(request).n_cached_tokens == 0
        world.check_answer(request)


def test_cells_that_are_not_as_expected_are_computed_again() -> None:
    world = World(FakeDecoder(n_slots=1))
    world.submit(LONG, max_tokens=3)
    world.drain()
    world.decoder.truncate(0, 7)
    request = world.submit(LONG, max_tokens=3)
    world.drain()
    assert world.finished(request).n_cached_tokens in (0, 7)
    world.check_answer(request)


def test_cancel_while_waiting_prefilling_decoding_and_paused() -> None:
    world = World(FakeDecoder(n_slots=3, n_ctx_slot=4096), chunk=4)
    decoding, paused = world.submit("d", seed=4), world.submit("p", seed=4)
    world.step(2)
    prefilling = world.submit("q" * 500)
    world.step(2)
    waiting = world.submit("w")
    world.pause(paused)
    world.step()
    assert [slot.state for slot in world.engine.slots] == ["decode", "paused", "prefill"]
    for request in (decoding, paused, prefilling, waiting):
        world.cancel(request)
    world.step()
    assert not world.scheduler.running and world.scheduler.n_waiting == 0
    assert [world.finished(request).reason for request in (decoding, paused, prefilling, waiting)] == ["cancelled"] * 4
    assert 0 < world.decoder.n_tokens(2) < 500, "the computed part of the cancelled prompt stays as a prefix"
    world.check_accounts()
    before = len(world.decoder.batches)
    world.step()
    assert len(world.decoder.batches) == before


def test_cancel_of_what_has_ended_or_never_was_is_ignored() -> None:
    world = World()
    request = world.submit("x", max_tokens=1)
    world.drain()
    world.cancel(request)
    world.cancel(99)
    world.step()
    assert world.finished(request).reason == "length" and not world.events[99]


def test_a_paused_request_stands_still_and_goes_on_where_it_was() -> None:
    world = World()
    request = world.submit("x", max_tokens=12, seed=6)
    world.step(3)
    world.pause(request)
    world.step()
    text = world.text(request)
    world.step(5)
    assert world.text(request) == text and world.engine.slots[0].state == "paused"
    world.resume(request)
    world.drain()
    world.check_answer(request)


def test_a_request_paused_while_it_waits_starts_paused() -> None:
    world = World(FakeDecoder(n_slots=1))
    first, second = world.submit("x", max_tokens=3), world.submit("y", max_tokens=3)
    world.pause(second)
    world.drain()
    assert world.terminal(first) and not world.terminal(second)
    world.resume(second)
    world.drain()
    world.check_answer(second)


def test_over_the_queue_limit_a_request_is_busy_at_once() -> None:
    world = World(FakeDecoder(n_slots=2), max_queue=3)
    requests = [world.submit("x" * 20, max_tokens=2) for _ in range(7)]
    world.step()
    refused = [world.terminal(request) for request in requests[5:]]
    assert all(isinstance(end, Failed) and end.kind == "busy" and "3" in end.message for end in refused)
    world.drain()
    for request in requests[:5]:
        world.check_answer(request)


def test_the_queue_is_told_its_positions_and_when_they_change() -> None:
    world = World(FakeDecoder(n_slots=1, n_ctx_slot=2000), max_queue=10)
    requests = [world.submit(f"{i}", max_tokens=150, sampling={"seed": 11}) for i in range(4)]
    world.step()
    assert [_positions(world, request) for request in requests] == [[0], [1], [2], [3]]
    world.pause(requests[0])
    world.cancel(requests[1])
    world.step(50)
    assert _positions(world, requests[2]) == [2], "not more often than once a second"
    world.step(100)
    assert _positions(world, requests[2]) == [2, 0] and _positions(world, requests[3]) == [3, 1]


def _positions(world: World, request: int) -> list[int]:
    return [event.position for event in world.events[request] if isinstance(event, Queued)]


def test_a_bad_sampler_fails_its_own_request() -> None:
    world = World()
    good, bad = world.submit("x", max_tokens=3), world.submit("y", sampling={"mirostat_tau": -1.0})
    world.drain()
    end = world.terminal(bad)
    assert isinstance(end, Failed) and (end.kind, end.message) == ("invalid", "mirostat_tau must not be negative")
    world.check_answer(good)
    world.check_accounts()


def test_a_sampler_that_breaks_takes_its_own_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    good, bad = world.submit("x", max_tokens=6), world.submit("y", max_tokens=6)
    world.step()
    broken = world.decoder.samplers[1]
    monkeypatch.setattr(broken, "sample", lambda row, n_logprobs: 1 / 0)
    world.drain()
    end = world.terminal(bad)
    assert isinstance(end, Failed) and end.kind == "internal"
    world.check_answer(good)
    world.check_accounts()


def test_penalties_get_the_tail_of_the_prompt_and_only_where_they_are_on() -> None:
    world = World()
    world.submit("abcdef", max_tokens=1, sampling={"repeat_penalty": 1.1, "repeat_last_n": 3})
    world.submit("abcdef", max_tokens=1, sampling={"dry_multiplier": 0.8})
    world.submit("abcdef", max_tokens=1)
    world.drain()
    assert [bytes(sampler.prompt_tail) for sampler in world.decoder.samplers] == [b"def", b"abcdef", b""]


def test_logprobs_and_tokens_are_those_of_the_text() -> None:
    world = World(FakeDecoder(n_ctx_slot=256))
    request = world.submit("x", max_tokens=60, n_logprobs=2, return_tokens=True, seed=8)
    world.drain()
    deltas = [event for event in world.events[request] if isinstance(event, Delta)]
    tokens = [token for delta in deltas for token in delta.tokens]
    assert tokens == [item.token for delta in deltas for item in delta.logprobs]
    state, expected = state_of(b"x"), []
    for _ in tokens:
        expected.append(next_token(state, 8))
        state = state_of([*b"x", *expected])
    assert tokens == expected
    assert world.finished(request).n_predicted - len(tokens) in (0, 1), "at most the end token is not shown"


def test_timings_and_counters_add_up() -> None:
    world = World(FakeDecoder(n_slots=1))
    first = world.submit("x" * 20, max_tokens=4, sampling={"seed": 1})
    second = world.submit("y" * 20, max_tokens=4, sampling={"seed": 1})
    world.drain()
    ends = [world.finished(request) for request in (first, second)]
    assert ends[1].timings.queue_ms > ends[0].timings.queue_ms
    assert [end.timings.predicted_n for end in ends] == [end.n_predicted for end in ends]
    stats = world.steps[-1].stats
    assert stats.n_prompt_tokens == 40 - stats.n_cached_tokens
    assert stats.n_predicted_tokens == sum(end.n_predicted for end in ends)
    assert stats.n_steps == len(world.decoder.batches) and stats.n_running == stats.n_waiting == 0


def test_when_the_loop_breaks_down_everybody_is_told_once() -> None:
    world = World(FakeDecoder(n_slots=2))
    requests = [world.submit("x", max_tokens=30, seed=4) for _ in range(4)]
    world.step(2)
    late = world.submit("z")
    world.engine.fail_all("broken")
    ends = [world.terminal(request) for request in [*requests, late]]
    assert all(isinstance(end, Failed) and end.kind == "internal" for end in ends)


def test_the_queue_is_told_as_it_is_now() -> None:
    world = World(FakeDecoder(n_slots=2))
    requests = [world.submit("a prompt", max_tokens=30, seed=i, key="k") for i in range(5)]
    world.step(2)
    told = world.queue()
    assert (told.id, told.n_running, told.n_waiting, told.n_waiting_tokens) == (7, 2, 3, 24)
    assert [(entry.id, entry.position) for entry in told.waiting] == [(requests[i], i - 2) for i in (2, 3, 4)]
    assert [entry.id for entry in world.queue(most=1).waiting] == [requests[2]]
    world.cancel(requests[0])
    assert [(entry.id, entry.position) for entry in world.queue().waiting] == [(requests[i], i - 2) for i in (2, 3, 4)]
    world.step()
    assert [(entry.id, entry.position) for entry in world.queue().waiting] == [(requests[3], 0), (requests[4], 1)]
    world.drain()
    told = world.queue()
    assert (told.n_running, told.n_waiting, told.n_waiting_tokens, told.waiting) == (0, 0, 0, ())
    assert told.generation_rate > 0
    world.now += 60
    told = world.queue()
    assert (told.prompt_rate, told.generation_rate, told.finish_rate) == (0, 0, 0)
    assert [(share.n_running, share.n_waiting) for share in told.keys] in ([], [(0, 0)])


def test_who_asks_for_the_queue_again_and_again_costs_one_listing() -> None:
    world = World(FakeDecoder(n_slots=1))
    for i in range(3):
        world.submit("a prompt", max_tokens=30, seed=i)
    world.step()
    for number in range(100):
        world.engine.inbox.put(GetQueue(number, 1000))
    world.step()
    assert [told.id for told in world.queues] == [*range(100)]
    assert len({id(told.waiting[0]) for told in world.queues}) == 1


def test_prompt_tokens_that_may_wait_are_those_that_have_to() -> None:
    world = World(FakeDecoder(n_slots=2), max_queue_tokens=20)
    requests = [world.submit("eleven char", max_tokens=4, seed=i) for i in range(4)]
    world.drain()
    assert [isinstance(world.terminal(request), Failed) for request in requests] == [False, False, False, True]
