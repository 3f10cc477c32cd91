"""A running sequence with what the step loop keeps beside it: sampler, answer, times. Knows no queue and no decoder."""

from __future__ import annotations

from dataclasses import dataclass, field

from server.engine.answer import Answer
from server.engine.ports import Sampler
from server.engine.request import Entry, Sequence
from server.protocol import Failed, Finished, FinishReason, GenerationRequest, Prefilled, SlotState, StopType, Timings


@dataclass(slots=True, eq=False)
class Live:
    """Seconds on the engine's clock. `started_at`: it has its slot and waits for nobody; `first_token_at`: the first token was drawn."""

    sequence: Sequence
    sampler: Sampler
    answer: Answer
    started_at: float
    first_token_at: float | None = None
    is_announced: bool = False
    shown: dict[int, bytes] = field(default_factory=dict)
    """Control tokens that this text shows, and as what."""
    n_drafts: int = 0
    n_accepted: int = 0

    def timings(self, now: float) -> Timings:
        sequence, prompt_end = self.sequence, now if self.first_token_at is None else self.first_token_at
        return Timings(
            cache_n=sequence.n_cached,
            prompt_n=max(0, min(sequence.n_highest, sequence.n_prompt) - sequence.n_cached),
            prompt_ms=(prompt_end - self.started_at) * 1e3,
            predicted_n=sequence.n_predicted,
            predicted_ms=(now - prompt_end) * 1e3,
            queue_ms=(self.started_at - sequence.submitted_at) * 1e3,
            draft_n=self.n_drafts,
            draft_n_accepted=self.n_accepted,
            n_preemptions=sequence.n_preemptions,
        )

    def finished(self, reason: FinishReason, stop_type: StopType, now: float) -> Finished:
        sequence = self.sequence
        return Finished(
            id=sequence.id,
            reason=reason,
            stop_type=stop_type,
            stopping_word=self.answer.stop_word or "",
            n_prompt_tokens=sequence.n_prompt,
            n_cached_tokens=sequence.n_cached,
            n_predicted=sequence.n_predicted,
            timings=self.timings(now),
            slot=sequence.slot,
        )

    def prefilled(self, now: float) -> Prefilled:
        sequence = self.sequence
        return Prefilled(
            id=sequence.id,
            processed=min(sequence.n_computed, sequence.n_prompt),
            total=sequence.n_prompt,
            cached=sequence.n_cached,
            time_ms=(now - self.started_at) * 1e3,
        )


def answer_for(request: GenerationRequest) -> Answer:
    return Answer(request.stop, with_tokens=request.return_tokens, with_logprobs=request.n_logprobs is not None)


def cancelled_while_waiting(request_id: int, n_prompt_tokens: int, waited_s: float) -> Finished:
    """The terminal event of a request that never ran."""
    return Finished(
        id=request_id,
        reason="cancelled",
        stop_type="none",
        stopping_word="",
        n_prompt_tokens=n_prompt_tokens,
        n_cached_tokens=0,
        n_predicted=0,
        timings=Timings(queue_ms=waited_s * 1e3),
    )


def expired_while_waiting(entry: Entry, now: float) -> Failed:
    """The terminal event of a request whose deadline came before its turn."""
    message = f"the request was still waiting when its time of {entry.request.timeout_s:g} s had passed"
    return Failed(id=entry.id, kind="timeout", message=f"{message} (it had waited {now - entry.submitted_at:.1f} s)")


def busy(request_id: int, max_queue: int, max_queue_tokens: int = 0, retry_after_s: float | None = None) -> Failed:
    tokens = f" and {max_queue_tokens} prompt tokens (--max-queue-tokens)" if max_queue_tokens else ""
    message = f"all slots are busy, and the queue takes {max_queue} requests (--max-queue){tokens}; try again later"
    return Failed(id=request_id, kind="busy", message=message, retry_after_s=retry_after_s)


def slot_state(slot_id: int, sequence: Sequence | None, n_cells: int, n_ctx: int) -> SlotState:
    if sequence is None:
        return SlotState(id=slot_id, n_ctx=n_ctx, state="idle", n_kv_tokens=n_cells)
    return SlotState(
        id=slot_id,
        n_ctx=n_ctx,
        state=sequence.phase,
        request=sequence.id,
        n_prompt_tokens=sequence.n_prompt,
        n_prompt_processed=min(sequence.n_computed, sequence.n_prompt),
        n_cached_tokens=sequence.n_cached,
        n_decoded=sequence.n_predicted,
        n_remain=sequence.n_remain(n_ctx),
        n_kv_tokens=n_cells,
    )
