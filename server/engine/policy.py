"""The order in which waiting requests get a slot. A policy keeps the queue; it knows no slots, no cells and no clock."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Protocol

from server.engine.request import WaitingRequest
from server.errors import OperatorError


class Policy(Protocol):
    """A queue with an opinion. No operation may cost more than a search in it, except walking it."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[WaitingRequest]:
        """All waiting requests, next one first."""
        ...

    def add(self, request: WaitingRequest) -> int:
        """Queue a request; returns how many are ahead of it."""
        ...

    def pop(self) -> WaitingRequest:
        """Take the next one. Raises IndexError if there is none."""
        ...

    def remove(self, request: WaitingRequest) -> None:
        """Take out one that is queued."""
        ...


_order: Callable[[WaitingRequest], int] = attrgetter("order")


class Fcfs:
    """First come, first served: by the time of submission, also where a long prompt took longer to tokenise than a later one."""

    def __init__(self) -> None:
        self._queue: list[WaitingRequest] = []

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[WaitingRequest]:
        return iter(self._queue)

    def add(self, request: WaitingRequest) -> int:
        ahead = bisect_left(self._queue, request.order, key=_order)
        insort(self._queue, request, key=_order)
        return ahead

    def pop(self) -> WaitingRequest:
        return self._queue.pop(0)

    def remove(self, request: WaitingRequest) -> None:
        del self._queue[bisect_left(self._queue, request.order, key=_order)]


POLICIES: dict[str, Callable[[], Policy]] = {"fcfs": Fcfs}


def policy_named(name: str) -> Policy:
    """Make the policy called `name`.

    Raises:
        OperatorError: there is none of that name.
    """
    if name not in POLICIES:
        names = ", ".join(sorted(POLICIES))
        raise OperatorError(f"there is no scheduling policy called {name!r}", hint=f"use --policy with one of: {names}")
    return POLICIES[name]()
