"""Whether the engine still moves: when it last took a step while it had work, and whether its process does anything at all. Pure.

A step may rightly take minutes (a long prompt, a large model, a slow disk), so nothing here ends a process; it is told and shown.
"""

from __future__ import annotations

from collections.abc import Callable

PATIENCE_S = 120.0
"""Without a step for so long, it is looked at whether the process uses the processor ..."""
IDLE_S = 30.0
"""... and where it did not for so long, it hangs."""
_BUSY_SHARE = 0.01


class StepWatch:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._n_steps = 0
        self._moved_at = clock()
        self._mark: tuple[float, float] | None = None
        """(when, processor seconds) since which the process has used next to nothing."""

    def began(self) -> None:
        """There is work again, or another process that does it."""
        self._moved_at = self._clock()
        self._mark = None

    def stepped(self, n_steps: int) -> None:
        """The counter of steps, as last heard."""
        if n_steps != self._n_steps:
            self._n_steps = n_steps
            self.began()

    @property
    def age(self) -> float:
        """Seconds since the last step, or since there is work."""
        return self._clock() - self._moved_at

    def is_stalled(self, cpu_seconds: Callable[[], float | None]) -> bool:
        """To be asked now and then. `cpu_seconds`: processor time of the process so far; None = unknown, and then it is never stalled."""
        if self.age < PATIENCE_S or (used := cpu_seconds()) is None:
            return False
        now = self._clock()
        if self._mark is None or used - self._mark[1] > _BUSY_SHARE * max(1.0, now - self._mark[0]):
            self._mark = now, used
        return now - self._mark[0] >= IDLE_S
