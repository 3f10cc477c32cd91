"""The account of cells agrees with counting each cell, whatever is computed, shared and given up in whatever order."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.cells import OwnCells, SharedCells

N = 5
SLOT = st.integers(0, N - 1)
CALLS = st.lists(st.tuples(st.sampled_from(["put", "copy"]), SLOT, SLOT, st.integers(0, 12)), min_size=8, max_size=60)


@settings(max_examples=300)
@given(CALLS, st.sets(SLOT))
def test_shared_cells_are_counted_once(calls: list[tuple[str, int, int, int]], some: set[int]) -> None:
    account, new = SharedCells(N), itertools.count()
    cells: list[list[int]] = [[] for _ in range(N)]
    for call, slot, other, n in calls:
        if call == "put":
            account.put(slot, n)
            cells[slot] = cells[slot][:n] + [next(new) for _ in range(n - len(cells[slot]))]
        elif slot != other:
            n = min(n, len(cells[slot]))
            account.copy(slot, other, n)
            cells[other] = cells[slot][:n]
        assert account.n_used == len(set().union(*cells))
        assert [account.held(slot) for slot in range(N)] == [len(held) for held in cells]
        assert account.used_by(some) == len(set().union(*(cells[slot] for slot in some)))
        for slot in range(N):
            others = set().union(*(cells[other] for other in range(N) if other != slot))
            assert account.gain(slot) == len(set(cells[slot]) - others)
    for slot in range(N):
        account.put(slot, 0)
    assert account.n_used == 0


@given(CALLS)
def test_own_cells_are_counted_for_each(calls: list[tuple[str, int, int, int]]) -> None:
    account, held = OwnCells(N), [0] * N
    for call, slot, other, n in calls:
        if call == "put":
            account.put(slot, n)
            held[slot] = n
        else:
            account.copy(slot, other, n)
            held[other] = n
        assert account.n_used == sum(held) and [account.held(slot) for slot in range(N)] == held


def test_the_way_up_stays_short() -> None:
    """A prefix that was cut in many places while others shared it is one piece again once they are gone."""
    account = SharedCells(2)
    account.put(0, 1000)
    for n in range(999, 0, -1):
        account.copy(0, 1, n)
    account.put(1, 0)
    assert account.used_by([0]) == 1000
    span, steps = account._last[0], 0
    while span.above is not None:
        span, steps = span.above, steps + 1
    assert steps <= 2
