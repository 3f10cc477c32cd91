"""Guesses ahead for running streams: which tokens the next step shall verify, and whether that has paid. Knows no batch and no queue."""

from __future__ import annotations

from collections.abc import Iterable

from server.engine.ngram import NgramIndex
from server.engine.pace import StepCost
from server.engine.ports import DraftModel
from server.engine.request import Sequence
from server.engine.speculation import Speculation


class Guesser:
    """`most` guesses for one sequence in one step; with a `draft` model from it, else from the sequence's own text."""

    def __init__(self, most: int, cost: StepCost, n_ctx_slot: int, draft: DraftModel | None = None) -> None:
        self._most = most
        self._cost = cost
        self._n_ctx = n_ctx_slot
        self._draft = draft
        self._controls: dict[int, Speculation] = {}
        self._indices: dict[int, NgramIndex] = {}

    def guess(self, running: Iterable[Sequence]) -> None:
        """Set `drafts` of every stream that is about to decode."""
        streams = [sequence for sequence in running if sequence.is_decoding and not sequence.paused]
        wanted: list[tuple[Sequence, int]] = []
        for sequence in streams:
            sequence.drafts = []
            if n := self._wanted(sequence, len(streams)):
                wanted.append((sequence, n))
        if self._draft is None:
            for sequence, n in wanted:
                index = self._indices.setdefault(sequence.id, NgramIndex())
                sequence.drafts = index.propose(sequence.tokens, n)
        elif wanted:
            proposals = self._draft.propose([(sequence.slot, sequence.tokens, n) for sequence, n in wanted])
            for (sequence, _), drafts in zip(wanted, proposals, strict=True):
                sequence.drafts = drafts

    def _wanted(self, sequence: Sequence, n_streams: int) -> int:
        request = sequence.request
        most = self._most if request.n_draft_max < 0 else min(self._most, request.n_draft_max)
        # The last token that it may generate is drawn, not guessed.
        most = min(most, sequence.n_remain(self._n_ctx) - 1)
        if most <= 0:
            return 0
        control = self._controls.setdefault(sequence.id, Speculation(self._most))
        return min(most, control.n_draft(lambda extra: self._cost.seconds(n_streams + extra, 0)))

    def verified(self, sequence: Sequence, n_proposed: int, n_accepted: int) -> None:
        if (control := self._controls.get(sequence.id)) is not None:
            control.observe(n_proposed, n_accepted)

    def forget(self, request_id: int) -> None:
        self._controls.pop(request_id, None)
        self._indices.pop(request_id, None)
