"""The buffer between one sequence's events and its reader: bounded, joining text when the reader is slow. Pure.

It knows neither time nor processes: it says when the runner should pause, `generation.py` does it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from server.protocol import Delta, Event, Prefilled, Queued


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """When a reader counts as slow. Bytes are estimates of memory."""

    coalesce_events: int = 16
    """With more events than this waiting, adjacent deltas are handed out as one."""
    pause_deltas: int = 512
    pause_bytes: int = 64 * 1024
    """Beyond either the runner is asked to pause this sequence; it goes on once a quarter is left."""
    hard_bytes: int = 16 * 1024 * 1024
    """Beyond this (a runner that does not pause) the request ends."""
    stall_timeout_s: float = 60.0
    """A paused request whose reader takes nothing for this long ends."""


class EventBuffer:
    def __init__(self, limits: FlowLimits) -> None:
        self._limits = limits
        self._events: deque[Event] = deque()
        self._n_deltas = 0
        self._n_bytes = 0

    def __len__(self) -> int:
        return len(self._events)

    @property
    def n_bytes(self) -> int:
        return self._n_bytes

    @property
    def is_high(self) -> bool:
        return self._n_deltas > self._limits.pause_deltas or self._n_bytes > self._limits.pause_bytes

    @property
    def is_low(self) -> bool:
        return self._n_deltas <= self._limits.pause_deltas // 4 and self._n_bytes <= self._limits.pause_bytes // 4

    @property
    def is_overflowing(self) -> bool:
        return self._n_bytes > self._limits.hard_bytes

    def push(self, event: Event) -> None:
        if self._events and isinstance(event, Queued | Prefilled) and type(self._events[-1]) is type(event):
            self._events[-1] = event  # only the newest position or progress is worth telling
            return
        self._events.append(event)
        self._n_bytes += _cost(event)
        self._n_deltas += isinstance(event, Delta)

    def pop(self) -> Event:
        """The next event.

        Raises:
            IndexError: there is none.
        """
        crowded = len(self._events) > self._limits.coalesce_events
        event = self._take()
        if not (crowded and isinstance(event, Delta)):
            return event
        deltas = [event]
        while self._events and isinstance(self._events[0], Delta):
            following = self._take()
            assert isinstance(following, Delta)
            deltas.append(following)
        return join(deltas)

    def clear(self) -> None:
        self._events.clear()
        self._n_deltas = self._n_bytes = 0

    def _take(self) -> Event:
        event = self._events.popleft()
        self._n_bytes -= _cost(event)
        self._n_deltas -= isinstance(event, Delta)
        return event


def join(deltas: list[Delta]) -> Delta:
    """Several deltas of one sequence as one. At least one is needed."""
    if len(deltas) == 1:
        return deltas[0]
    return Delta(
        id=deltas[0].id,
        text="".join(d.text for d in deltas),
        tokens=tuple(token for d in deltas for token in d.tokens),
        logprobs=tuple(logprob for d in deltas for logprob in d.logprobs),
    )


def _cost(event: Event) -> int:
    if not isinstance(event, Delta):
        return 128
    return 128 + 2 * len(event.text) + 8 * len(event.tokens) + sum(160 + 96 * len(lp.top) for lp in event.logprobs)
