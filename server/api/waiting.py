"""Where a request stands in the queue, told while it waits: the foremost of its sequences speaks for all of them. Pure."""

from __future__ import annotations

from server.http.ports import Progress
from server.protocol import Queued

PING = "ping"
"""What a stream says in silence when nobody of it waits."""


class Waiting:
    """Fed with every event of every sequence of one request."""

    def __init__(self) -> None:
        self._queued: dict[int, Queued] = {}
        self._first: int | None = None
        """Which of them stands foremost."""

    def event(self, index: int, event: Progress) -> bool:
        """Whether there is something new to tell."""
        before = self.text
        if isinstance(event, Queued):
            self._queued[index] = event
            self._moved(index, event.position)
        elif self._queued.pop(index, None) is not None and index == self._first:
            self._first = self._foremost()
        return self.place is not None and self.text != before

    @property
    def place(self) -> Queued | None:
        """None: nobody waits, or who does finds a slot free."""
        first = None if self._first is None else self._queued[self._first]
        return None if first is None or (first.position == 0 and first.eta_s == 0) else first

    @property
    def headers(self) -> dict[str, str]:
        place = self.place
        if place is None:
            return {}
        eta = {} if place.eta_s is None else {"X-Queue-Eta": f"{place.eta_s:.1f}"}
        return {"X-Queue-Position": str(place.position), **eta}

    @property
    def text(self) -> str:
        """For a comment of the stream."""
        place = self.place
        if place is None:
            return PING
        return f"queue position={place.position}" + ("" if place.eta_s is None else f" eta={place.eta_s:.1f}")

    def _moved(self, index: int, position: int) -> None:
        # Looking at all of a crowd for each that moves would be quadratic; only a move of the foremost itself needs it.
        if index == self._first:
            self._first = self._foremost()
        elif self._first is None or position < self._queued[self._first].position:
            self._first = index

    def _foremost(self) -> int | None:
        return min(self._queued, key=lambda index: self._queued[index].position, default=None)
