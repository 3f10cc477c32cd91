"""An engine on the fakes, with a clock that only the test moves and a memory of all that the front was told."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from server.engine.engine import Engine
from server.engine.guesser import Guesser
from server.engine.pace import StepCost
from server.engine.plan import Limits
from server.engine.policy import policy_named
from server.engine.request import PutAside, WaitingRequest
from server.engine.reserve import Reserve
from server.engine.scheduler import Scheduler
from server.engine.stores import store_for
from server.protocol import (
    Cancel,
    Delta,
    Event,
    Failed,
    Finished,
    Flow,
    GenerationRequest,
    GetQueue,
    Pause,
    Queue,
    Resume,
    SamplingParams,
    Step,
    Terminal,
)
from tests.unit.engine.fakes import FakeConstraints, FakeDecoder, FakeVocab
from tests.unit.engine.oracle import solo_answer


def limits_of(decoder: FakeDecoder, n_running: int | None = None, **other: int) -> Limits:
    return Limits(n_running or decoder.n_slots, decoder.n_ctx_slot, decoder.n_batch, decoder.n_ubatch, decoder.max_output_rows, **other)


class FixedPace(StepCost):
    """So many prompt tokens beside streams, whatever the steps cost."""

    def __init__(self, chunk: int) -> None:
        super().__init__()
        self._chunk = chunk

    def prefill_budget(self, n_decode: int, target: float, *, least: int, most: int) -> int:
        return min(most, self._chunk if n_decode else most)


def scheduler_on(
    decoder: FakeDecoder,
    *,
    policy: str = "fcfs",
    max_queue: int = 100,
    max_queue_tokens: int = 0,
    n_running: int | None = None,
    ram_limit: int = 100_000,
    reserve: float = 1.0,
    max_preemptions: int = 3,
    chunk: int = 128,
    **limits: int,
) -> Scheduler:
    store = store_for(decoder, n_running=n_running or decoder.n_slots, ram_limit=ram_limit)
    made = Scheduler(
        limits_of(decoder, n_running, **limits),
        policy_named(policy, max_preemptions=max_preemptions),
        store,
        max_queue=max_queue,
        max_queue_tokens=max_queue_tokens,
        reserve=Reserve(reserve, max_preemptions),
    )
    made.cost = FixedPace(chunk)
    return made


class World:
    """`submit` and friends act like the intake; `step` and `drain` like the main thread; `events` holds what the front was told.

    `guesses`: most n-gram guesses of a step, 0 = no speculation.
    """

    def __init__(self, decoder: FakeDecoder | None = None, *, guesses: int = 0, **options: Any) -> None:
        self.now = 0.0
        self.decoder = decoder or FakeDecoder()
        self.scheduler = scheduler_on(self.decoder, **options)
        self.steps: list[Step] = []
        self.queues: list[Queue] = []
        self.events: dict[int, list[Event]] = defaultdict(list)
        guesser = Guesser(guesses, self.scheduler.cost, self.decoder.n_ctx_slot) if guesses else None
        self.engine = Engine(self.scheduler, self.decoder, FakeVocab(), self._emit, clock=lambda: self.now, guesser=guesser)
        self.requests: dict[int, tuple[list[int], GenerationRequest]] = {}
        self.is_idle = True

    def _emit(self, step: Step | Queue) -> None:
        if isinstance(step, Queue):
            self.queues.append(step)
            return
        self.steps.append(step)
        for event in step.events:
            self.events[event.id].append(event)

    def submit(self, prompt: str | list[int], **options: Any) -> int:
        tokens = list(prompt.encode()) if isinstance(prompt, str) else list(prompt)
        sampling = SamplingParams(**options.pop("sampling", {"seed": options.pop("seed", 1)}))
        flow = Flow(key=options.pop("key", ""))
        request = GenerationRequest(prompt="", sampling=sampling, flow=flow, **options)
        number = len(self.requests)
        self.requests[number] = (list(tokens), request)
        matcher = FakeConstraints().compile(request.constraint) if request.constraint else None
        self.engine.inbox.put(WaitingRequest(number, request, tokens, self.now, number, matcher=matcher))
        return number

    def queue(self, most: int = 1000) -> Queue:
        """What `GET /queue` is told, a second later."""
        self.now += 1.0
        self.engine.inbox.put(GetQueue(7, most))
        self.step()
        return self.queues[-1]

    def cancel(self, request_id: int) -> None:
        self.engine.inbox.put(Cancel(request_id))

    def pause(self, request_id: int) -> None:
        self.engine.inbox.put(Pause(request_id))

    def resume(self, request_id: int) -> None:
        self.engine.inbox.put(Resume(request_id))

    def step(self, n: int = 1) -> None:
        for _ in range(n):
            self.now += 0.01
            self.is_idle = not self.engine.step()

    def drain(self, most: int = 20_000) -> None:
        """Step until nothing is left to do; fails if that takes `most` steps."""
        for _ in range(most):
            self.step()
            if self.is_idle and self.engine.inbox.empty():
                return
        raise AssertionError("the engine does not come to an end")

    def terminal(self, request_id: int) -> Terminal | None:
        """The request's terminal event; fails if there are two, or if anything follows it."""
        events = self.events[request_id]
        ends = [event for event in events if isinstance(event, Finished | Failed)]
        assert len(ends) <= 1 and (not ends or events[-1] is ends[0])
        return ends[0] if ends else None

    def finished(self, request_id: int) -> Finished:
        end = self.terminal(request_id)
        assert isinstance(end, Finished), end
        return end

    def text(self, request_id: int) -> str:
        return "".join(event.text for event in self.events[request_id] if isinstance(event, Delta))

    def check_accounts(self) -> None:
        """Slots, cells, queue and samplers add up, exactly."""
        scheduler, decoder = self.scheduler, self.decoder
        running = list(scheduler.running.values())
        assert len({sequence.slot for sequence in running}) == len(running) <= scheduler.limits.n_slots
        for sequence in running:
            assert decoder.cells[sequence.slot] == sequence.tokens[: sequence.n_computed]
        aside = [entry for entry in scheduler.policy if isinstance(entry, PutAside)]
        assert len(aside) == scheduler.n_put_aside
        assert len(list(scheduler.policy)) == scheduler.n_waiting
        assert sum(len(entry.tokens) for entry in scheduler.policy) == scheduler.n_waiting_tokens
        figures = scheduler.kv.figures()
        assert figures.n_used == decoder.n_used <= figures.n_cells
        assert figures.ram_bytes <= figures.ram_limit
        assert sum(not sampler.closed for sampler in decoder.samplers) == len(running) + len(aside)
        assert self.engine.n_ended == sum(self.terminal(request_id) is not None for request_id in list(self.events))

    def check_answer(self, request_id: int) -> None:
        """The request has ended by itself and said what it says when it is alone."""
        tokens, request = self.requests[request_id]
        text, stop_type, n_predicted = solo_answer(tokens, request, self.decoder.n_ctx_slot)
        end = self.finished(request_id)
        assert (self.text(request_id), end.stop_type, end.n_predicted) == (text, stop_type, n_predicted)
        assert end.n_prompt_tokens == len(tokens)
