"""Guesses ahead for running streams: which tokens the next step shall verify, and whether that has paid. Knows no batch and no queue."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from server.engine.pace import StepCost
from server.engine.ports import DraftModel
from server.engine.request import Sequence
from server.engine.speculation import PromptLookup, Speculation

_MEMORY = 0.9
"""What is known of a draft model's pace still counts for so much when it has guessed again."""


class Guesser:
    """`most` guesses for one sequence in one step; with a `draft` model from it, else from the sequence's own text."""

    def __init__(
        self,
        most: int,
        cost: StepCost,
        n_ctx_slot: int,
        draft: DraftModel | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._most = most
        self._cost = cost
        self._n_ctx = n_ctx_slot
        self._draft = draft
        self._clock = clock
        self._draft_seconds: float | None = None
        """For one token of the draft model."""
        self._controls: dict[int, Speculation] = {}
        self._lookups: dict[int, PromptLookup] = {}

    def guess(self, running: Iterable[Sequence]) -> None:
        """Set `drafts` of every stream that is about to decode."""
        streams = [sequence for sequence in running if sequence.is_decoding and not sequence.paused]
        for sequence in streams:
            sequence.drafts = []
        if self._draft is None:
            self._look_up(streams)
        else:
            self._ask(self._draft, streams)

    def _look_up(self, streams: list[Sequence]) -> None:
        n_streams = len(streams)

        def seconds(extra: int) -> float | None:
            return self._cost.seconds(n_streams + extra, 0)

        for sequence in streams:
            if most := self._allowed(sequence):
                lookup = self._lookups.setdefault(sequence.id, PromptLookup(self._most))
                sequence.drafts = lookup.guess(sequence.tokens, most, seconds, n_streams)

    def _ask(self, draft: DraftModel, streams: list[Sequence]) -> None:
        n_streams, per_guess = len(streams), self._draft_seconds or 0.0

        def seconds(extra: int) -> float | None:
            step = self._cost.seconds(n_streams + extra, 0)
            return None if step is None else step + extra * per_guess

        wanted: list[tuple[Sequence, int]] = []
        for sequence in streams:
            if most := self._allowed(sequence):
                control = self._controls.setdefault(sequence.id, Speculation(self._most))
                if n := min(most, control.n_draft(seconds, n_streams)):
                    wanted.append((sequence, n))
        if not wanted:
            return
        begun = self._clock()
        proposals = draft.propose([(sequence.slot, sequence.tokens, n) for sequence, n in wanted])
        for (sequence, _), drafts in zip(wanted, proposals, strict=True):
            sequence.drafts = drafts
        self._note_pace(sum(map(len, proposals)), self._clock() - begun)

    def _note_pace(self, n_guesses: int, seconds: float) -> None:
        if n_guesses:
            now = seconds / n_guesses
            before = self._draft_seconds
            self._draft_seconds = now if before is None else _MEMORY * before + (1 - _MEMORY) * min(now, 4 * before)

    def _allowed(self, sequence: Sequence) -> int:
        request = sequence.request
        most = self._most if request.n_draft_max < 0 else min(self._most, request.n_draft_max)
        # The last token that it may generate is drawn, not guessed.
        return max(0, min(most, sequence.n_remain(self._n_ctx) - 1))

    def verified(self, sequence: Sequence, n_proposed: int, n_accepted: int) -> None:
        """Of the guesses that a step has verified, the first `n_accepted` were right."""
        control = self._controls.get(sequence.id) or self._lookups.get(sequence.id)
        if control is not None:
            control.observe(n_proposed, n_accepted)

    def forget(self, request_id: int) -> None:
        """The request is over."""
        self._controls.pop(request_id, None)
        self._lookups.pop(request_id, None)
