"""How many threads compute the next step, found by trying: a busy neighbour makes many threads slower than few. Pure: knows only times.

All threads meet at a barrier hundreds of times a step, and one that has lost its core to somebody else makes all others wait.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain, cycle
from statistics import median

from server.engine.pace import StepCost

_ROWS_OF_A_CLASS = (4, 32)
"""Steps with fewer rows than these, and all others, are governed apart: what is best for one stream need not be best for a prompt."""
_PROBE_SHARE = 0.01
"""Time that probing may cost: it waits in proportion to what the last probe has lost."""
_FIRST_STEPS = 16
"""Before the first probe."""
_LEAST_WAIT, _CLIMB_WAIT = 2.0, 0.5
"""Seconds of steps between two probes, and after one that has found something better."""
_BACK_OFF, _BACK_OFF_REDUCED = 16, 2
"""The wait doubles with each probe that changes nothing, up to so many times: less where threads lie idle."""
_MOST_PAIRS = 24
_LEAST_GAIN, _SURE = math.log(1.04), 2.5
"""Fewer threads must be better by so much and by so many standard errors: without reason none lies idle."""
_SURE_ENOUGH = 1.2
"""Going back to all threads needs so many standard errors, and so does the verdict that a count is not better."""
_SPREAD, _SPREAD_WEIGHT = 0.15, 4
"""The spread of ratios as expected before any were seen, and how many ratios that expectation is worth."""
_MEDIAN_ERROR = 1.25
"""Standard error of a median against that of a mean."""
_CHANGE = math.log(1.28)
"""A lasting change of step times by so much is a reason to look again."""
_MANY_THREADS = 16
_FAST, _SLOW = 0.15, 0.02
"""How much of a step goes into the moving averages whose distance shows a change ..."""
_WILD = math.log(2)
"""... where a step counts as this far from the average at most: it takes three."""


class ThreadGovernor:
    """Never more than `most` threads. `fixed`: always that many.

    The time of a step with another count is compared with the step before it, in turns, and divided by what steps of their shapes
    cost; the comparison ends as soon as one is clearly better, so that a bad count is tried for two or three steps only.
    """

    def __init__(self, most: int, *, fixed: bool = False, cost: StepCost | None = None) -> None:
        """`cost`: what steps cost, if somebody else keeps account of it anyway."""
        self.n_threads = most
        """For the next step."""
        self._governs = most > 1 and not fixed
        self._cost, self._keeps_account = cost or StepCost(), cost is None
        self._classes = [_Class(most) for _ in range(len(_ROWS_OF_A_CLASS) + 1)]

    def observe(self, n_decode: int, n_prefill: int, seconds: float) -> int:
        """A step of `n_decode` rows of streams and `n_prefill` prompt tokens took so long with `n_threads`. Returns how many the next shall
        have; it is expected to be much like this one. Times that cannot be are ignored."""
        n_rows = n_decode + n_prefill
        if not self._governs or min(n_decode, n_prefill) < 0 or n_rows == 0 or not 0 < seconds < math.inf:
            return self.n_threads
        governed = self._classes[sum(n_rows >= least for least in _ROWS_OF_A_CLASS)]
        if self._keeps_account:
            self._cost.observe(n_decode, n_prefill, seconds)
        expected = self._cost.seconds(n_decode, n_prefill)
        if expected is not None and governed.observe(self.n_threads, seconds, self._level(seconds, expected)):
            for other in self._classes:
                other.look_again()
        self.n_threads = governed.next_count
        return self.n_threads

    def _level(self, seconds: float, expected: float) -> float:
        """Logarithm of a step's time as if all steps had one row: what is left to depend on the threads and the neighbours."""
        return math.log(seconds) - math.log(expected / (self._cost.seconds(1, 0) or expected))


