"""Lists of token ids, compared. Knows no text and no model."""

from __future__ import annotations

from collections.abc import Sequence

_STRIDE = 512


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common beginning. Slices compare fast; only the stride that differs is looked at token by token."""
    n = min(len(one), len(other))
    start = 0
    while start < n and one[start : min(start + _STRIDE, n)] == other[start : min(start + _STRIDE, n)]:
        start += _STRIDE
    for index in range(start, min(start + _STRIDE, n)):
        if one[index] != other[index]:
            return index
    return n
