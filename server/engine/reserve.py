"""How much of a pool is kept free for what running requests may still generate. Pure; where each slot has its own cells it always agrees.

Reserve 1 guarantees that whoever starts can finish; 0 uses all there is and puts somebody aside when it runs out. Whoever has been
put aside `max_preemptions` times comes back only once all that it may still need is free, so nobody is put aside for ever.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from server.engine.kv import KvStore
from server.engine.request import Entry, PutAside, Sequence, start

MARGIN = 32
"""Cells that each running sequence can count on before the next one starts, whatever the reserve."""


@dataclass(slots=True)
class Reserve:
    """`part`: 0 to 1. Pass one instance to one scheduler: it remembers what did not fit, so that it is not tried again in vain."""

    part: float = 1.0
    max_preemptions: int = 3
    _refused: tuple[int, int] = (-1, 0)
    """Who was refused, and how many cells were spare before it got its slot."""

    def fits(self, sequence: Sequence, others: Collection[Sequence], kv: KvStore) -> bool:
        """Whether `sequence`, in its slot already, may stay beside the others. Alone it always may."""
        return kv.n_ctx_pool is None or not others or self.spare(others, kv) >= self._needs(sequence, kv)

    def refuse(self, entry: Entry, spare: int) -> None:
        """It did not fit while so many cells were spare."""
        self._refused = (entry.id, spare)

    def may_try(self, entry: Entry, others: Collection[Sequence], kv: KvStore) -> bool:
        """Whether it is worth giving it a slot to see: not if it was refused with no less room."""
        return kv.n_ctx_pool is None or not others or entry.id != self._refused[0] or self.spare(others, kv) > self._refused[1]

    def can_resume(self, sequence: Sequence, others: Collection[Sequence], kv: KvStore) -> bool:
        """Whether one that was put aside fits beside the others, with all of its cells anew."""
        if kv.n_ctx_pool is None or not others:
            return True
        return self.spare(others, kv) >= sequence.n_computed + self._needs(sequence, kv)

    def would_fit(self, entry: Entry, victim: Sequence, running: Collection[Sequence], kv: KvStore) -> bool:
        """Whether `entry` could start if the victim's cells were free; errs towards no, since cells may be shared."""
        others = [sequence for sequence in running if sequence is not victim]
        if kv.n_ctx_pool is None or not others:
            return True
        if isinstance(entry, PutAside):
            n_needed = entry.sequence.n_computed + self._needs(entry.sequence, kv)
        else:
            n_needed = self._needs(start(entry, -1, 0), kv)
        return self.spare(others, kv) + victim.n_computed >= n_needed

    def spare(self, running: Collection[Sequence], kv: KvStore) -> int:
        """Cells that nobody has and nobody was promised."""
        return 0 if kv.n_ctx_pool is None else kv.room() - sum(self._needs(sequence, kv) for sequence in running)

    def _needs(self, sequence: Sequence, kv: KvStore) -> int:
        """Cells a sequence is promised beyond those it has."""
        n_future = max(0, sequence.n_remain(kv.n_ctx_slot))
        part = 1.0 if sequence.n_preemptions >= self.max_preemptions else self.part
        shared = sequence.follows.n_tokens if sequence.follows else 0
        return len(sequence.tokens) - max(sequence.n_computed, shared) + max(int(part * n_future), min(MARGIN, n_future))
