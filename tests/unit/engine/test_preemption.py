"""Whoever is put aside says what it would have said alone; who is due gets a slot at once; nobody is put aside for ever."""

from __future__ import annotations

import pytest

from server.protocol import Failed, Finished, GenerationRequest, SamplingParams
from tests.unit.engine.fakes import FakeDecoder
from tests.unit.engine.harness import World
from tests.unit.engine.oracle import solo_answer


def big(n_slots: int = 4, **options: int | bool) -> FakeDecoder:
    return FakeDecoder(n_slots=n_slots, n_ctx_slot=300, n_batch=128, n_ubatch=64, max_output_rows=32, **options)  # type: ignore[arg-type]


def lasting(prompt: str, n: int) -> int:
    """A seed with which the answer to `prompt` goes on for `n` tokens at least."""
    requests = ((seed, GenerationRequest(prompt="", sampling=SamplingParams(seed=seed))) for seed in range(10_000))
    return next(seed for seed, request in requests if solo_answer(list(prompt.encode()), request, 300)[2] >= n)


def test_a_higher_class_gets_a_slot_in_a_full_house_at_once() -> None:
    world = World(big(), policy="fair")
    crowd = [world.submit(f"{i} batch work", max_tokens=100, priority="batch", seed=lasting(f"{i} batch work", 60)) for i in range(6)]
    world.step(10)
    urgent = world.submit("now!", max_tokens=3, priority="interactive")
    world.step(2)
    assert world.text(urgent) or world.terminal(urgent), "its first token comes with the next step"
    world.drain()
    for request in [*crowd, urgent]:
        world.check_answer(request)
    assert sum(world.finished(request).timings.n_preemptions for request in crowd) >= 1
    assert world.steps[-1].stats.n_preemptions >= 1 and world.steps[-1].stats.n_recomputed_tokens == 0
    world.check_accounts()


def test_a_light_key_does_not_wait_for_a_heavy_one() -> None:
    world = World(big(), policy="fair")
    for i in range(24):
        world.submit(f"{i} heavy", max_tokens=200, key="heavy", sampling={"seed": 11})
    world.step(30)
    light = world.submit("short", max_tokens=3, key="light")
    steps = 0
    while not world.text(light) and world.terminal(light) is None:
        world.step()
        steps += 1
    assert steps <= 12
    world.drain()
    assert all(isinstance(world.terminal(request), Finished) for request in world.requests)


def test_one_key_alone_is_never_put_aside_for_itself() -> None:
    world = World(big(), policy="fair")
    for i in range(12):
        world.submit(f"{i}", max_tokens=60, key="one", sampling={"seed": 11})
    world.drain()
    assert world.steps[-1].stats.n_preemptions == 0


@pytest.mark.parametrize("policy", ["fair", "fcfs", "priority", "shortest-prompt"])
@pytest.mark.parametrize("reserve", [0.0, 0.3, 1.0])
def test_three_times_more_cells_wanted_than_there_are(policy: str, reserve: float) -> None:
    """Everybody finishes, texts are the solo texts, and the account never exceeds the pool."""
    world = World(big(40, unified=True, n_cells=400), n_running=16, policy=policy, reserve=reserve)
    requests = [world.submit(f"{i:02} " + "x" * (10 + i), max_tokens=200, seed=i, key=f"k{i % 3}") for i in range(24)]
    for _ in range(200):
        world.step()
        world.check_accounts()
    world.drain()
    for request in requests:
        world.check_answer(request)
    preempted = [world.finished(request).timings.n_preemptions for request in requests]
    if reserve == 1.0 and policy in ("fcfs", "shortest-prompt"):
        assert sum(preempted) == 0, "who starts is sure to finish"
    if reserve == 0.0:
        assert 0 < sum(preempted) and max(preempted) <= 3 + 2


def test_a_state_that_cannot_be_saved_is_computed_again() -> None:
    world = World(big(2, can_save=False), policy="fair")
    crowd = [world.submit(f"{i} batch work", max_tokens=40, priority="batch", seed=4) for i in range(2)]
    world.step(10)
    urgent = world.submit("now!", max_tokens=3, priority="interactive")
    world.drain()
    for request in [*crowd, urgent]:
        world.check_answer(request)


