"""What one step computes: every sequence that is one token behind, then prompt chunks in what the token budget leaves. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter

from server.engine.ports import Row
from server.engine.request import Sequence


@dataclass(frozen=True, slots=True)
class Limits:
    """What the decoder can take, and how much prefill may stand beside running streams."""

    n_slots: int
    n_ctx_slot: int
    n_batch: int
    n_ubatch: int
    max_output_rows: int
    prefill_chunk: int = 128
    """Most prompt tokens of a step in which somebody decodes: they set the pace of all streams. Measured on two cores, 16 prompts of
    256 tokens at once: 128 takes as long as 512 with a quarter of its longest gap; 64 takes 7 to 15 % longer with two thirds of it."""
    max_prefills: int = 4
    """Most requests whose prompts are computed in one step."""


@dataclass(frozen=True, slots=True)
class Share:
    """`n_tokens` of a sequence are computed; `row` = batch row to sample from, -1 = none."""

    sequence: Sequence
    n_tokens: int
    row: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Shares and rows come sorted by slot."""

    shares: list[Share]
    rows: list[Row]


def plan_step(runnable: list[Sequence], limits: Limits) -> StepPlan:
    """Plan one step for `runnable` sequences (in order of admission, each with something pending)."""
    amounts = [(sequence, 1, sequence.wants_token) for sequence in _ready(runnable, limits)]
    amounts += _chunks(runnable, limits, n_rows=len(amounts), n_outputs=sum(wants for _, _, wants in amounts))
    amounts.sort(key=lambda amount: amount[0].slot)
    shares: list[Share] = []
    rows: list[Row] = []
    for sequence, n_tokens, sampled in amounts:
        slot, tokens, first = sequence.slot, sequence.tokens, sequence.n_computed
        last = first + n_tokens - 1
        rows += [Row(slot, pos, tokens[pos], False) for pos in range(first, last)]
        rows.append(Row(slot, last, tokens[last], sampled))
        shares.append(Share(sequence, n_tokens, len(rows) - 1 if sampled else -1))
    return StepPlan(shares, rows)


def _ready(runnable: list[Sequence], limits: Limits) -> list[Sequence]:
    """The sequences that lack one token. If a batch cannot take all, those that have waited longest go first."""
    ready = [sequence for sequence in runnable if sequence.n_pending == 1]
    most = min(limits.n_batch, limits.max_output_rows)
    if len(ready) < len(runnable) and limits.n_batch > 1:
        most = min(most, limits.n_batch - 1)  # prefill is never starved by many streams
    if len(ready) > most:
        ready = sorted(ready, key=attrgetter("last_step"))[:most]
    return ready


def _chunks(runnable: Iterable[Sequence], limits: Limits, *, n_rows: int, n_outputs: int) -> list[tuple[Sequence, int, bool]]:
    """Prompt chunks for the first few sequences that are further behind, within the budget."""
    behind = [sequence for sequence in runnable if sequence.n_pending > 1]
    streaming = any(sequence.is_decoding for sequence in runnable)
    budget = min(limits.prefill_chunk if streaming else limits.n_ubatch - n_rows, limits.n_batch - n_rows)
    chunks: list[tuple[Sequence, int, bool]] = []
    for sequence in behind[: limits.max_prefills]:
        if budget <= 0:
            break
        n_tokens = min(sequence.n_pending, budget)
        sampled = n_tokens == sequence.n_pending and sequence.wants_token
        if sampled and n_outputs >= limits.max_output_rows:
            n_tokens, sampled = n_tokens - 1, False  # the last token waits for a step with an output row to spare
        chunks.append((sequence, n_tokens, sampled))
        budget -= n_tokens
        n_outputs += sampled
    return chunks
