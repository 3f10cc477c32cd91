"""Which free slot a request gets. Pure; knows slots and their tokens, no queue, no decoder.

All costs are in tokens of prefill, which is what a wrong choice is paid in.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from server.engine.request import Sequence

KEEP_WEIGHT = 0.25
"""A token in an idle slot is worth this many tokens of prefill just after its use; half of it after n_slots further admissions."""
HOLE_COST = 64
"""Running slots that are not neighbours decode in separate graphs; one graph more is worth this much prefill."""
_STRIDE = 512


@dataclass(slots=True, eq=False)
class Slot:
    """`tokens` are those in the cells while nobody runs here; a running sequence knows its own."""

    id: int
    tokens: list[int] = field(default_factory=list)
    sequence: Sequence | None = None
    last_used: int = 0
    """Admission count when it was last given up."""

    @property
    def n_cells(self) -> int:
        return self.sequence.n_computed if self.sequence else len(self.tokens)


def common_prefix(a: list[int], b: list[int]) -> int:
    """Length of the longest common beginning."""
    n = min(len(a), len(b))
    start = 0
    while start < n and a[start : min(start + _STRIDE, n)] == b[start : min(start + _STRIDE, n)]:
        start += _STRIDE
    for index in range(start, min(start + _STRIDE, n)):
        if a[index] != b[index]:
            return index
    return n


def choose_slot(slots: list[Slot], prompt: list[int], *, reuse: bool, admissions: int) -> tuple[Slot, int]:
    """The cheapest free slot for `prompt` and how many of its cells can stay (never the last prompt token: it has to be evaluated).

    What counts: tokens to compute, idle content destroyed (less the longer it has been idle), and whether the running slots stay
    neighbours. Equal costs: the lowest id. `slots` holds at least one free slot.
    """
    running = {slot.id for slot in slots if slot.sequence is not None}
    best: tuple[float, int] | None = None
    choice = (slots[0], 0)
    for slot in slots:
        if slot.sequence is not None:
            continue
        kept = min(common_prefix(slot.tokens, prompt), len(prompt) - 1) if reuse and slot.tokens else 0
        lost = (len(slot.tokens) - kept) * KEEP_WEIGHT * 0.5 ** ((admissions - slot.last_used) / len(slots))
        graphs = (1 - _adjacent(slot.id, running)) if running else 0
        cost = (len(prompt) - kept) + lost + HOLE_COST * graphs
        if best is None or (cost, slot.id) < best:
            best, choice = (cost, slot.id), (slot, kept)
    return choice


def _adjacent(slot_id: int, running: Iterable[int]) -> int:
    return sum(neighbour in running for neighbour in (slot_id - 1, slot_id + 1))
