"""Whatever happens in whatever order: one terminal event each, exact accounts, and texts that do not depend on who else is there."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from server.engine.request import WaitingRequest
from server.protocol import Failed, Finished, GenerationRequest, Queued, Started
from tests.unit.engine.fakes import POISON, FakeDecoder, poisoned_by
from tests.unit.engine.harness import World, scheduler_on

prompts = st.lists(st.sampled_from([*b"ab\n", 257]), min_size=1, max_size=62)
SHARED = [*b"a system prompt of thirty-nine letters. "]


class StreamsMachine(RuleBasedStateMachine):
    """Submits, cancels, pauses, deadlines and faults at any point. Poisoned prompts fail; everybody else must not notice."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.world = self.make_world()
        self.world.decoder.fault = poisoned_by(POISON)
        self.poisoned: set[int] = set()
        self.cancelled: set[int] = set()
        self.timed: set[int] = set()

    def make_world(self) -> World:
        return World(FakeDecoder(n_slots=3, n_batch=12, n_ubatch=8, max_output_rows=2), max_queue=4, chunk=5, policy="fair")

    @rule(
        target=requests,
        prompt=prompts,
        shared=st.booleans(),
        seed=st.integers(0, 5),
        max_tokens=st.integers(-1, 12),
        stop=st.lists(st.sampled_from(["a", "b ", "é", "漢😀"]), max_size=2),
        cache_prompt=st.booleans(),
        key=st.sampled_from("xyz"),
        priority=st.sampled_from(["interactive", "normal", "batch"]),
        namespace=st.sampled_from(["", "other"]),
    )
    def submit(self, prompt: list[int], shared: bool, **options: Any) -> int:
        options["stop"] = tuple(options["stop"])
        return self.world.submit((SHARED + prompt)[:62] if shared else prompt, **options)

    @rule(target=requests, prompt=prompts, seed=st.integers(0, 5), steps=st.integers(0, 30))
    def submit_with_a_deadline(self, prompt: list[int], seed: int, steps: int) -> int:
        request = self.world.submit(prompt, seed=seed, timeout_s=steps * 0.01)
        self.timed.add(request)
        return request

    @rule(target=requests, before=st.integers(0, 20), after=st.integers(0, 20))
    def submit_poison(self, before: int, after: int) -> int:
        request = self.world.submit([*b"a" * before, POISON, *b"b" * after], max_tokens=3)
        self.poisoned.add(request)
        return request

    @rule(request=consumes(requests))
    def cancel(self, request: int) -> None:
        self.cancelled.add(request)
        self.world.cancel(request)

    @rule(request=requests)
    def pause(self, request: int) -> None:
        self.world.pause(request)

    @rule(request=requests)
    def resume(self, request: int) -> None:
        self.world.resume(request)

    @rule(n=st.integers(1, 12))
    def step(self, n: int) -> None:
        self.world.step(n)

    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        """Nobody may notice, whoever is put aside and whenever."""
        running = self.world.scheduler.running
        if running:
            self.world.scheduler.put_aside(running[data.draw(st.sampled_from(sorted(running)))])

    @invariant()
    def accounts_add_up(self) -> None:
        self.world.check_accounts()

    def teardown(self) -> None:
        world = self.world
        for request in world.requests:
            world.resume(request)
        world.drain()
        world.check_accounts()
        for request in world.requests:
            end = world.terminal(request)
            if isinstance(end, Failed):
                assert (
                    end.kind == "busy"
                    or (end.kind == "internal" and request in self.poisoned)
                    or (end.kind == "timeout" and request in self.timed)
                )
            elif isinstance(end, Finished) and end.reason == "cancelled":
                assert request in self.cancelled
            elif isinstance(end, Finished) and end.stop_type == "timeout":
                assert request in self.timed
            else:
                assert request not in self.poisoned
                world.check_answer(request)


class PoolMachine(StreamsMachine):
    """The same with one pool that cannot hold everybody, nothing reserved, and guesses ahead."""

    def make_world(self) -> World:
        decoder = FakeDecoder(n_slots=7, n_batch=12, n_ubatch=8, max_output_rows=6, unified=True, n_cells=100)
        return World(decoder, n_running=4, max_queue=4, chunk=5, policy="fair", reserve=0.0, guesses=3, ram_limit=900)


class StubbornMachine(StreamsMachine):
    """The same with a model that cannot rewind, little memory for saved states, and one slot more than fits a step's outputs."""

    def make_world(self) -> World:
        decoder = FakeDecoder(n_slots=3, n_batch=12, n_ubatch=8, max_output_rows=2, can_rewind=False)
        return World(decoder, max_queue=4, chunk=5, policy="priority", ram_limit=700)


class GuessingMachine(StreamsMachine):
    """The same with guesses ahead on streams, shortest prompt first, and states that cannot be saved."""

    def make_world(self) -> World:
        decoder = FakeDecoder(n_slots=3, n_batch=12, n_ubatch=8, max_output_rows=5, can_save=False)
        return World(decoder, max_queue=4, chunk=5, policy="shortest-prompt", guesses=4)


_settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
for machine in (StreamsMachine, PoolMachine, StubbornMachine, GuessingMachine):
    machine.TestCase.settings = _settings
test_streams = StreamsMachine.TestCase
test_pool = PoolMachine.TestCase
test_no_rewind = StubbornMachine.TestCase
test_guessing = GuessingMachine.TestCase


def test_ten_thousand_waiting_are_not_looked_at_in_a_step() -> None:
    """The queue is walked once in a while to tell positions, and by nothing else."""

    world = World(FakeDecoder(n_slots=1, n_ctx_slot=4096), max_queue=10_000)
    walks = 0
    policy = world.scheduler.policy
    walk = type(policy).__iter__

    class Counting(type(policy)):  # type: ignore[misc]
        def __iter__(self):  # type: ignore[no-untyped-def]
            nonlocal walks
            walks += 1
            return walk(self)

    policy.__class__ = Counting
    requests = [world.submit("x", max_tokens=2) for _ in range(10_000)]
    world.step()
    assert len(world.steps[0].events) > 10_000
    world.step(900)  # nine seconds of the test's clock
    assert walks == 0
    finished = [request for request in requests if world.terminal(request)]
    assert len(finished) > 300 and finished == requests[: len(finished)]
    assert sum(isinstance(event, Queued) for step in world.steps[1:] for event in step.events) == 0
    world.step(600)
    assert walks == 1
    for request in requests[-5000:]:
        world.cancel(request)
    world.step()
    assert sum(world.terminal(request) is not None for request in requests[-5000:]) == 5000


def test_the_scheduler_alone_runs_for_a_very_long_time() -> None:
    """Pure simulation with arrivals, cancels, pauses and rewinds: nothing is lost, nothing piles up, first come first served."""
    rng = random.Random(4)
    decoder = FakeDecoder(n_slots=8, n_ctx_slot=200, n_batch=64, n_ubatch=48, max_output_rows=16)
    decoder.keep_batches = False
    scheduler = scheduler_on(decoder, max_queue=20, chunk=24)
    started: list[int] = []
    ended: set[int] = set()
    n_submitted = n_refused = 0
    for _ in range(20_000):
        if rng.random() < 0.3:
            tokens = [rng.randrange(3) for _ in range(rng.randrange(1, 150))]
            request = GenerationRequest(prompt="", max_tokens=rng.randrange(40), cache_prompt=rng.random() < 0.8)
            position = scheduler.submit(WaitingRequest(n_submitted, request, tokens, 0.0, n_submitted))
            n_refused += position is None
            if position is None:
                ended.add(n_submitted)
            n_submitted += 1
        if rng.random() < 0.05 and scheduler.request_ids:
            victim = rng.choice(scheduler.request_ids)
            if scheduler.withdraw(victim) is None:
                scheduler.release(scheduler.running[victim])
            ended.add(victim)
        if rng.random() < 0.05 and scheduler.request_ids:
            scheduler.set_paused(rng.choice(scheduler.request_ids), rng.random() < 0.4)
        while (sequence := scheduler.admit()) is not None:
            started.append(sequence.id)
        scheduler.close_gaps()
        plan = scheduler.plan()
        if plan is None:
            continue
        decoder.decode(plan.rows)
        if rng.random() < 0.01:
            for share in plan.shares:
                decoder.truncate(share.sequence.slot, rng.randrange(share.sequence.n_computed + 1))
            blamed = scheduler.suspect(plan)
            for share in plan.shares:
                scheduler.rewind(share.sequence)
            if blamed is not None:
                scheduler.release(blamed)
                ended.add(blamed.id)
            continue
        scheduler.advance(plan)
        for share in plan.shares:
            sequence = share.sequence
            if share.row >= 0:
                scheduler.said(sequence, rng.randrange(3))
            if sequence.n_remain(200) <= 0 and (share.row >= 0 or not sequence.n_pending):
                scheduler.release(sequence)
                ended.add(sequence.id)
    for request_id in scheduler.request_ids:
        scheduler.set_paused(request_id, False)
    assert started == sorted(started) and len(set(started)) == len(started) > 1000
    assert n_refused > 0
    assert set(range(n_submitted)) == ended | set(scheduler.request_ids) and not ended & set(scheduler.request_ids)
    assert len(scheduler.request_ids) <= scheduler.capacity


def test_a_request_that_comes_later_joins_at_the_next_step() -> None:
    world = World()
    first = world.submit("x", max_tokens=30, seed=4)
    world.step(3)
    second = world.submit("y", max_tokens=3)
    world.step()
    assert any(isinstance(event, Started) for event in world.events[second])
    assert world.terminal(first) is None
    assert {row.slot for row in world.decoder.batches[-1]} == {0, 1}
