"""Where a draft model keeps which text: a sequence keeps its cells when it moves, and no two share a slot."""

from __future__ import annotations

import random

from server.llama.draft import _MOST_GUESSES, _Places, together
from server.llama.fit import Needs
from server.tokens import common_prefix


def test_sequences_keep_their_cells_while_they_run_and_move() -> None:
    """Five streams in five slots grow, end, begin and change the decoder's slot; only those that begin find other cells than theirs."""
    source = random.Random(3)
    held: list[list[int]] = [[] for _ in range(5)]
    places = _Places(held)
    system = list(range(200))  # all begin alike, so a common beginning says nothing about who is who
    streams: dict[int, list[int]] = {}
    for turn in range(400):
        for slot in range(5):
            if slot not in streams and source.random() < 0.5:
                streams[slot] = [*system, *(10_000 * turn + 1000 * slot + i for i in range(100))]
            elif slot in streams and source.random() < 0.05:
                del streams[slot]
        if len(streams) >= 2 and source.random() < 0.3:
            one, other = source.sample(sorted(streams), 2)
            streams[one], streams[other] = streams[other], streams[one]
        asked = [slot for slot in streams if source.random() < 0.9]
        before = {slot: max(common_prefix(cells, streams[slot]) for cells in held) for slot in asked}
        found = places.find([(slot, streams[slot], 4) for slot in asked])
        assert None not in found and len(set(found)) == len(found)
        for slot, place in zip(asked, found, strict=True):
            assert place is not None
            if before[slot] > len(system):
                assert common_prefix(held[place], streams[slot]) == before[slot], f"turn {turn}"
            streams[slot] = [*streams[slot], source.randrange(9)]
            held[place][:] = [*streams[slot], *(source.randrange(9) for _ in range(source.randrange(_MOST_GUESSES)))]


def test_where_there_are_more_sequences_than_slots_some_get_none() -> None:
    places = _Places([[], []])
    found = places.find([(slot, [slot], 1) for slot in range(5)])
    assert sorted(place for place in found if place is not None) == [0, 1]


def test_the_memory_of_both_is_counted() -> None:
    both = together(Needs(4096, 1000, 20, 300, 5000, 6000, 64), Needs(2048, 7, 6, 5, 4, 3, 2))
    assert both == Needs(4096, 1007, 26, 305, 5004, 6003, 64)
