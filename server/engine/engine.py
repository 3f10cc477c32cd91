"""The step loop: take commands, admit, plan, decode, sample, emit. One thread runs it and alone touches the decoder and the scheduler.

Other threads put commands into `inbox` and read `stats` and `slots`, which are replaced, never changed. It knows neither pipes nor
tokenising; every request that reaches it gets exactly one terminal event.
"""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable

from server.engine.live import Live, answer_for, busy, cancelled_while_waiting, slot_state
from server.engine.plan import Share, StepPlan
from server.engine.ports import DecodeFault, Decoder, Row, Vocab
from server.engine.request import Sequence, WaitingRequest, penalty_window
from server.engine.scheduler import Scheduler
from server.protocol import (
    Cancel,
    EngineStats,
    Event,
    Failed,
    Finished,
    FinishReason,
    Pause,
    Queued,
    Resume,
    SlotState,
    Started,
    Step,
    StopType,
    Terminal,
    TokenLogprob,
)

logger = logging.getLogger(__name__)

EngineCommand = WaitingRequest | Cancel | Pause | Resume

SNAPSHOT_SECONDS = 0.05
"""`slots` is at most this much older than the last step."""
POSITIONS_SECONDS = 1.0
"""Waiting clients hear of a new position this often; 1 ms more for each that waits, so that the walk never shows."""
FAULTS_ALONE = 3
"""After so many sequences in a row that failed alone, with nothing computed in between, the decoder itself is tried."""


class EngineBroken(RuntimeError):
    """Nothing can be computed any more."""


