"""What a step costs, learned from the steps that were made, and how much prefill fits beside running streams. Pure: knows no requests."""

from __future__ import annotations

import math

_COSTS_AT_FIRST = (2.0, 1.0, 2.0, 1.0)
"""How the first step's time is shared out: the step as such, a decode row, a chunk's graph beside decode rows, a prompt token."""
_NOISE = 0.15
"""Standard deviation of one step's time, as a share of it."""
_SPEED_DRIFT = 0.02
"""The machine becomes so much faster or slower from step to step (all costs at once) ..."""
_COST_DRIFT = 0.01
"""... and each cost for itself."""
_DRIFT_FLOOR = 0.002
"""A cost that was found to be nothing may still become so much of a step, so that it can be found again."""
_NEWS_SPREAD = 1.0
"""Uncertainty of the machine's speed once it has evidently changed."""
_CLIP = 3.0
"""A step that differs by more than so many standard deviations counts as differing by so many."""
_OUTLYING = 2.0
_NEWS = 3
"""One slow step is noise; so many outlying ones in a row, on the same side, are news and are believed."""
_FIRST_STEPS = 8
_LEAST_SECONDS, _MOST_SECONDS = 1e-7, 1e4
_MARGIN_MEMORY = 0.97
_QUANTILE = 2.0
"""Standard deviations that a prediction keeps from the target: 95 % of the steps, and a bad one now and then."""
_MOST_ERROR = 0.25
_FIRST_BUDGET = 32
_STRETCH = 4
"""A chunk is at most so many times as long as any that was timed: the fit is not trusted far from where it was made."""


class StepCost:
    """Predicts a step's time from its decode rows and prompt tokens.

    The model is linear: a + b x rows + c (prompt tokens beside decode rows are a graph more) + d x prompt tokens. Its four costs are
    followed by a Kalman filter: least squares with forgetting (Ljung, System Identification, chapter 11) that forgets only
    what steps can teach it anew. A neighbour slows all costs down at once, so that is what it takes a change for first; a long
    stretch without prompts does not make it forget what they cost.
    """

    def __init__(self) -> None:
        self._costs = [0.0] * 4
        self._covariance = [[0.0] * 4 for _ in range(4)]
        self._n_observed = 0
        self._streak = 0
        self._error_variance = 0.01
        self._longest_chunk = 0

    def observe(self, n_decode: int, n_prefill: int, seconds: float) -> None:
        """A step of `n_decode` rows of streams and `n_prefill` prompt tokens took so long. Times that cannot be are ignored."""
        if not (0 < seconds < math.inf) or min(n_decode, n_prefill) < 0 or n_decode + n_prefill == 0:
            return
        seconds = min(max(seconds, _LEAST_SECONDS), _MOST_SECONDS)
        features = _features(n_decode, n_prefill)
        self._longest_chunk = max(self._longest_chunk, n_prefill)
        if not self._n_observed:
            self._begin(features, seconds)
        self._n_observed += 1
        self._follow(features, seconds)

    def seconds(self, n_decode: int, n_prefill: int) -> float | None:
        """What such a step will probably take; None while nothing is known."""
        return _dot(self._costs, _features(n_decode, n_prefill)) if self._n_observed else None

    def prefill_budget(self, n_decode: int, target: float, *, least: int, most: int) -> int:
        """Prompt tokens that may stand beside `n_decode` rows so that about 95 % of such steps take at most `target` seconds.

        Where the rows alone take long, 1.5 times their time is the target: no crowd of streams brings prefill to a halt. Never
        less than `least` tokens (`most` permitting), never more than `most`.
        """
        if not self._n_observed:
            return min(most, max(least, _FIRST_BUDGET))
        rows_alone = _dot(self._costs, _features(n_decode, 0))
        limit = max(target, 1.5 * rows_alone) if n_decode else target
        without = _dot(self._costs, _features(n_decode, 1)) - self._costs[3]
        tokens = (limit / self._margin - without) / self._costs[3]
        longest = max(_FIRST_BUDGET, _STRETCH * self._longest_chunk)
        return min(most, max(least, int(min(max(tokens, 0), longest))))

    @property
    def _margin(self) -> float:
        return 1 + _QUANTILE * math.sqrt(self._error_variance)

    def _begin(self, features: list[float], seconds: float) -> None:
        unit = seconds / _dot(_COSTS_AT_FIRST, features)
        self._costs = [share * unit for share in _COSTS_AT_FIRST]
        for i, cost in enumerate(self._costs):
            self._covariance[i][i] = cost * cost

    def _follow(self, x: list[float], seconds: float) -> None:
        expected = _dot(self._costs, x)
        self._drift(x, expected, _NEWS_SPREAD if self._streak in (-_NEWS, _NEWS) else _SPEED_DRIFT)
        gains = [_dot(row, x) for row in self._covariance]
        variance = _dot(gains, x) + (_NOISE * expected) ** 2
        surprise = self._believed(seconds - expected, math.sqrt(variance))
        self._note_error((seconds - expected) / expected)
        for i in range(4):
            self._costs[i] = max(self._costs[i] + gains[i] * surprise / variance, 1e-6 * expected / max(x[i], 1.0))
            for j in range(4):
                self._covariance[i][j] -= gains[i] * gains[j] / variance

    def _drift(self, x: list[float], expected: float, speed: float) -> None:
        """What may have changed since the last step: the speed of everything, and each cost that this step can tell of."""
        costs, covariance = self._costs, self._covariance
        for i in range(4):
            for j in range(4):
                covariance[i][j] += speed * speed * costs[i] * costs[j]
            if x[i]:
                covariance[i][i] += max(_COST_DRIFT * costs[i], _DRIFT_FLOOR * expected / x[i]) ** 2

    def _believed(self, surprise: float, deviation: float) -> float:
        """What of a surprise is believed."""
        side = int(math.copysign(1, surprise))
        if abs(surprise) < _OUTLYING * deviation:
            self._streak = 0
        else:
            self._streak = side if self._streak * side <= 0 else max(-_NEWS, min(_NEWS, self._streak + side))
        if abs(self._streak) >= _NEWS or self._n_observed <= _FIRST_STEPS:
            return surprise
        return max(-_CLIP * deviation, min(_CLIP * deviation, surprise))

    def _note_error(self, error: float) -> None:
        """How far predictions are off; one wild step says little about it."""
        error = max(-_MOST_ERROR, min(_MOST_ERROR, error))
        self._error_variance = _MARGIN_MEMORY * self._error_variance + (1 - _MARGIN_MEMORY) * error * error


def _features(n_decode: int, n_prefill: int) -> list[float]:
    """What the four costs are multiplied with."""
    return [1.0, float(n_decode), 1.0 if n_decode and n_prefill else 0.0, float(n_prefill)]


def _dot(a: list[float] | tuple[float, ...], b: list[float]) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3]
