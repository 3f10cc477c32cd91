"""How fast prompts are computed, tokens generated and requests finished of late, and what that means for those who wait. Pure."""

from __future__ import annotations

from collections import deque

from server.window import SlidingSum

WINDOW_SECONDS = 30.0
_BUCKET_SECONDS = 1.0
_MOST_FINISHES = 1024
_LEAST_FINISHES = 16
"""So many of the last finishes are kept, however old."""
_MOST_RETRY_SECONDS = 3600.0


class Rates:
    """Rates are per second, over the last 30 s (or since the first event, if that is less). `now` is any clock that does not go back."""

    def __init__(self) -> None:
        self._prompt, self._generated = (SlidingSum(int(WINDOW_SECONDS) - 1) for _ in range(2))
        self._finishes: deque[tuple[float, float]] = deque()
        """(when, how long it had held a slot)"""
        self._held_sum = 0.0
        self._began: float | None = None
        self._since = self._now = 0.0
        """`_finishes` are those after `_since`."""

    # ---- events ------------------------------------------------------------------------------------------------

    def computed(self, now: float, n_tokens: int) -> None:
        """Prompt tokens were computed."""
        self._tick(now)
        self._prompt.add(now, n_tokens)

    def generated(self, now: float, n_tokens: int) -> None:
        """Tokens were drawn."""
        self._tick(now)
        self._generated.add(now, n_tokens)

    def finished(self, now: float, held: float) -> None:
        """A request gave its slot up after `held` seconds."""
        self._tick(now)
        held = max(held, 0.0)
        self._finishes.append((now, held))
        self._held_sum += held
        self._forget_finishes()

    def _tick(self, now: float) -> None:
        if self._began is None:
            self._began = self._since = now
        self._now = max(self._now, now)

    # ---- rates -------------------------------------------------------------------------------------------------

    def prompt_rate(self, now: float) -> float:
        return self._prompt.sum(now) / self._elapsed(now)

    def generation_rate(self, now: float) -> float:
        return self._generated.sum(now) / self._elapsed(now)

    def finish_rate(self, now: float) -> float:
        return sum(when > now - WINDOW_SECONDS for when, _ in self._finishes) / self._elapsed(now)

    @property
    def mean_held(self) -> float | None:
        """Seconds that a request holds its slot; None = none has finished yet."""
        return self._held_sum / len(self._finishes) if self._finishes else None

    def _elapsed(self, now: float) -> float:
        since = WINDOW_SECONDS if self._began is None else min(WINDOW_SECONDS, now - self._began)
        return max(_BUCKET_SECONDS, since)

    # ---- waiting -----------------------------------------------------------------------------------------------

    def eta(self, position: int, n_free: int, n_slots: int) -> float | None:
        """Seconds until the request at `position` (0 = next) may start, `n_free` of `n_slots` slots being free.

        None: slots have to become free first, and no request has finished yet.
        """
        if position < n_free:
            return 0.0
        interval = self._interval(n_slots)
        return None if interval is None else (position - max(n_free, 0) + 1) * interval

    def retry_after(self, n_waiting: int, n_slots: int = 1) -> float:
        """Seconds, 1 at least, after which somebody who is turned away now may find a slot: those who wait come first."""
        interval = self._interval(n_slots) if n_waiting else None
        return 1.0 if interval is None else min(_MOST_RETRY_SECONDS, max(1.0, (n_waiting + 1) * interval))

    def _interval(self, n_slots: int) -> float | None:
        """Seconds between two slots becoming free while all are taken.

        By Little's law this is mean holding time / slots, and it is 1 / finish rate. Slots that stood empty make the second too long,
        pauses between two turns in a slot make the first too long: the shorter one holds.
        """
        held = self.mean_held
        if held is None:
            return None
        by_holding = held / max(1, n_slots)
        span, n = self._now - self._since, len(self._finishes)
        return min(by_holding, span / n) if span >= 2 * held and n >= n_slots else by_holding

    def _forget_finishes(self) -> None:
        """Keep those of 30 s, and of two turns: slots that were filled together become free together."""
        finishes = self._finishes
        oldest = self._now - max(WINDOW_SECONDS, 2 * self._held_sum / len(finishes))
        while len(finishes) > _MOST_FINISHES or (len(finishes) > _LEAST_FINISHES and finishes[0][0] < oldest):
            self._since, held = finishes.popleft()
            self._held_sum -= held
