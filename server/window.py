"""How much of something came lately: a sum over the last seconds, kept by whole seconds, so that no event takes memory of its own."""

from __future__ import annotations

from collections import deque


class SlidingSum:
    """Over the present second and the `n_seconds` whole ones before it. `now`: seconds of a clock that does not go back."""

    __slots__ = ("_n_seconds", "_seconds", "_sum")

    def __init__(self, n_seconds: int) -> None:
        self._n_seconds = n_seconds
        self._seconds: deque[list[int]] = deque()
        self._sum = 0

    def add(self, now: float, n: int) -> None:
        self._forget(now)
        if not self._seconds or self._seconds[-1][0] < int(now):
            self._seconds.append([int(now), 0])
        self._seconds[-1][1] += n
        self._sum += n

    def sum(self, now: float) -> int:
        self._forget(now)
        return self._sum

    def seconds_until_below(self, now: float, limit: int) -> float:
        """How long until the sum is under `limit`, if nothing is added meanwhile."""
        left, wait = self.sum(now), 0.0
        for second, n in self._seconds:
            if left < limit:
                break
            left -= n
            wait = second + 1 + self._n_seconds - now
        return wait

    def _forget(self, now: float) -> None:
        while self._seconds and self._seconds[0][0] + 1 + self._n_seconds <= now:
            self._sum -= self._seconds.popleft()[1]
