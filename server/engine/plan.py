"""What one step computes: every sequence that is one token behind, then prompt chunks in what the token budget leaves. Pure."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from operator import attrgetter

from server.engine.ports import Row
from server.engine.request import Sequence


@dataclass(frozen=True, slots=True)
class Limits:
    """What the decoder can take, and how much prefill may stand beside running streams. `n_slots`: requests that run at once."""

    n_slots: int
    n_ctx_slot: int
    n_batch: int
    n_ubatch: int
    max_output_rows: int
    max_prefills: int = 4
    """Most requests whose prompts are computed in one step."""


@dataclass(frozen=True, slots=True)
class Share:
    """`n_tokens` of a sequence are computed, and `n_drafts` guesses behind them; `row` = first batch row to draw from, -1 = none."""

    sequence: Sequence
    n_tokens: int
    row: int
    n_drafts: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Shares and rows come sorted by slot. `n_decode` rows, guesses included, belong to streams, `n_prefill` to prompts."""

    shares: list[Share]
    rows: list[Row]
    n_decode: int
    n_prefill: int


@dataclass(slots=True)
class _Amount:
    sequence: Sequence
    n_tokens: int
    sampled: bool
    n_drafts: int = 0


Budget = Callable[[int], int]
"""Rows of streams in a step -> prompt tokens that may stand beside them."""


def plan_step(ready: Seq[Sequence], behind: Seq[Sequence], limits: Limits, budget: Budget) -> StepPlan:
    """Plan one step. `ready` lack one token each; `behind` lack more, most urgent first. Not both are empty."""
    ready = _chosen(ready, limits, some_behind=bool(behind))
    amounts = [_Amount(sequence, 1, sequence.wants_token) for sequence in ready]
    n_decode = len(amounts) + _add_drafts(amounts, limits, spare=1 if behind else 0)
    n_outputs = sum(amount.sampled + amount.n_drafts for amount in amounts)
    chunks = _chunks(behind, limits, most=min(budget(n_decode), limits.n_batch - n_decode), n_outputs=n_outputs)
    return _laid_out(amounts + chunks, n_decode, sum(chunk.n_tokens for chunk in chunks))


def _laid_out(amounts: list[_Amount], n_decode: int, n_prefill: int) -> StepPlan:
    amounts.sort(key=lambda amount: amount.sequence.slot)
    shares: list[Share] = []
    rows: list[Row] = []
    for amount in amounts:
        sequence, n_tokens = amount.sequence, amount.n_tokens
        slot, tokens, first = sequence.slot, sequence.tokens, sequence.n_computed
        last = first + n_tokens - 1
        rows += [Row(slot, pos, tokens[pos], False) for pos in range(first, last)]
        rows.append(Row(slot, last, tokens[last], amount.sampled))
        shares.append(Share(sequence, n_tokens, len(rows) - 1 if amount.sampled else -1, amount.n_drafts))
        rows += [Row(slot, last + 1 + i, guess, True) for i, guess in enumerate(sequence.drafts[: amount.n_drafts])]
    return StepPlan(shares, rows, n_decode, n_prefill)


def _chosen(ready: Seq[Sequence], limits: Limits, *, some_behind: bool) -> Seq[Sequence]:
    """If a batch cannot take all that are ready, those that have waited longest go first."""
    most = min(limits.n_batch, limits.max_output_rows)
    if some_behind and limits.n_batch > 1:
        most = min(most, limits.n_batch - 1)  # prefill is never starved by many streams
    return ready if len(ready) <= most else sorted(ready, key=attrgetter("last_step"))[:most]


def _add_drafts(amounts: list[_Amount], limits: Limits, *, spare: int) -> int:
    """Let guesses in where rows and outputs are left; `spare` of both are kept for a prompt. Returns how many."""
    room = min(limits.n_batch - len(amounts), limits.max_output_rows - sum(amount.sampled for amount in amounts)) - spare
    added = 0
    for amount in amounts:
        if amount.sampled and room > added:
            amount.n_drafts = min(len(amount.sequence.drafts), room - added)
            added += amount.n_drafts
    return added


def _chunks(behind: Seq[Sequence], limits: Limits, *, most: int, n_outputs: int) -> list[_Amount]:
    """Prompt chunks for the first few sequences that are further behind, `most` tokens in all."""
    chunks: list[_Amount] = []
    for sequence in behind[: limits.max_prefills]:
        if most <= 0:
            break
        n_tokens = min(sequence.n_pending, most)
        sampled = n_tokens == sequence.n_pending and sequence.wants_token
        if sampled and n_outputs >= limits.max_output_rows:
            n_tokens, sampled = n_tokens - 1, False  # the last token waits for a step with an output row to spare
        if n_tokens:
            chunks.append(_Amount(sequence, n_tokens, sampled))
        most -= n_tokens
        n_outputs += sampled
    return chunks
