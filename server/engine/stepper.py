"""One step's work: decode a plan, draw from it, deliver what was drawn; and what running sequences carry beside their tokens.

Knows no commands, no queue and no loop. Whatever fails, fails for one request, unless nothing can be computed at all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from server.engine.answer import Piece
from server.engine.governor import ThreadGovernor
from server.engine.guesser import Guesser
from server.engine.live import Live, answer_for
from server.engine.plan import StepPlan
from server.engine.ports import ConstraintFault, DecodeFault, Decoder, Draw, Drawn, Row, Vocab
from server.engine.reporter import Reporter
from server.engine.request import PutAside, Sequence, penalty_window
from server.engine.scheduler import Scheduler
from server.protocol import Failed, FinishReason, Started, StopType, TokenLogprob

logger = logging.getLogger(__name__)

FAULTS_ALONE = 3
"""After so many sequences in a row that failed alone, with nothing computed in between, the decoder itself is tried."""

MAX_SHOWN = 64
"""Sets of tokens to show whose ids are remembered; a model's template has one."""

_Ending = tuple[FinishReason, StopType]


class EngineBroken(RuntimeError):
    """Nothing can be computed any more."""


class Stepper:
    """`live`: every request that has started and is not over, running or put aside."""

    def __init__(
        self,
        scheduler: Scheduler,
        decoder: Decoder,
        vocab: Vocab,
        report: Reporter,
        clock: Callable[[], float],
        *,
        guesser: Guesser | None,
        governor: ThreadGovernor | None,
    ) -> None:
        self.live: dict[int, Live] = {}
        self._scheduler = scheduler
        self._decoder = decoder
        self._vocab = vocab
        self._report = report
        self._clock = clock
        self._guesser = guesser
        self._governor = governor
        self._pieces: dict[int, bytes | None] = {}
        self._shown: dict[tuple[str, ...], dict[int, bytes]] = {}
        self._faults_alone = 0

    # ---- beginnings --------------------------------------------------------------------------------------------

    def start(self, sequence: Sequence) -> None:
        request = sequence.request
        try:
            sampler = self._decoder.sampler(request.sampling, sequence.matcher)
        except ValueError as error:
            self._scheduler.release(sequence)
            self._report.end(Failed(id=sequence.id, kind="invalid", message=str(error)))
            return
        sequence.matcher = None  # the sampler's now
        self.live[sequence.id] = Live(sequence, sampler, answer_for(request), self._clock(), shown=self._shown_by(request.shown_tokens))
        window = penalty_window(request.sampling, self._decoder.n_ctx_slot)
        if window:
            sampler.accept_prompt(sequence.tokens[-window:])

    def announce(self) -> None:
        """Tell that requests have started. How much of their prompts was cached is known once nobody is followed any more."""
        for sequence in self._scheduler.settled():
            live = self.live.get(sequence.id)
            if live is None or live.is_announced:
                continue
            live.is_announced, live.started_at = True, self._clock()
            self._report.tally.n_cached += sequence.n_cached
            self._report.event(
                Started(id=sequence.id, slot=sequence.slot, n_prompt_tokens=sequence.n_prompt, n_cached_tokens=sequence.n_cached)
            )

    # ---- decode ------------------------------------------------------------------------------------------------

    def compute(self, plan: StepPlan) -> None:
        begun = self._clock()
        try:
            self._decoder.decode(plan.rows)
        except DecodeFault as fault:
            self._report.tally.decode_s += self._clock() - begun
            self._recover(plan, fault)
            return
        self._faults_alone = 0
        decoded = self._clock()
        self._report.tally.decode_s += decoded - begun
        self._note_progress(plan, decoded)
        drawn = self._draw(plan)
        now = self._clock()
        self._report.tally.sample_s += now - decoded
        self._scheduler.cost.observe(plan.n_decode, plan.n_prefill, now - begun)
        if self._governor is not None:
            n_threads = self._governor.observe(plan.n_decode, plan.n_prefill, now - begun)
            if n_threads != self._report.n_threads:
                self._decoder.n_threads = self._report.n_threads = n_threads
        self._deliver(plan, drawn, now)

    def _recover(self, plan: StepPlan, fault: DecodeFault) -> None:
        """Nobody pays for another's fault: all of the batch are tried again one by one, and who fails alone has failed."""
        scheduler = self._scheduler
        if fault.code == 1 and scheduler.kv.n_ctx_pool is not None and scheduler.relieve():
            logger.info("the KV cache is full; a request is put aside")
            self._rewind(plan)
            return
        logger.error("decoding %d rows of %d sequences failed (code %d): %s", len(plan.rows), len(plan.shares), fault.code, fault)
        blamed = scheduler.suspect(plan)
        self._rewind(plan)
        if blamed is not None:
            self._fail(self.live[blamed.id], f"the model could not be evaluated for this request (code {fault.code})")
            self._faults_alone += 1
            if self._faults_alone >= FAULTS_ALONE and not self._can_decode():
                raise EngineBroken(f"{self._faults_alone} sequences in a row could not be evaluated, and a single token neither") from fault

    def _rewind(self, plan: StepPlan) -> None:
        for share in plan.shares:
            if self._scheduler.running.get(share.sequence.id) is share.sequence:
                self._scheduler.rewind(share.sequence)

    def _can_decode(self) -> bool:
        """Whether the decoder still works at all: one token in a free slot. If not, a new process is the way out."""
        kv = self._scheduler.kv
        if (attached := kv.attach("", [0], reuse=False)) is None:
            return True  # everybody still runs; the next fault will tell
        try:
            self._decoder.decode([Row(attached.slot, 0, 0, False)])
        except DecodeFault:
            return False
        kv.grew(attached.slot, 1)
        kv.release(attached.slot, "", [0], keep=False)
        self._faults_alone = 0
        return True

    # ---- sample ------------------------------------------------------------------------------------------------

    def _note_progress(self, plan: StepPlan, now: float) -> None:
        prefilling = [share.sequence for share in plan.shares if share.sequence.n_computed < share.sequence.n_prompt]
        before = sum(sequence.n_computed for sequence in prefilling)
        self._scheduler.advance(plan)
        self.announce()
        if prefilling:
            n_prompt = sum(min(sequence.n_computed, sequence.n_prompt) for sequence in prefilling) - before
            self._report.tally.n_prompt += n_prompt
            self._report.rates.computed(now, n_prompt)
            self._report.event(*(self.live[s.id].prefilled(now) for s in prefilling if s.request.return_progress))

    def _draw(self, plan: StepPlan) -> list[Drawn | Exception]:
        draws = [
            Draw(
                self.live[share.sequence.id].sampler,
                range(share.row, share.row + 1 + share.n_drafts),
                share.sequence.drafts[: share.n_drafts],
                share.sequence.request.n_logprobs,
            )
            for share in plan.shares
            if share.row >= 0
        ]
        return self._decoder.draw(draws) if draws else []

    def _deliver(self, plan: StepPlan, drawn: list[Drawn | Exception], now: float) -> None:
        results = iter(drawn)
        for share in plan.shares:
            sequence = share.sequence
            live = self.live[sequence.id]
            if share.row < 0:
                if not sequence.n_pending:  # max_tokens 0: the prompt is computed, and that was all
                    self.finish(live, "length", "limit", now)
                continue
            result = next(results)
            if isinstance(result, Exception):
                self._scheduler.verified(sequence, share.n_drafts, 0)
                self._fail_draw(live, result)
                continue
            if sequence.drafts:
                self._verify(live, share.n_drafts, len(result) - 1)
            self._accept(live, result, now)

    def _verify(self, live: Live, n_drafts: int, n_accepted: int) -> None:
        sequence, tally = live.sequence, self._report.tally
        self._scheduler.verified(sequence, n_drafts, n_accepted)
        if n_drafts:
            live.n_drafts += n_drafts
            live.n_accepted += n_accepted
            tally.n_drafts += n_drafts
            tally.n_accepted += n_accepted
            if self._guesser is not None:
                self._guesser.verified(sequence, n_drafts, n_accepted)

    def _accept(self, live: Live, drawn: Drawn, now: float) -> None:
        """Tokens more: their text goes out as far as it may, and the sequence ends with the last one that it may say."""
        sequence, answer, piece = live.sequence, live.answer, Piece("")
        ending: _Ending | None = None
        if live.first_token_at is None:
            live.first_token_at, self._report.slots_moved = now, True
        for index, (token, logprob) in enumerate(drawn, 1):
            more, ending = self._accept_one(live, token, logprob, is_last=index == len(drawn))
            piece = piece + more if piece else more
            if ending is not None:
                break
        if piece:
            self._report.event(piece.delta(sequence.id))
        self._report.rates.generated(now, len(drawn))
        if answer.stop_word is not None:
            ending = ("stop", "word")
        if ending is not None:
            self.finish(live, *ending, now)

    def _accept_one(self, live: Live, token: int, logprob: TokenLogprob | None, *, is_last: bool) -> tuple[Piece, _Ending | None]:
        sequence, answer = live.sequence, live.answer
        self._scheduler.said(sequence, token)
        self._report.tally.n_predicted += 1
        data = self._bytes_of(token)
        if data is None:
            return answer.flush(), ("stop", "eos")
        piece = answer.push(token, live.shown.get(token, data), logprob)
        if answer.stop_word is not None:
            return piece, ("stop", "word")
        if is_last and live.sampler.has_ended:
            return piece + answer.flush(), ("stop", "eos")
        if sequence.n_remain(self._decoder.n_ctx_slot) <= 0:
            return piece + answer.flush(), ("length", "limit")
        return piece, None

    def _bytes_of(self, token: int) -> bytes | None:
        """What a token adds to the text; None = it ends the text. Remembered: two native calls a token would be felt."""
        if token not in self._pieces:
            self._pieces[token] = None if self._vocab.is_eog(token) else self._vocab.piece(token)
        return self._pieces[token]

    def _shown_by(self, names: tuple[str, ...]) -> dict[int, bytes]:
        """What control tokens of these names add to a text that shows them. Names that are no control tokens are ignored."""
        if not names:
            return {}
        if names not in self._shown:
            if len(self._shown) >= MAX_SHOWN:
                self._shown.clear()
            found = {}
            for name in names:
                tokens = self._vocab.tokenize(name, add_special=False, parse_special=True)
                if len(tokens) == 1 and self._vocab.piece(tokens[0], special=True) == name.encode() and not self._bytes_of(tokens[0]):
                    found[tokens[0]] = name.encode()
            self._shown[names] = found
        return self._shown[names]

    # ---- endings -----------------------------------------------------------------------------------------------

    def finish(self, live: Live, reason: FinishReason, stop_type: StopType, now: float) -> None:
        """The end of a sequence that runs."""
        self._tell_end(live, reason, stop_type, now)
        self._report.rates.finished(now, now - live.started_at)
        self._drop(live)

    def finish_aside(self, entry: PutAside, reason: FinishReason, stop_type: StopType, now: float) -> None:
        """The end of one that was put aside and has been taken out of the queue."""
        live = self.live[entry.id]
        self._tell_end(live, reason, stop_type, now)
        self._forget(live)

    def _tell_end(self, live: Live, reason: FinishReason, stop_type: StopType, now: float) -> None:
        if stop_type == "timeout" and (piece := live.answer.flush()):
            self._report.event(piece.delta(live.sequence.id))
        self._report.end(live.finished(reason, stop_type, now))

    def _fail_draw(self, live: Live, error: Exception) -> None:
        constraint = live.sequence.request.constraint
        if isinstance(error, ConstraintFault) and constraint is not None:
            message = f"{constraint.param}: the answer cannot be continued: {error}"
            self._report.end(Failed(id=live.sequence.id, kind="invalid", message=message, param=constraint.param))
            self._drop(live)
            return
        logger.error("sampling failed", exc_info=error)
        self._fail(live, "no token could be drawn for this request")

    def _fail(self, live: Live, message: str) -> None:
        self._report.end(Failed(id=live.sequence.id, kind="internal", message=message))
        self._drop(live)

    def _drop(self, live: Live) -> None:
        self._forget(live)
        self._report.slots_moved = True
        self._scheduler.release(live.sequence)

    def _forget(self, live: Live) -> None:
        del self.live[live.sequence.id]
        live.sampler.close()
        if self._guesser is not None:
            self._guesser.forget(live.sequence.id)
