"""The step loop: take commands, admit, plan, decode, sample, emit. One thread runs it and alone touches the decoder and the scheduler.

Other threads put commands into `inbox` and read `stats` and `slots`, which are replaced, never changed. It knows neither
pipes nor tokenising; every request that reaches it gets exactly one terminal event.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable

from server.engine.governor import ThreadGovernor
from server.engine.guesser import Guesser
from server.engine.live import busy, cancelled_while_waiting, expired_while_waiting
from server.engine.ports import Decoder, Vocab
from server.engine.reporter import Reporter
from server.engine.request import PutAside, WaitingRequest
from server.engine.scheduler import Scheduler
from server.engine.stepper import Stepper
from server.protocol import (
    Cancel,
    EngineStats,
    Failed,
    FinishReason,
    GetQueue,
    Pause,
    Queue,
    Queued,
    Resume,
    SlotState,
    Step,
    StopType,
)

logger = logging.getLogger(__name__)

EngineCommand = WaitingRequest | Cancel | Pause | Resume | GetQueue


class Engine:
    """`batch_window`: seconds that an idle engine gathers arrivals before it starts; `guesser` None: no speculation."""

    def __init__(
        self,
        scheduler: Scheduler,
        decoder: Decoder,
        vocab: Vocab,
        emit: Callable[[Step | Queue], None],
        clock: Callable[[], float] = time.perf_counter,
        *,
        policy_name: str = "",
        guesser: Guesser | None = None,
        governor: ThreadGovernor | None = None,
        batch_window: float = 0.0,
    ) -> None:
        self.inbox: queue.SimpleQueue[EngineCommand] = queue.SimpleQueue()
        self._scheduler = scheduler
        self._clock = clock
        self._guesser = guesser
        self._batch_window = batch_window
        self._report = Reporter(scheduler, policy_name, emit, clock())
        self._report.n_threads = decoder.n_threads
        self._stepper = Stepper(scheduler, decoder, vocab, self._report, clock, guesser=guesser, governor=governor)

    @property
    def capacity(self) -> int:
        return self._scheduler.capacity

    @property
    def max_queue(self) -> int:
        return self._scheduler.max_queue

    @property
    def stats(self) -> EngineStats:
        return self._report.stats

    @property
    def slots(self) -> tuple[SlotState, ...]:
        return self._report.slots

    @property
    def n_ended(self) -> int:
        """Requests taken from the inbox that are over."""
        return self._report.tally.n_ended

    # ---- the loop ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Step for ever; sleeps while there is nothing to compute. Ends only by an exception."""
        while True:
            if not self.step() and self.inbox.empty():
                self._wait()

    def _wait(self) -> None:
        """For a command, or for the next deadline."""
        was_empty = not self._scheduler.request_ids
        deadline = self._scheduler.next_deadline
        try:
            self._apply(self.inbox.get(timeout=None if deadline is None else max(0.0, deadline - self._clock())))
        except queue.Empty:
            return
        if was_empty and self._batch_window > 0 and self._scheduler.n_waiting:
            self._gather()

    def _gather(self) -> None:
        """More may come right behind the first: what arrives within the window starts in one batch."""
        until = self._clock() + self._batch_window
        while self._scheduler.n_waiting < self._scheduler.limits.n_slots and (left := until - self._clock()) > 0:
            try:
                self._apply(self.inbox.get(timeout=left))
            except queue.Empty:
                return

    def step(self) -> bool:
        """One turn: afterwards every command given before it has taken effect, and at most one batch has been decoded.

        False: there was nothing to compute, and there will not be before a command comes or a deadline passes.
        """
        report, begun = self._report, self._clock()
        self._take_commands()
        self._expire(begun)
        self._admit()
        self._stepper.announce()
        report.tell_positions(begun)
        if report.has_events:
            report.send(begun)  # nobody waits a whole batch for a refusal, a place in the queue or the end of what was cancelled
        if self._guesser is not None and not self._scheduler.computes_prompts:  # guesses would take the prompts' part of a step
            self._guesser.guess(self._scheduler.running.values())
        plan = self._scheduler.plan()
        if plan is not None:
            self._stepper.compute(plan)
            report.tally.n_steps += 1
        now = self._clock()
        report.tally.step_s += now - begun
        if plan is not None or report.slots_moved or report.has_events:
            report.send(now)
        return plan is not None

    def fail_all(self, message: str) -> None:
        """The loop has broken down: end every request with an internal error. Touches no native code; `step` is not called again."""
        ids = self._scheduler.request_ids
        while not self.inbox.empty():
            if isinstance(command := self.inbox.get(), WaitingRequest):
                ids.append(command.id)
        ended = self._report.ended_ids()
        self._report.event(*(Failed(id=request_id, kind="internal", message=message) for request_id in ids if request_id not in ended))
        self._report.flush()

    # ---- commands ----------------------------------------------------------------------------------------------

    def _take_commands(self) -> None:
        for _ in range(self.inbox.qsize()):
            self._apply(self.inbox.get())

    def _apply(self, command: EngineCommand) -> None:
        match command:
            case WaitingRequest():
                self._submit(command)
            case Cancel(id=request_id):
                self._cancel(request_id)
            case Pause(id=request_id) | Resume(id=request_id):
                self._scheduler.set_paused(request_id, isinstance(command, Pause))
                self._report.slots_moved = True
            case GetQueue():
                self._report.answer(command, self._clock())

    def _submit(self, request: WaitingRequest) -> None:
        scheduler, report = self._scheduler, self._report
        if scheduler.holds(request.id):
            logger.error("request id %d was submitted twice; the second is ignored", request.id)
            report.tally.n_ended += 1
            return
        position = scheduler.submit(request)
        if position is None:
            report.end(busy(request.id, scheduler.max_queue, scheduler.max_queue_tokens, report.retry_after_s))
            return
        report.queue_moved = True
        eta = report.eta(position)
        report.event(Queued(id=request.id, position=position, n_prompt_tokens=len(request.tokens), eta_s=eta))

    def _cancel(self, request_id: int) -> None:
        self._end(request_id, "cancelled", "none", self._clock())

    def _expire(self, now: float) -> None:
        for request_id in self._scheduler.expired(now):
            self._end(request_id, "length", "timeout", now)

    def _end(self, request_id: int, reason: FinishReason, stop_type: StopType, now: float) -> None:
        """End a request wherever it is; unknown ids are ignored (it may just have ended)."""
        entry = self._scheduler.withdraw(request_id)
        if entry is None:
            if (live := self._stepper.live.get(request_id)) is not None:
                self._stepper.finish(live, reason, stop_type, now)
            return
        self._report.queue_moved = True
        if isinstance(entry, PutAside):
            self._stepper.finish_aside(entry, reason, stop_type, now)
        elif stop_type == "timeout":
            self._report.end(expired_while_waiting(entry, now))
        else:
            self._report.end(cancelled_while_waiting(entry.id, len(entry.tokens), now - entry.submitted_at))

    # ---- admission ---------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        scheduler = self._scheduler
        n_before = scheduler.counters.n_preemptions
        while (sequence := scheduler.admit()) is not None:
            self._report.queue_moved = self._report.slots_moved = True
            if sequence.id not in self._stepper.live:
                self._stepper.start(sequence)
        if scheduler.counters.n_preemptions != n_before:
            self._report.queue_moved = self._report.slots_moved = True
        scheduler.close_gaps()
