"""Where cells live, as the scheduler sees it: slots that are taken, shared, put aside and given back. Knows no policy and no clock.

Two stores stand behind it: `kv_streams.py` (a stream of cells per slot, sharing is copying) and `kv_pool.py` (one pool, sharing is free).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from server.engine.ports import State


@dataclass(frozen=True, slots=True)
class Attached:
    """A slot for a request: its first `n_cached` cells hold the beginning of the prompt; `n_copied` of them came from elsewhere."""

    slot: int
    n_cached: int
    n_copied: int = 0


@dataclass(frozen=True, slots=True)
class KvFigures:
    """Cells in use (each once, however many share it), cells in all, and what is saved in host memory."""

    n_used: int
    n_cells: int
    n_saved: int
    ram_bytes: int
    ram_limit: int


class KvStore(Protocol):
    """A slot is free (perhaps with a reusable prefix in it) or taken by one request; only the calls below change which.

    The caller computes: after a decode it says so by `grew`. Tokens given as a list are those in the slot's cells, from the first on.
    """

    @property
    def n_ctx_slot(self) -> int:
        """Cells one request can hold at most."""
        ...

    @property
    def n_ctx_pool(self) -> int | None:
        """Cells that all requests share; None: each slot has its own and nobody can run out of another's."""
        ...

    def longest(self, namespace: str, tokens: Seq[int]) -> int:
        """How many tokens of a prompt could be attached now. Costs a walk down a tree."""
        ...

    def room(self) -> int:
        """Cells that are free, or become free by giving up idle prefixes. Without a pool: all cells of a slot."""
        ...

    def attach(self, namespace: str, tokens: Seq[int], *, reuse: bool) -> Attached | None:
        """Take a free slot for this prompt, with the longest beginning of it that any slot, idle or taken, or a saved state holds (never
        the last token: it has to be evaluated). `reuse` False: an empty slot. What it displaces is saved if it is worth it.

        None = no slot is free.
        """
        ...

    def share(self, source: int, target: int, n_tokens: int) -> int:
        """Give the taken slot `target`, which holds fewer, the first `n_tokens` cells of `source`. Returns what it holds now."""
        ...

    def grew(self, slot: int, n_tokens: int) -> None:
        """A decode has left `n_tokens` cells in the taken slot."""
        ...

    def cut(self, slot: int, n_tokens: int) -> int:
        """Keep the first `n_tokens` cells of a taken slot. Returns how many are left: fewer where the model cannot rewind."""
        ...

    def held(self, slot: int) -> int:
        """Cells the native cache holds for the slot."""
        ...

    def publish(self, slot: int, namespace: str, tokens: Seq[int]) -> None:
        """These are in the taken slot's cells and stay there: others may copy them from now on."""
        ...

    def release(self, slot: int, namespace: str, tokens: Seq[int], *, keep: bool) -> None:
        """The request is over. `keep`: its cells stay findable until the slot is needed."""
        ...

    def swap_out(self, slot: int) -> State | None:
        """Save the cells of a taken slot and free it. None = freed, but not saved (no memory left for it, or the model cannot)."""
        ...

    def swap_in(self, state: State | None, n_tokens: int) -> tuple[int, int] | None:
        """Take a free slot for a state of `n_tokens` cells. Returns slot and cells that are there, 0 if it could not be restored.

        None = no slot is free.
        """
        ...

    def forget(self, state: State | None) -> None:
        """A swapped state will not be needed any more."""
        ...

    def make_room(self, n_cells: int) -> bool:
        """Pool: give up idle prefixes, least recently used first, until `n_cells` are free. False = not even then."""
        ...

    def hole(self) -> tuple[int, int] | None:
        """Streams: (a taken slot, a free one) such that moving the first to the second brings the taken ones closer together."""
        ...

    def move(self, source: int, target: int) -> bool:
        """Move a taken slot's cells to a free slot, which is then taken. False = not possible; nothing has changed."""
        ...

    def figures(self) -> KvFigures: ...
