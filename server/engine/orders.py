"""Policies that are an order and nothing more: `fcfs`, `priority`, `shortest-prompt`. They know no slots, no cells and no clock."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import ClassVar

from server.engine.accounts import OUTPUT_COST, PROMPT_COST, Accounts
from server.engine.classes import RANKS
from server.engine.flows import by_order
from server.engine.request import Entry, PutAside, Sequence
from server.figures import KeyShare

Place = tuple[int, int]
"""Where an entry stands in its queue, the smallest first: (what the policy goes by, order of submission)."""


class Ordered:
    """One queue for each key, since a key may be at its limit, all by one order. Finding the next costs the number of keys.

    A subclass says by what, and who makes room.
    """

    def __init__(self, max_preemptions: int = 3) -> None:
        self._max_preemptions = max_preemptions
        self._queues: dict[str, list[Entry]] = {}
        self._keys: dict[int, str] = {}
        self._accounts = Accounts()

    def place(self, entry: Entry) -> Place:
        """Must not change while the entry waits."""
        return 0, entry.order

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[Entry]:
        # Keys at their limit go on when one of their own is over, which nobody knows.
        for at_limit in (False, True):
            yield from heapq.merge(*self._some(self._queues, at_limit=at_limit), key=self.place)

    def add(self, entry: Entry) -> int:
        self._accounts.waits(entry.request.flow)
        place = self.place(entry)
        ahead = sum(bisect_left(queue, place, key=self.place) for queue in self._queues.values())
        insort(self._queues.setdefault(entry.request.flow.key, []), entry, key=self.place)
        return ahead

    def remove(self, entry: Entry) -> None:
        self._accounts.withdrawn(self._take(entry))

    def next(self, cached: Callable[[Entry], int]) -> Entry | None:
        return min((queue[0] for queue in self._some(self._queues)), key=self.place, default=None)

    def start(self, entry: Entry) -> None:
        key = self._keys[entry.id] = self._take(entry)
        self._accounts.starts(key)

    def stop(self, sequence: Sequence) -> None:
        self._accounts.stops(self._keys.pop(sequence.id))

    def charge(self, sequence: Sequence, *, n_prompt: int = 0, n_output: int = 0) -> None:
        self._accounts.charge(self._keys[sequence.id], PROMPT_COST * n_prompt + OUTPUT_COST * n_output)

    def victim(self, entry: Entry, running: Collection[Sequence]) -> Sequence | None:
        return None

    def yields(self, running: Collection[Sequence]) -> Sequence:
        # Who has been put aside often enough is left alone as long as there is another.
        return max(running, key=lambda sequence: (sequence.n_preemptions < self._max_preemptions, self.rank(sequence)))

    def rank(self, sequence: Sequence) -> Place:
        """The order among those that run: the smallest goes first, the greatest makes room."""
        return 0, sequence.order

    def urgency(self, sequence: Sequence) -> tuple[float, ...]:
        return self.rank(sequence)

    def shares(self) -> list[KeyShare]:
        return self._accounts.shares()

    def _some(self, queues: dict[str, list[Entry]], *, at_limit: bool = False) -> list[list[Entry]]:
        """Those of keys that are at their limit, or of all others."""
        return [queue for key, queue in queues.items() if self._accounts.at_limit(key) is at_limit]

    def _take(self, entry: Entry) -> str:
        """Out of the queue; returns its key."""
        key = entry.request.flow.key
        queue = self._queues[key]
        del queue[bisect_left(queue, self.place(entry), key=self.place)]
        if not queue:
            del self._queues[key]
        return key


class Fcfs(Ordered):
    """First come, first served: by the time of submission, also where a long prompt took longer to tokenise than a later one."""


class StrictPriority(Ordered):
    """The highest class that waits, within it first come, first served. A lower class makes room and may wait for ever."""

    def place(self, entry: Entry) -> Place:
        return RANKS[entry.request.priority], entry.order

    def rank(self, sequence: Sequence) -> Place:
        return RANKS[sequence.request.priority], sequence.order

    def victim(self, entry: Entry, running: Collection[Sequence]) -> Sequence | None:
        rank = RANKS[entry.request.priority]
        lower = [s for s in running if RANKS[s.request.priority] > rank and s.n_preemptions < self._max_preemptions]
        return max(lower, key=lambda s: (RANKS[s.request.priority], -s.n_computed), default=None)


class ShortestPrompt(Ordered):
    """The fewest prompt tokens to compute first; what is cached is looked up for the first few only.

    Whoever is the oldest is passed by `MOST_PASSED` times at most, so nobody waits for ever: an entry with n older ones before it
    goes within (n + 1) x (`MOST_PASSED` + 1) starts.
    """

    WINDOW: ClassVar[int] = 8
    MOST_PASSED: ClassVar[int] = 8

    def __init__(self, max_preemptions: int = 3) -> None:
        super().__init__(max_preemptions)
        self._by_age: dict[str, list[Entry]] = {}

    def place(self, entry: Entry) -> Place:
        if isinstance(entry, PutAside):
            return max(0, entry.sequence.n_prompt - entry.sequence.n_highest), entry.order
        return len(entry.tokens), entry.order

    def rank(self, sequence: Sequence) -> Place:
        return sequence.n_pending, sequence.order

    def add(self, entry: Entry) -> int:
        insort(self._by_age.setdefault(entry.request.flow.key, []), entry, key=by_order)
        return super().add(entry)

    def next(self, cached: Callable[[Entry], int]) -> Entry | None:
        oldest = self._oldest()
        if oldest is None or oldest.n_passed >= self.MOST_PASSED:
            return oldest
        first = islice(heapq.merge(*self._some(self._queues), key=self.place), self.WINDOW)
        return min(first, key=lambda entry: (len(entry.tokens) - cached(entry), *self.place(entry)))

    def start(self, entry: Entry) -> None:
        oldest = self._oldest()
        if oldest is not None and oldest is not entry:
            oldest.n_passed += 1
        super().start(entry)

    def __iter__(self) -> Iterator[Entry]:
        for at_limit in (False, True):
            by_age = heapq.merge(*self._some(self._by_age, at_limit=at_limit), key=by_order)
            by_place = heapq.merge(*self._some(self._queues, at_limit=at_limit), key=self.place)
            gone: set[int] = set()
            for oldest in by_age:
                n_passed = oldest.n_passed
                while oldest.id not in gone:
                    following = oldest if n_passed >= self.MOST_PASSED else next(entry for entry in by_place if entry.id not in gone)
                    gone.add(following.id)
                    n_passed += 1
                    yield following

    def _oldest(self) -> Entry | None:
        return min((queue[0] for queue in self._some(self._by_age)), key=by_order, default=None)

    def _take(self, entry: Entry) -> str:
        key = super()._take(entry)
        queue = self._by_age[key]
        del queue[bisect_left(queue, entry.order, key=by_order)]
        if not queue:
            del self._by_age[key]
        return key
