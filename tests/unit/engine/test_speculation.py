"""Guesses gain where a text repeats itself, cost next to nothing where it does not, and stop where rows are what a step costs."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.speculation import Acceptance, PromptLookup, Speculation, best_length

# Seconds by rows, as measured with SmolLM2-135M on two cores; linear between.
Q4_1 = ((1, 0.012), (2, 0.018), (4, 0.031), (8, 0.060), (16, 0.115), (40, 0.280))
Q4_0 = ((1, 0.012), (2, 0.017), (4, 0.026), (8, 0.048), (16, 0.094), (40, 0.230))
Table = tuple[tuple[int, float], ...]


def seconds(table: Table, rows: int) -> float:
    (left, low), (right, high) = next(pair for pair in zip(table, table[1:], strict=False) if rows <= pair[1][0])
    return low + (high - low) * (rows - left) / (right - left)


def speed(text: list[int], n_prompt: int, table: Table, most: int = 8) -> float:
    """One stream says `text` behind its prompt: how many times faster with guesses than without."""
    lookup = PromptLookup(most)
    spent, at = 0.0, n_prompt
    while at < len(text):
        drafts = lookup.guess(text[:at], most, lambda k: seconds(table, 1 + k))
        n_right = next((i for i, guess in enumerate(drafts) if text[at + i : at + i + 1] != [guess]), len(drafts))
        if drafts:
            lookup.observe(len(drafts), n_right)
        spent += seconds(table, 1 + len(drafts))
        at += n_right + 1
    return (len(text) - n_prompt) * seconds(table, 1) / spent


def prose(n: int, seed: int) -> list[int]:
    """Few words are frequent, phrases come again by chance, as in a language."""
    source = random.Random(seed)
    return [min(int(source.paretovariate(0.7)), 5000) for _ in range(n)]


def noise(n: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(30_000) for _ in range(n)]


def edited(text: list[int], every: int, seed: int) -> list[int]:
    """A copy with about one new token in `every`."""
    source = random.Random(seed)
    return [source.randrange(30_000, 60_000) if source.random() < 1 / every else token for token in text]


@pytest.mark.parametrize(("table", "gain"), [(Q4_1, 1.3), (Q4_0, 1.6)])
def test_a_copy_of_the_prompt_gains(table: Table, gain: float) -> None:
    original = noise(300, 1)
    assert speed(original + original, 300, table) > gain
    assert speed([*original, *edited(original, 40, 2)], 300, table) > 1 + (gain - 1) / 2


@pytest.mark.parametrize("seed", range(6))
def test_ordinary_text_loses_next_to_nothing(seed: int) -> None:
    assert speed(prose(1500, seed), 100, Q4_1) > 0.97
    assert speed(noise(500, seed), 100, Q4_1) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(6))
def test_misleading_text_loses_next_to_nothing(seed: int) -> None:
    """Phrases of four that come again and again, each time with something else behind them: every guess is wrong."""
    source = random.Random(seed)
    phrases = [noise(4, 100 + i) for i in range(10)]
    text = [token for i in range(200) for token in (*source.choice(phrases), 40_000 + i)]
    assert speed(text, 50, Q4_1) > 0.97


def test_phases_are_noticed() -> None:
    """After a long stretch of misleading text a copy gains nearly at once, and after the copy the misleading text costs nothing again."""
    source = random.Random(3)
    phrases = [noise(4, 100 + i) for i in range(10)]
    misleading = [token for i in range(150) for token in (*source.choice(phrases), 40_000 + i)]
    original = noise(200, 1)
    start = [*original, *misleading]
    assert speed([*start, *original], len(start), Q4_1) > 1.25
    more = [token + 60_000 if token >= 40_000 else token for token in misleading]
    assert speed([*start, *original, *more], len(start) + 200, Q4_1) > 0.97


def linear(base: float, row: float, n_streams: int) -> Callable[[int], float]:
    return lambda extra: base + row * (n_streams + extra)


def test_a_crowd_needs_no_guesses() -> None:
    """With more streams each row has less of a step's fixed cost to win back, so drafts shrink to nothing."""
    lengths = [best_length(0.98, 8, linear(5.0, 7.0, n), n) for n in range(1, 17)]
    assert lengths[0] >= 4 and lengths == sorted(lengths, reverse=True) and lengths[-1] == 0
    assert best_length(1.0, 8, linear(0.0, 1.0, 4), 4) == 0


@given(st.floats(0.0, 1.0), st.floats(0.01, 10), st.floats(0.01, 10), st.integers(1, 20), st.integers(0, 16))
def test_the_chosen_length_is_expected_to_gain(p: float, base: float, row: float, n_streams: int, most: int) -> None:
    cost = linear(base, row, n_streams)
    n = best_length(p, most, cost, n_streams)

    def rate(k: int) -> float:
        return (n_streams + sum(p**i for i in range(1, k + 1))) / cost(k)

    assert 0 <= n <= most
    assert n == 0 or rate(n) > rate(0)
    assert rate(n) * 1.1 >= max(map(rate, range(most + 1))), "more than a margin is left lying"


def test_an_unknown_cost_is_met_with_few_guesses() -> None:
    assert best_length(0.9, 8, lambda k: None) == 3
    assert best_length(0.9, 2, lambda k: None) == 2
    assert Speculation(8).n_draft(lambda k: None) == 3


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8, 0.95])
def test_the_estimate_finds_the_probability(p: float) -> None:
    source, acceptance, seen = random.Random(1), Acceptance(0.6), []
    for _ in range(3000):
        n_right = 0
        while n_right < 8 and source.random() < p:
            n_right += 1
        acceptance.observe(8, n_right)
        seen.append(acceptance.p)
    assert sum(seen) / len(seen) == pytest.approx(p, abs=0.12)


def test_guesses_that_cost_stop_where_they_fail_and_come_back_where_they_help() -> None:
    """A draft model that is always wrong for 2,000 steps, then always right."""
    control = Speculation(8)
    asked: list[int] = []
    for step in range(3000):
        n = control.n_draft(lambda k: seconds(Q4_1, 1 + k))
        asked.append(n)
        if n:
            control.observe(n, 0 if step < 2000 else n)
    wrong = sum(seconds(Q4_1, 1 + n) for n in asked[:2000])
    assert wrong < 2000 * seconds(Q4_1, 1) / 0.97
    assert all(asked[1000 + i : 1000 + i + 257].count(0) < 257 for i in range(700)), "it never rests for ever"
    assert min(asked[-200:]) >= 3


def test_nothing_is_tried_that_cannot_pay() -> None:
    """Each row costs as much as a step alone: not even a draft that is right gains anything."""
    control = Speculation(8)
    assert {control.n_draft(linear(0.0, 1.0, 1)) for _ in range(1000)} == {0}