class Engine:
    def __init__(
        self,
        scheduler: Scheduler,
        decoder: Decoder,
        vocab: Vocab,
        emit: Callable[[Step], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.inbox: queue.SimpleQueue[EngineCommand] = queue.SimpleQueue()
        self.stats = EngineStats()
        self.slots: tuple[SlotState, ...] = ()
        self.n_ended = 0
        """Requests taken from the inbox that are over."""
        self.sample_seconds = 0.0
        """Wall time inside the samplers, in all."""
        self._scheduler = scheduler
        self._decoder = decoder
        self._vocab = vocab
        self._emit = emit
        self._clock = clock
        self._live: dict[int, Live] = {}
        self._pieces: dict[int, bytes | None] = {}
        self._events: list[Event] = []
        self._queue_moved = False
        self._slots_moved = True
        self._positions_told = self._published = clock()
        self._faults_alone = 0
        self._n_steps = self._n_prompt = self._n_cached = self._n_predicted = 0
        self._decode_seconds = self._step_seconds = 0.0
        self._publish(self._published)

    @property
    def capacity(self) -> int:
        return self._scheduler.capacity

    @property
    def max_queue(self) -> int:
        return self._scheduler.max_queue

    # ---- the loop ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Step for ever; sleeps while there is nothing to compute. Ends only by an exception."""
        while True:
            if self._scheduler.is_idle and self.inbox.empty():
                self._apply(self.inbox.get())
            self.step()

    def step(self) -> None:
        """One turn: afterwards every command given before it has taken effect, and at most one batch has been decoded."""
        begun = self._clock()
        self._take_commands()
        self._admit()
        self._tell_positions(begun)
        if self._events:
            self._send(begun)  # nobody waits a whole batch for a refusal, a place in the queue or the end of what was cancelled
        plan = self._scheduler.plan()
        if plan is not None and self._decode(plan):
            self._deliver(plan)
        now = self._clock()
        self._n_steps += plan is not None
        self._step_seconds += now - begun
        if plan is not None or self._slots_moved:
            self._send(now)

    def fail_all(self, message: str) -> None:
        """The loop has broken down: end every request with an internal error. Touches no native code; `step` is not called again."""
        ids = self._scheduler.request_ids
        while not self.inbox.empty():
            if isinstance(command := self.inbox.get(), WaitingRequest):
                ids.append(command.id)
        ended = {event.id for event in self._events if isinstance(event, Finished | Failed)}
        self._events += [Failed(id=request_id, kind="internal", message=message) for request_id in ids if request_id not in ended]
        self._emit(Step(tuple(self._events), self.stats))
        self._events = []

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
                self._slots_moved = True

    def _submit(self, request: WaitingRequest) -> None:
        if self._scheduler.holds(request.id):
            logger.error("request id %d was submitted twice; the second is ignored", request.id)
            self.n_ended += 1
            return
        position = self._scheduler.submit(request)
        if position is None:
            self._end(busy(request.id, self._scheduler.max_queue))
        else:
            self._events.append(Queued(id=request.id, position=position, n_prompt_tokens=len(request.tokens)))

    def _cancel(self, request_id: int) -> None:
        waiting = self._scheduler.withdraw(request_id)
        if waiting is not None:
            self._queue_moved = True
            waited = self._clock() - waiting.submitted_at
            self._end(cancelled_while_waiting(request_id, len(waiting.tokens), waited))
        elif (live := self._live.get(request_id)) is not None:
            self._finish(live, "cancelled", "none", self._clock())

    def _admit(self) -> None:
        while (sequence := self._scheduler.admit()) is not None:
            self._queue_moved = self._slots_moved = True
            if not self._cells_are(sequence):
                self._scheduler.rewind(sequence, 0)
            self._start(sequence)

    def _cells_are(self, sequence: Sequence) -> bool:
        """Cut the slot's cells to the cached prefix; False = they are gone."""
        slot, n_cached = sequence.slot, sequence.n_cached
        if self._decoder.truncate(slot, n_cached) and self._decoder.n_tokens(slot) == n_cached:
            return True
        logger.info("slot %d cannot go back to its first %d tokens; they are computed again", slot, n_cached)
        self._decoder.truncate(slot, 0)
        return False

    def _start(self, sequence: Sequence) -> None:
        request = sequence.request
        try:
            sampler = self._decoder.sampler(request.sampling)
        except ValueError as error:
            self._release(sequence)
            self._end(Failed(id=sequence.id, kind="invalid", message=str(error)))
            return
        self._live[sequence.id] = Live(sequence, sampler, answer_for(request), self._clock())
        window = penalty_window(request.sampling, self._decoder.n_ctx_slot)
        if window:
            sampler.accept_prompt(sequence.tokens[-window:])
        self._n_cached += sequence.n_cached
        self._events.append(
            Started(id=sequence.id, slot=sequence.slot, n_prompt_tokens=sequence.n_prompt, n_cached_tokens=sequence.n_cached)
        )

    # ---- decode ------------------------------------------------------------------------------------------------

    def _decode(self, plan: StepPlan) -> bool:
        begun = self._clock()
        try:
            self._decoder.decode(plan.rows)
        except DecodeFault as fault:
            self._recover(plan, fault)
            return False
        finally:
            self._decode_seconds += self._clock() - begun
        self._faults_alone = 0
        return True

    def _recover(self, plan: StepPlan, fault: DecodeFault) -> None:
        """Nobody pays for another's fault: all of the batch are tried again one by one, and who fails alone has failed."""
        logger.error("decoding %d rows of %d sequences failed (code %d): %s", len(plan.rows), len(plan.shares), fault.code, fault)
        blamed = self._scheduler.suspect(plan)
        for share in plan.shares:
            self._resync(share.sequence)
        if blamed is not None:
            self._fail(self._live[blamed.id], f"the model could not be evaluated for this request (code {fault.code})")
            self._faults_alone += 1
            if self._faults_alone >= FAULTS_ALONE and not self._can_decode(blamed.slot):
                raise EngineBroken(f"{self._faults_alone} sequences in a row could not be evaluated, and a single token neither") from fault

    def _can_decode(self, slot: int) -> bool:
        """Whether the decoder still works at all: one token in a free slot. If not, a new process is the way out."""
        self._scheduler.forget(slot)
        self._decoder.truncate(slot, 0)
        try:
            self._decoder.decode([Row(slot, 0, 0, False)])
        except DecodeFault:
            return False
        self._decoder.truncate(slot, 0)
        self._faults_alone = 0
        return True

    def _resync(self, sequence: Sequence) -> None:
        """Believe the cells. The last token's logits are lost, so it is computed again even if its cell is there."""
        held = self._decoder.n_tokens(sequence.slot)
        kept = min(held, len(sequence.tokens) - 1)
        if kept < held and not self._decoder.truncate(sequence.slot, kept):
            kept = 0
        self._scheduler.rewind(sequence, kept)

    # ---- sample ------------------------------------------------------------------------------------------------

    def _deliver(self, plan: StepPlan) -> None:
        self._note_progress(plan)
        begun = self._clock()
        drawn = [(share, self._draw(share)) for share in plan.shares if share.row >= 0]
        now = self._clock()
        self.sample_seconds += now - begun
        for share, sample in drawn:
            if sample is None:
                self._fail(self._live[share.sequence.id], "no token could be drawn for this request")
            else:
                self._accept(self._live[share.sequence.id], *sample, now)
        for share in plan.shares:
            if share.row < 0 and not share.sequence.n_pending:  # max_tokens 0: the prompt is computed, and that was all
                self._finish(self._live[share.sequence.id], "length", "limit", now)

    def _note_progress(self, plan: StepPlan) -> None:
        prefilling = [share.sequence for share in plan.shares if share.sequence.n_computed < share.sequence.n_prompt]
        before = sum(sequence.n_computed for sequence in prefilling)
        self._scheduler.advance(plan)
        if prefilling:
            self._n_prompt += sum(min(sequence.n_computed, sequence.n_prompt) for sequence in prefilling) - before
            now = self._clock()
            self._events += [self._live[s.id].prefilled(now) for s in prefilling if s.request.return_progress]

    def _draw(self, share: Share) -> tuple[int, TokenLogprob | None] | None:
        sequence = share.sequence
        try:
            return self._live[sequence.id].sampler.sample(share.row, sequence.request.n_logprobs)
        except Exception:
            logger.exception("sampling failed")
            return None

    def _accept(self, live: Live, token: int, logprob: TokenLogprob | None, now: float) -> None:
        """One token more: its text goes out as far as it may, and the sequence ends if this was its last."""
        sequence, answer = live.sequence, live.answer
        sequence.tokens.append(token)
        self._n_predicted += 1
        if live.first_token_at is None:
            live.first_token_at, self._slots_moved = now, True
        ending: tuple[FinishReason, StopType] | None = None
        data = self._bytes_of(token)
        if data is None:
            piece, ending = answer.flush(), ("stop", "eos")
        else:
            piece = answer.push(token, data, logprob)
            if answer.stop_word is None and sequence.n_remain(self._decoder.n_ctx_slot) <= 0:
                piece, ending = piece + answer.flush(), ("length", "limit")
        if answer.stop_word is not None:
            ending = ("stop", "word")
        if piece:
            self._events.append(piece.delta(sequence.id))
        if ending is not None:
            self._finish(live, *ending, now)

    def _bytes_of(self, token: int) -> bytes | None:
        """What a token adds to the text; None = it ends the text. Remembered: two native calls a token would be felt."""
        if token not in self._pieces:
            self._pieces[token] = None if self._vocab.is_eog(token) else self._vocab.piece(token)
        return self._pieces[token]

    # ---- endings -----------------------------------------------------------------------------------------------

    def _finish(self, live: Live, reason: FinishReason, stop_type: StopType, now: float) -> None:
        self._end(live.finished(reason, stop_type, now))
        self._drop(live)

    def _fail(self, live: Live, message: str) -> None:
        self._end(Failed(id=live.sequence.id, kind="internal", message=message))
        self._drop(live)

    def _end(self, event: Terminal) -> None:
        self._events.append(event)
        self.n_ended += 1

    def _drop(self, live: Live) -> None:
        del self._live[live.sequence.id]
        live.sampler.close()
        self._release(live.sequence)

    def _release(self, sequence: Sequence) -> None:
        self._slots_moved = True
        if not self._scheduler.release(sequence):
            self._decoder.truncate(sequence.slot, 0)

    # ---- telling -----------------------------------------------------------------------------------------------

    def _tell_positions(self, now: float) -> None:
        if self._queue_moved and now - self._positions_told >= POSITIONS_SECONDS + self._scheduler.n_waiting * 1e-3:
            self._queue_moved, self._positions_told = False, now
            self._events += [
                Queued(id=request.id, position=request.position, n_prompt_tokens=len(request.tokens)) for request in self._scheduler.moved()
            ]

    def _send(self, now: float) -> None:
        self._publish(now)
        events, self._events = tuple(self._events), []
        self._emit(Step(events, self.stats))

    def _publish(self, now: float) -> None:
        scheduler, n_ctx = self._scheduler, self._decoder.n_ctx_slot
        cells = [slot.n_cells for slot in scheduler.slots]
        self.stats = EngineStats(
            n_running=len(scheduler.running),
            n_waiting=scheduler.n_waiting,
            kv_used_tokens=sum(cells),
            kv_total_tokens=n_ctx * len(cells),
            n_steps=self._n_steps,
            n_prompt_tokens=self._n_prompt,
            n_cached_tokens=self._n_cached,
            n_predicted_tokens=self._n_predicted,
            decode_seconds=self._decode_seconds,
            step_seconds=self._step_seconds,
        )
        if self._slots_moved or now - self._published >= SNAPSHOT_SECONDS:
            self._slots_moved, self._published = False, now
            self.slots = tuple(slot_state(slot.id, slot.sequence, n, n_ctx) for slot, n in zip(scheduler.slots, cells, strict=True))