class _Class:
    """One class of steps: its count, and when to question it."""

    def __init__(self, most: int) -> None:
        self.count = most
        self.probe: _Probe | None = None
        self._most = most
        self._candidates = self._others()
        self._n_steps = 0
        self._wait = 0.0
        self._base_wait = _LEAST_WAIT
        self._waited = 0.0
        self._back_off = 1
        self._fast = self._slow = self._deviation = 0.0

    @property
    def next_count(self) -> int:
        return self.count if self.probe is None else self.probe.next_count

    def look_again(self) -> None:
        """Something has changed: probe as soon as the last probe is paid for."""
        self._back_off = 1
        self._wait = min(self._wait, self._base_wait)
        if self.probe is None:
            self._candidates = self._others()

    def observe(self, count: int, seconds: float, level: float) -> bool:
        """Returns whether the count has changed."""
        if count != self.next_count:
            return False  # the first step after steps of another class
        if self.probe is not None:
            verdict = self.probe.observe(seconds, level)
            return verdict is not None and self._conclude(self.probe, verdict)
        self._n_steps += 1
        self._waited += seconds
        self._follow(level)
        if self._n_steps >= _FIRST_STEPS and self._waited >= self._wait:
            self.probe = _Probe(next(self._candidates), self.count, self._most)
        return False

    def _conclude(self, probe: _Probe, is_better: bool) -> bool:
        self.probe, self._waited, self._n_steps = None, 0.0, _FIRST_STEPS
        if is_better:
            self.count = probe.challenger
            self._candidates = self._others()
            self._n_steps = 0
            self._back_off, self._base_wait, self._wait = 1, _LEAST_WAIT, _CLIMB_WAIT
            return True
        self._base_wait = max(_LEAST_WAIT, probe.lost / _PROBE_SHARE)
        self._wait = self._base_wait * self._back_off
        self._back_off = min(2 * self._back_off, _BACK_OFF if self.count == self._most else _BACK_OFF_REDUCED)
        return False

    def _others(self) -> Iterator[int]:
        """Counts to try in turn: first wherever a change may have made things better, then the likely ones for ever.

        One less leaves a core to one neighbour; all are right again once the neighbours have gone.
        """
        n, most = self.count, self._most
        more = min(most, n + max(1, n // 4))
        far = n // 4 if n >= _MANY_THREADS else n  # where neighbours have taken more than half, half is no better
        first = dict.fromkeys(count for count in (n - 1, more, most, n // 2, far) if count not in (0, n))
        for_ever = [count for other in (more, n - 1, n // 2) for count in (most, other) if count not in (0, n)]
        return chain(first, cycle(for_ever))

    def _follow(self, level: float) -> None:
        """Notice that steps have become slower or faster and stay so."""
        if self._n_steps == 1:
            self._fast = self._slow = level
        self._fast += _FAST * _clipped(level - self._fast)
        self._slow += _SLOW * _clipped(level - self._slow)
        self._deviation += _SLOW * (abs(_clipped(level - self._slow)) - self._deviation)
        if abs(self._fast - self._slow) > max(_CHANGE, 2 * self._deviation):
            self._slow = self._fast
            self.look_again()


class _Probe:
    """Steps with the `champion`'s and with the `challenger`'s count in turns."""

    def __init__(self, challenger: int, champion: int, most: int) -> None:
        self.challenger = challenger
        self._least_gain, self._sure = (0.0, _SURE_ENOUGH) if challenger == most else (_LEAST_GAIN, _SURE)
        self._champion = champion
        self._reference: float | None = None
        self._champions_seconds = 0.0
        self._ratios: list[float] = []

    @property
    def next_count(self) -> int:
        return self._champion if self._reference is None else self.challenger

    @property
    def lost(self) -> float:
        """Seconds that the challenger took longer than the champion."""
        return self._champions_seconds * max(0.0, math.expm1(median(self._ratios)))

    def observe(self, seconds: float, level: float) -> bool | None:
        """True: the challenger is better; False: it is not; None: go on."""
        if self._reference is None:
            self._reference = level
            self._champions_seconds += seconds
            return None
        self._ratios.append(level - self._reference)
        self._reference = None
        return self._verdict()

    def _verdict(self) -> bool | None:
        middle, n = median(self._ratios), len(self._ratios)
        error = self._spread(middle) * _MEDIAN_ERROR / math.sqrt(n)
        if n >= 3 and middle < -self._least_gain - self._sure * error:
            return True
        if (n >= 2 and middle > _SURE_ENOUGH * error) or n >= _MOST_PAIRS:
            return False
        return None

    def _spread(self, middle: float) -> float:
        """Standard deviation of the ratios; a few could agree by chance, a wild one says little."""
        squares = sum(min(abs(ratio - middle), 1.0) ** 2 for ratio in self._ratios)
        return math.sqrt((_SPREAD_WEIGHT * _SPREAD**2 + squares) / (_SPREAD_WEIGHT + len(self._ratios) - 1))


def _clipped(difference: float) -> float:
    return max(-_WILD, min(_WILD, difference))
