"""The KV store of a decoder whose slots draw on one pool of cells: sharing is free, and idle prefixes go when cells run out.

There are more slots than requests run at once; the others hold prefixes.
"""

from __future__ import annotations

from server.engine.cells import SharedCells
from server.engine.ports import Decoder
from server.engine.slots import SlotStore


class PoolStore(SlotStore[SharedCells]):
    """Implements `kv.KvStore`. Its account of cells is exact, since the decoder gives none."""

    def __init__(self, decoder: Decoder, *, n_running: int, ram_limit: int) -> None:
        """At most `n_running` slots are taken at once. `ram_limit`: bytes of host memory for saved states."""
        super().__init__(decoder, SharedCells(decoder.n_slots), n_running=n_running, ram_limit=ram_limit)

    @property
    def n_ctx_pool(self) -> int:
        return self._decoder.n_cells

    def room(self) -> int:
        return self._decoder.n_cells - self._cells.used_by(self._taken)

    def make_room(self, n_cells: int) -> bool:
        if n_cells > self.room():
            return False
        while self._decoder.n_cells - self._cells.n_used < n_cells:
            slot = self._next_to_go()
            if slot is None:
                return False
            self._empty(slot)
        return True

    def _next_to_go(self) -> int | None:
        """The idle slot that is given up next; None = all cells in use are those of taken slots.

        One whose cells all belong to others too frees nothing by itself. Where longer ones serve as well it may go in its turn; where
        only whole contents can be reused it is kept as long as others free something.
        """
        idle = [slot for slot in range(self._decoder.n_slots) if slot not in self._taken and self._cells.held(slot)]
        whole = self._cache.whole
        return min(idle, key=lambda slot: (whole and self._cells.gain(slot) == 0, self._used_at[slot]), default=None)
