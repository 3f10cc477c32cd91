"""Prompt lookup proposes what a plain search would find, once read never reads again, and continues a period past the end."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from server.engine.ngram import LEAST, LONGEST, NgramIndex


def search(tokens: list[int], most: int) -> list[int]:
    """The longest match of the text's end with an earlier place, the latest of equal ones, by trying all of them."""
    n, best, length = len(tokens), 0, 0
    for end in range(n - 1, 0, -1):
        agreed = 0
        while agreed < min(LONGEST, end) and tokens[end - 1 - agreed] == tokens[n - 1 - agreed]:
            agreed += 1
        if agreed >= LEAST and agreed > length:
            best, length = end, agreed
    if not length:
        return []
    period = n - best
    found = tokens[best : best + most]
    while len(found) < most and length >= min(period, LONGEST):
        found.append(found[-period])
    return found


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), max_size=20), st.integers(1, 9))
def test_it_finds_what_a_search_finds(prompt: list[int], rest: list[int], most: int) -> None:
    """Texts short enough that no chain is longer than is looked at: then nothing is missed, however often it was asked before."""
    index = NgramIndex()
    tokens = list(prompt)
    for token in [*rest, 0]:
        proposal = index.propose(tokens, most)
        if tokens.count(tokens[-1] if tokens else 0) <= 16:
            assert proposal == search(tokens, most)
        assert len(proposal) <= most and (index.match >= LEAST) == bool(proposal)
        tokens.append(token)


def test_the_longest_match_counts_and_of_equal_ones_the_latest() -> None:
    index = NgramIndex()
    text = [9, 1, 2, 3, 50, 7, 1, 2, 3, 60, 8, 1, 2, 3, 70, 9, 1, 2, 3]
    assert index.propose(text, 1) == [50] and index.match == 4
    text = [9, 1, 2, 3, 50, 7, 1, 2, 3, 60, 8, 1, 2, 3]
    assert NgramIndex().propose(text, 4) == [60, 8, 1, 2]


def test_a_match_that_is_not_a_period_ends_with_the_text() -> None:
    """3 tokens agree at a distance of 5: nothing says that what lies between comes again after them."""
    assert NgramIndex().propose([1, 2, 3, 4, 5, 1, 2, 3], 8) == [4, 5, 1, 2, 3]


def test_a_period_goes_on() -> None:
    assert NgramIndex().propose([1, 2, 3, 1, 2, 3], 8) == [1, 2, 3, 1, 2, 3, 1, 2]
    assert NgramIndex().propose([5] * 4, 6) == [5] * 6


def test_new_text_proposes_nothing() -> None:
    index = NgramIndex()
    assert index.propose([], 8) == index.propose([1, 2], 8) == index.propose(list(range(1, 60)), 8) == []
    assert index.propose([*range(1, 60), 1, 2, 3], 0) == []


def test_a_long_prompt_is_read_in_parts_and_then_known() -> None:
    source = random.Random(1)
    tokens = [source.randrange(50_000) for _ in range(30_000)]
    copied = tokens[20_000:20_030]
    text = tokens + copied
    index = NgramIndex()
    calls = 1
    while not (found := index.propose(text, 8)):
        calls += 1
        assert calls < 10
    assert calls > 1 and found == tokens[20_030:20_038] and index.match == LONGEST


def test_ids_of_any_size_are_told_apart() -> None:
    high = 1 << 20
    assert NgramIndex().propose([high + 1, 2, 3, 40, 1, 2, 3], 2) == []
    assert NgramIndex().propose([high + 1, 2, 3, 40, high + 1, 2, 3], 1) == [40]


def test_memory_is_a_few_bytes_a_token() -> None:
    tokens = list(range(20_000))
    index = NgramIndex()
    for _ in range(5):
        index.propose(tokens, 8)
    n_bytes = sum(part.itemsize * len(part) for part in (index._latest, index._earlier))
    assert len(index._earlier) == len(tokens) + 1 and n_bytes <= 16 * len(tokens)
