"""Which free slot a request gets. Pure arithmetic; knows no queue, no decoder, no tokens.

All costs are in tokens of prefill, which is what a wrong choice is paid in.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from dataclasses import dataclass

KEEP_WEIGHT = 0.25
"""A token in an idle slot is worth this many tokens of prefill just after its use; half of it after each slot was used once more."""
HOLE_COST = 64
"""Running slots that are not neighbours decode in separate graphs; one graph more is worth this much prefill."""
COPY_RATE = 700
"""Cells that are copied, saved or restored in the time of one token of prefill; the call itself costs another one."""


@dataclass(frozen=True, slots=True)
class Place:
    """A free slot that holds the first `n_own` tokens of the prompt. What is lost with the rest of its content: `lost_rest` if
    those stay, `lost_all` if not. `n_graphs`: graphs more (or fewer) in a step if it is taken."""

    slot: int
    n_own: int = 0
    lost_rest: float = 0.0
    lost_all: float = 0.0
    n_graphs: int = 0


def cheapest(places: Iterable[Place], n_elsewhere: float) -> tuple[int, bool]:
    """The slot to take, and whether its own content is used rather than `n_elsewhere` tokens, costs deducted, that any slot can be
    given. Equal costs: own content, then the lowest slot. There is at least one place."""
    best: tuple[float, bool, int] | None = None
    for place in places:
        fetched = HOLE_COST * place.n_graphs + place.lost_all - n_elsewhere
        best = min(best or (fetched, True, place.slot), (fetched, True, place.slot))
        if place.n_own:
            best = min(best, (HOLE_COST * place.n_graphs + place.lost_rest - place.n_own, False, place.slot))
    assert best is not None
    return best[2], not best[1]


def copy_cost(n_cells: int) -> float:
    return 1 + n_cells / COPY_RATE


def worth(n_tokens: int, age: int, n_slots: int) -> float:
    """What idle content is worth that was last used `age` uses of slots ago."""
    return float(n_tokens * KEEP_WEIGHT * 0.5 ** (age / n_slots))


def more_graphs(slot: int, taken: Collection[int]) -> int:
    """How many graphs more a step has if `slot` joins the taken ones: -1, 0 or 1."""
    return 1 - (slot - 1 in taken) - (slot + 1 in taken) if taken else 0


def gap(taken: Collection[int], n_slots: int) -> tuple[int, int] | None:
    """(Taken slot, free slot): the next of the fewest moves after which the taken ones are neighbours. None = they are."""
    places = sorted(taken)
    n_taken = len(places)
    if not places or places[-1] - places[0] < n_taken:
        return None
    starts = sorted({min(slot, n_slots - n_taken) for slot in places})
    first = max(starts, key=lambda start: bisect_left(places, start + n_taken) - bisect_left(places, start))
    window = range(first, first + n_taken)
    return max(slot for slot in places if slot not in window), next(slot for slot in window if slot not in taken)