def test_cancel_and_deadline_of_one_that_was_put_aside() -> None:
    world = World(big(1), policy="fair")
    first = world.submit("first", max_tokens=200, priority="batch", seed=lasting("first", 150), timeout_s=2.5)
    world.step(5)
    urgent = [world.submit(f"now {i}", max_tokens=150, priority="interactive", seed=lasting(f"now {i}", 150)) for i in range(3)]
    world.step(3)
    assert world.engine.stats.n_swapped == 1
    said = world.text(first)
    world.step(500)
    end = world.finished(first)
    assert (end.reason, end.stop_type) == ("length", "timeout") and end.n_predicted > 0 and world.text(first).startswith(said)
    second = world.submit("second", max_tokens=200, priority="batch", sampling={"seed": 11})
    world.drain()
    for request in urgent:
        world.check_answer(request)
    third = world.submit("third", max_tokens=200, priority="batch", seed=lasting("third", 150))
    world.step(5)
    world.submit("more", max_tokens=50, priority="interactive")
    world.step(2)
    world.cancel(third)
    world.step()
    assert world.finished(third).reason == "cancelled" and world.terminal(second) is not None
    world.drain()
    world.check_accounts()
    assert world.scheduler.kv.figures().ram_bytes <= world.scheduler.kv.figures().ram_limit


def test_deadlines_end_who_runs_with_usage_and_who_waits_with_an_error() -> None:
    world = World(big(1))
    running = world.submit("running", max_tokens=250, timeout_s=0.5, seed=lasting("running", 150))
    waiting = world.submit("waiting", max_tokens=5, timeout_s=0.3)
    patient = world.submit("patient", max_tokens=5, timeout_s=100.0)
    world.step(40)
    end = world.terminal(waiting)
    assert isinstance(end, Failed) and end.kind == "timeout" and "0.3 s" in end.message
    world.drain()
    ended = world.finished(running)
    assert (ended.reason, ended.stop_type) == ("length", "timeout") and 0 < ended.n_predicted < 100
    world.check_answer(patient)
    world.check_accounts()


def test_gaps_between_slots_are_closed() -> None:
    world = World(big(8))
    lengths = [100, 5, 100, 5, 100, 5, 100, 5]
    requests = [world.submit(f"{i} text", max_tokens=n, seed=lasting(f"{i} text", 100)) for i, n in enumerate(lengths)]
    world.step(12)
    slots = sorted(sequence.slot for sequence in world.scheduler.running.values())
    assert len(slots) == 4 and slots[3] - slots[0] == 3
    assert 0 < world.engine.stats.n_moves <= 4
    world.drain()
    for request in requests:
        world.check_answer(request)


@pytest.mark.parametrize("unified", [False, True])
def test_guesses_change_nothing_but_the_number_of_steps(unified: bool) -> None:
    """The fake's text is a hash and cannot be guessed, so the guesser is told the truth now and then."""
    world = World(big(8, unified=unified, n_cells=2000), n_running=4, guesses=6)
    plain = World(big(4))
    prompts = ["abc " * 10, "x", "zé漢 " * 5, "last"]
    for number, prompt in enumerate(prompts):
        world.submit(prompt, max_tokens=80, seed=number, stop=("漢",))
        plain.submit(prompt, max_tokens=80, seed=number, stop=("漢",))
    plain.drain()
    truth = {number: plain.decoder for number in range(4)}
    assert truth
    whole = {number: _tokens(plain, number) for number in range(4)}
    guesser = world.engine._guesser
    assert guesser is not None
    turns = [0]

    def oracle(running: object) -> None:
        turns[0] += 1
        for sequence in world.scheduler.running.values():
            sequence.drafts = []
            if sequence.is_decoding:
                ahead = whole[sequence.id][len(sequence.tokens) :][:6]
                if turns[0] % 3 == 1 and ahead:
                    ahead[-1] = (ahead[-1] + 1) % 256
                sequence.drafts = ahead[: max(0, sequence.n_remain(300) - 1)]

    guesser.guess = oracle  # type: ignore[method-assign]
    world.drain()
    for number in range(4):
        world.check_answer(number)
        assert world.text(number) == plain.text(number)
    assert world.engine.stats.n_draft_accepted > 20
    assert world.engine.stats.n_steps < 0.6 * plain.engine.stats.n_steps
    world.check_accounts()


def _tokens(world: World, request: int) -> list[int]:
    """Prompt and answer as tokens, from the cells that were decoded for it."""
    rows = [row for batch in world.decoder.batches for row in batch if row.slot == world.finished(request).slot]
    return [row.token for row in sorted(rows, key=lambda row: row.pos)]
