"""An engine on the fakes, with a clock that only the test moves and a memory of all that the front was told."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from server.engine.engine import Engine
from server.engine.plan import Limits
from server.engine.policy import policy_named
from server.engine.request import WaitingRequest
from server.engine.scheduler import Scheduler
from server.protocol import Cancel, Delta, Event, Failed, Finished, GenerationRequest, Pause, Resume, SamplingParams, Step, Terminal
from tests.unit.engine.fakes import FakeDecoder, FakeVocab
from tests.unit.engine.oracle import solo_answer


def limits_of(decoder: FakeDecoder, **other: int) -> Limits:
    return Limits(decoder.n_slots, decoder.n_ctx_slot, decoder.n_batch, decoder.n_ubatch, decoder.max_output_rows, **other)


class World:
    """`submit` and friends act like the intake; `step` and `drain` like the main thread; `events` holds what the front was told."""

    def __init__(self, decoder: FakeDecoder | None = None, *, max_queue: int = 100, **limits: int) -> None:
        self.now = 0.0
        self.decoder = decoder or FakeDecoder()
        self.scheduler = Scheduler(limits_of(self.decoder, **limits), policy_named("fcfs"), max_queue)
        self.steps: list[Step] = []
        self.events: dict[int, list[Event]] = defaultdict(list)
        self.engine = Engine(self.scheduler, self.decoder, FakeVocab(), self._emit, clock=lambda: self.now)
        self.requests: dict[int, tuple[list[int], GenerationRequest]] = {}

    def _emit(self, step: Step) -> None:
        self.steps.append(step)
        for event in step.events:
            self.events[event.id].append(event)

    def submit(self, prompt: str | list[int], **options: Any) -> int:
        tokens = list(prompt.encode()) if isinstance(prompt, str) else list(prompt)
        sampling = SamplingParams(**options.pop("sampling", {"seed": options.pop("seed", 1)}))
        request = GenerationRequest(prompt="", sampling=sampling, **options)
        number = len(self.requests)
        self.requests[number] = (list(tokens), request)
        self.engine.inbox.put(WaitingRequest(number, request, tokens, self.now, number))
        return number

    def cancel(self, request_id: int) -> None:
        self.engine.inbox.put(Cancel(request_id))

    def pause(self, request_id: int) -> None:
        self.engine.inbox.put(Pause(request_id))

    def resume(self, request_id: int) -> None:
        self.engine.inbox.put(Resume(request_id))

    def step(self, n: int = 1) -> None:
        for _ in range(n):
            self.now += 0.01
            self.engine.step()

    def drain(self, most: int = 20_000) -> None:
        """Step until nothing is left to do; fails if that takes `most` steps."""
        for _ in range(most):
            if self.scheduler.is_idle and self.engine.inbox.empty():
                return
            self.step()
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
        """Slots, cells and samplers add up, exactly."""
        running = [slot.sequence for slot in self.scheduler.slots if slot.sequence is not None]
        assert sorted(sequence.id for sequence in running) == sorted(self.scheduler.running)
        assert all(self.scheduler.running[sequence.id] is sequence for sequence in running)
        for slot in self.scheduler.slots:
            sequence = slot.sequence
            held = slot.tokens if sequence is None else sequence.tokens[: sequence.n_computed]
            assert self.decoder.cells[slot.id] == held
            assert sequence is None or sequence.slot == slot.id
        assert sum(not sampler.closed for sampler in self.decoder.samplers) == len(running)
        assert self.engine.n_ended == sum(self.terminal(request_id) is not None for request_id in list(self.events))

    def check_answer(self, request_id: int) -> None:
        """The request has ended by itself and said what it says when it is alone."""
        tokens, request = self.requests[request_id]
        text, stop_type, n_predicted = solo_answer(tokens, request, self.decoder.n_ctx_slot)
        end = self.finished(request_id)
        assert (self.text(request_id), end.stop_type, end.n_predicted) == (text, stop_type, n_predicted)
        assert end.n_prompt_tokens == len(tokens)
