"""How many cells each slot holds, and how many are in use in all. Pure arithmetic; knows no token, no decoder and no clock.

The native cache tells neither, so what is counted here has to be exact: a cell is in use until its last holder lets go of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Cells(Protocol):
    """An account. Slots are 0..n-1; all begin empty."""

    @property
    def n_used(self) -> int:
        """Cells in use, each once."""
        ...

    def held(self, slot: int) -> int: ...

    def put(self, slot: int, n_cells: int) -> None:
        """The slot holds so many now: fewer = the last ones were given up, more = new ones were computed."""
        ...

    def copy(self, source: int, target: int, n_cells: int) -> None:
        """The first `n_cells` of `source` are now all that `target` holds."""
        ...


class OwnCells:
    """Each slot has its own cells: a copy is a copy."""

    def __init__(self, n_slots: int) -> None:
        self._held = [0] * n_slots
        self.n_used = 0

    def held(self, slot: int) -> int:
        return self._held[slot]

    def put(self, slot: int, n_cells: int) -> None:
        self.n_used += n_cells - self._held[slot]
        self._held[slot] = n_cells

    def copy(self, source: int, target: int, n_cells: int) -> None:
        self.put(target, n_cells)


class _Span:
    """Cells `above.end` to `end`, held by every slot that ends here or in a span below; `n_below` counts those slots and spans."""

    __slots__ = ("above", "end", "n_below")

    def __init__(self, above: _Span | None, end: int) -> None:
        self.above, self.end, self.n_below = above, end, 0
        if above is not None:
            above.n_below += 1

    @property
    def start(self) -> int:
        return 0 if self.above is None else self.above.end

    def absorb(self) -> None:
        """Take over the spans above that nobody else needs: there are never many on the way up."""
        while self.above is not None and self.above.above is not None and self.above.n_below == 1:
            self.above = self.above.above


class SharedCells:
    """One pool: copies share cells. Since only beginnings are shared and all that is new is appended, spans of cells form a tree."""

    def __init__(self, n_slots: int) -> None:
        self._root = _Span(None, 0)
        self._last = [self._root] * n_slots
        self.n_used = 0

    def held(self, slot: int) -> int:
        return self._last[slot].end

    def put(self, slot: int, n_cells: int) -> None:
        last = self._last[slot]
        if n_cells > last.end:
            if last.n_below > 1 or last is self._root:
                self._settle(slot, last := _Span(last, last.end))
            self.n_used += n_cells - last.end
            last.end = n_cells
        elif n_cells < last.end:
            self._settle(slot, self._at(last, n_cells))

    def copy(self, source: int, target: int, n_cells: int) -> None:
        self._settle(target, self._at(self._last[source], n_cells))

    def gain(self, slot: int) -> int:
        """Cells that nobody holds any more once this slot is emptied."""
        span, end = self._last[slot], self._last[slot].end
        while span.above is not None and span.n_below == 1:
            span = span.above
        return end - span.end

    def used_by(self, slots: Iterable[int]) -> int:
        """Cells that these slots hold, each once."""
        seen, n_cells = {self._root}, 0
        for slot in slots:
            span = self._last[slot]
            while span not in seen:
                span.absorb()
                seen.add(span)
                n_cells += span.end - span.start
                assert span.above is not None
                span = span.above
        return n_cells

    def _at(self, span: _Span, n_cells: int) -> _Span:
        """The span that ends after `n_cells` on the way to `span`; one is cut in two if there is none."""
        span.absorb()
        while span.above is not None and span.start >= n_cells:
            span = span.above
            span.absorb()
        if span.end == n_cells or span.above is None:
            return span
        upper = _Span(span.above, n_cells)
        span.above.n_below -= 1
        span.above = upper
        upper.n_below += 1
        return upper

    def _settle(self, slot: int, span: _Span) -> None:
        """The slot ends at `span` now; what nobody holds any more is free."""
        left, self._last[slot] = self._last[slot], span
        span.n_below += 1
        left.n_below -= 1
        while left.above is not None and left.n_below == 0:
            self.n_used -= left.end - left.start
            left = left.above
            left.n_below -= 1
