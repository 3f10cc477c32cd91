"""The longest common beginning is as long as it can be, also where texts are longer than what is compared at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.tokens import _STRIDE, common_prefix

TOKENS = st.lists(st.integers(0, 2), max_size=40)


@given(TOKENS, TOKENS, TOKENS)
def test_the_longest_common_prefix(start: list[int], one: list[int], other: list[int]) -> None:
    one, other = start + one, start + other
    length = common_prefix(one, other)
    assert one[:length] == other[:length]
    assert length == min(len(one), len(other)) or one[length] != other[length]


@given(st.integers(0, 3 * _STRIDE), TOKENS, TOKENS)
def test_across_strides(n_same: int, one: list[int], other: list[int]) -> None:
    start = [7] * n_same
    assert common_prefix(start + one, start + other) == n_same + common_prefix(one, other)
