"""A request goes where it recomputes least, destroys least and keeps the taken slots neighbours."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.engine.placement import Place, cheapest, gap, more_graphs, worth


def test_empty_slots_fill_from_the_lowest() -> None:
    assert cheapest([Place(2), Place(0), Place(1)], 0.0) == (0, False)


def test_own_content_is_used_unless_more_can_be_had_elsewhere() -> None:
    assert cheapest([Place(0), Place(1, n_own=50)], 20.0) == (1, True)
    assert cheapest([Place(0), Place(1, n_own=50)], 80.0) == (0, False)


def test_of_two_slots_the_less_useful_content_goes() -> None:
    places = [Place(0, lost_rest=9.0, lost_all=9.0), Place(1, lost_rest=3.0, lost_all=3.0)]
    assert cheapest(places, 5.0) == (1, False)


def test_own_content_is_not_torn_from_a_long_rest_where_an_empty_slot_can_be_given_a_copy() -> None:
    assert cheapest([Place(0, n_own=40, lost_rest=100.0, lost_all=110.0), Place(1)], 39.0) == (1, False)


def test_a_neighbour_is_preferred_to_a_few_cached_tokens() -> None:
    assert cheapest([Place(1, n_graphs=0), Place(5, n_own=30, n_graphs=1)], 0.0) == (1, False)
    assert cheapest([Place(1, n_graphs=0), Place(5, n_own=90, n_graphs=1)], 0.0) == (5, True)


def test_one_graph_more_beside_none_none_beside_one_one_less_between_two() -> None:
    assert [more_graphs(slot, {2, 4}) for slot in (0, 1, 3, 5, 6)] == [1, 0, -1, 0, 1]
    assert more_graphs(3, set()) == 0


def test_idle_content_loses_half_its_worth_with_as_many_uses_as_there_are_slots() -> None:
    assert worth(100, 8, 8) == worth(100, 0, 8) / 2 > 0


@given(st.integers(1, 24).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_gaps_are_closed_with_the_fewest_moves(case: tuple[int, set[int]]) -> None:
    n_slots, taken = case
    taken = set(taken)
    n = len(taken)
    least = min((n - len(taken & set(range(first, first + n))) for first in range(n_slots - n + 1)), default=0)
    moves = 0
    while (found := gap(taken, n_slots)) is not None:
        source, target = found
        assert source in taken and target not in taken and 0 <= target < n_slots
        taken = taken - {source} | {target}
        moves += 1
        assert moves <= least
    assert moves == least and (not taken or max(taken) - min(taken) == n - 1)
