"""The order in which waiting requests get a slot, and who makes room for whom. A policy knows no slots, no cells and no clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Protocol

from server.engine.fair import Fair
from server.engine.orders import Fcfs, ShortestPrompt, StrictPriority
from server.engine.request import Entry, Sequence
from server.errors import OperatorError
from server.protocol import KeyShare

Cached = Callable[[Entry], int]
"""How many tokens of an entry are in the cache now; costs a walk down a tree."""


class Policy(Protocol):
    """A queue with an opinion, and an account of what each flow was served. No call costs more than a search in the queue, except
    walking it; `next` and `victim` may look at a bounded number of entries and at all that run."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Entry]:
        """All that wait, in the order in which they would go if nobody else came."""
        ...

    def add(self, entry: Entry) -> int:
        """Queue an entry; returns how many are (about) ahead of it."""
        ...

    def remove(self, entry: Entry) -> None:
        """Take out one that is queued and will not start (cancelled)."""
        ...

    def next(self, cached: Cached) -> Entry | None:
        """Who goes next; it stays queued. None = nobody may (none waits, or all that do belong to keys at their `max_running`)."""
        ...

    def start(self, entry: Entry) -> None:
        """It leaves the queue and runs. Those of its own queue that came before it have been passed once more."""
        ...

    def stop(self, sequence: Sequence) -> None:
        """It runs no longer: over, or put aside."""
        ...

    def charge(self, sequence: Sequence, *, n_prompt: int = 0, n_output: int = 0) -> None:
        """Tokens that were computed or generated for it."""
        ...

    def victim(self, entry: Entry, running: Collection[Sequence]) -> Sequence | None:
        """Who is to be put aside so that `entry` (what `next` gave) gets a slot; None = it has to wait for one."""
        ...

    def yields(self, running: Collection[Sequence]) -> Sequence:
        """Who is put aside first when memory runs out. `running` is not empty."""
        ...

    def urgency(self, sequence: Sequence) -> tuple[float, ...]:
        """Order in which prompts are computed where a step cannot take all: smallest first."""
        ...

    def shares(self) -> list[KeyShare]: ...


POLICIES: dict[str, Callable[[int], Policy]] = {
    "fair": Fair,
    "fcfs": Fcfs,
    "priority": StrictPriority,
    "shortest-prompt": ShortestPrompt,
}


def policy_named(name: str, *, max_preemptions: int = 3) -> Policy:
    """Make the policy called `name`. Nobody is put aside for another's sake more than `max_preemptions` times.

    Raises:
        OperatorError: there is none of that name.
    """
    if name not in POLICIES:
        names = ", ".join(sorted(POLICIES))
        raise OperatorError(f"there is no scheduling policy called {name!r}", hint=f"use --policy with one of: {names}")
    return POLICIES[name](max_preemptions)
