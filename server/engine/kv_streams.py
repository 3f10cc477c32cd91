"""The KV store of a decoder that has a stream of cells for each slot: sharing is copying, and taken slots are kept neighbours.

Streams batch only consecutive slot ids, so a gap between taken slots is one graph more in every step.
"""

from __future__ import annotations

from server.engine.cells import OwnCells
from server.engine.placement import copy_cost, gap, more_graphs
from server.engine.ports import Decoder, State
from server.engine.slots import WORTH_SAVING, SlotStore


class StreamStore(SlotStore[OwnCells]):
    """Implements `kv.KvStore`. Every slot of the decoder may run."""

    n_ctx_pool = None

    def __init__(self, decoder: Decoder, *, ram_limit: int) -> None:
        """`ram_limit`: bytes of host memory for saved states."""
        super().__init__(decoder, OwnCells(decoder.n_slots), n_running=decoder.n_slots, ram_limit=ram_limit)

    def room(self) -> int:
        return self.n_ctx_slot

    def _n_graphs(self, slot: int) -> int:
        return more_graphs(slot, self._taken)

    def _copy_cost(self, slot: int) -> float:
        return copy_cost(self._cells.held(slot))

    def hole(self) -> tuple[int, int] | None:
        return gap(self._taken, self._decoder.n_slots)

    def move(self, source: int, target: int) -> bool:
        if source not in self._taken or target in self._taken:
            return False
        idle = self._cache.entry(target)
        state: State | None = None
        if self._n_lost(target, 0) >= WORTH_SAVING:
            # It changes places with what is moved, rather than be lost.
            state = self._decoder.save(target)
            if state is None:
                return False
        moved = self._moved(source, target)
        place = source if moved else target
        if moved:
            self._taken.remove(source)
            self._taken.add(target)
            self._used_at[source], self._used_at[target] = self._used_at[target], self._used_at[source]
        if state is not None and idle is not None and self._restore(place, state, len(idle.tokens)):
            self._cache.hold(place, idle.namespace, idle.tokens[: self._cells.held(place)])
            self._keep_entry_true(place)
        return moved

    def _moved(self, source: int, target: int) -> bool:
        """Copy all cells of `source` over those of `target`, and empty it. False = `target` is empty, `source` as it was."""
        self.cut(target, 0)
        n_cells = self._cells.held(source)
        if n_cells:
            self._copy(source, target, n_cells)
            if self._cells.held(target) != n_cells:
                self.cut(target, 0)
                return False
        self._cache.drop(target)
        self._cache.move(source, target)
        self.cut(source, 0)
        return True
