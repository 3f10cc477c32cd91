"""Policies that are an order and nothing more: `fcfs`, `priority`, `shortest-prompt`. They know no slots, no cells and no clock."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import ClassVar

from server.engine.accounts import OUTPUT_COST, PROMPT_COST, Accounts
from server.engine.flows import by_order
from server.engine.request import Entry, PutAside, Sequence
from server.figures import KeyShare
from server.requests import RANKS

Place = tuple[int, int]
"""Where an entry stands in its queue, the smallest first: (what the policy goes by, order of submission)."""


class Ordered:
    """A queue sorted by one order; a subclass says by which, and who makes room. Finding the next costs a look at each that is
    before it and may not go because its key is at its limit."""

    def __init__(self, max_preemptions: int = 3) -> None:
        self._max_preemptions = max_preemptions
        self._queue: list[Entry] = []
        self._keys: dict[int, str] = {}
        self._accounts = Accounts()

    def place(self, entry: Entry) -> Place:
        """Must not change while the entry waits."""
        return 0, entry.order

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Entry]:
        # Keys at their limit go on when one of their own is over, which nobody knows.
        yield from self._open(self._queue)
        yield from self._at_limit(self._queue)

    def add(self, entry: Entry) -> int:
        self._accounts.waits(entry.request.flow)
        ahead = bisect_left(self._queue, self.place(entry), key=self.place)
        self._queue.insert(ahead, entry)
        return ahead

    def remove(self, entry: Entry) -> None:
        self._take(entry)
        self._accounts.withdrawn(entry.request.flow.key)

    def next(self, cached: Callable[[Entry], int]) -> Entry | None:
        return next(self._open(self._queue), None)

    def start(self, entry: Entry) -> None:
        self._take(entry)
        self._keys[entry.id] = entry.request.flow.key
        self._accounts.starts(entry.request.flow.key)

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

    def _open(self, entries: list[Entry]) -> Iterator[Entry]:
        """Those of keys that may run one more."""
        limited = self._accounts.at_limit
        return (entry for entry in entries if entry.request.flow.key not in limited) if limited else iter(entries)

    def _at_limit(self, entries: list[Entry]) -> Iterator[Entry]:
        limited = self._accounts.at_limit
        return (entry for entry in entries if entry.request.flow.key in limited)

    def _take(self, entry: Entry) -> None:
        del self._queue[bisect_left(self._queue, self.place(entry), key=self.place)]


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
        self._by_age: list[Entry] = []

    def place(self, entry: Entry) -> Place:
        if isinstance(entry, PutAside):
            return max(0, entry.sequence.n_prompt - entry.sequence.n_highest), entry.order
        return len(entry.tokens), entry.order

    def rank(self, sequence: Sequence) -> Place:
        return sequence.n_pending, sequence.order

    def add(self, entry: Entry) -> int:
        insort(self._by_age, entry, key=by_order)
        return super().add(entry)

    def next(self, cached: Callable[[Entry], int]) -> Entry | None:
        oldest = next(self._open(self._by_age), None)
        if oldest is None or oldest.n_passed >= self.MOST_PASSED:
            return oldest
        first = islice(self._open(self._queue), self.WINDOW)
        return min(first, key=lambda entry: self._place_with_cache(entry, cached))

    def _place_with_cache(self, entry: Entry, cached: Callable[[Entry], int]) -> Place:
        n_prompt, order = self.place(entry)
        return (n_prompt if isinstance(entry, PutAside) else n_prompt - cached(entry)), order

    def start(self, entry: Entry) -> None:
        oldest = next(self._open(self._by_age), None)
        if oldest is not None and oldest is not entry:
            oldest.n_passed += 1
        super().start(entry)

    def __iter__(self) -> Iterator[Entry]:
        for part in (self._open, self._at_limit):
            by_place, gone = part(self._queue), set[int]()
            for oldest in part(self._by_age):
                n_passed = oldest.n_passed
                while oldest.id not in gone:
                    following = oldest if n_passed >= self.MOST_PASSED else next(entry for entry in by_place if entry.id not in gone)
                    gone.add(following.id)
                    n_passed += 1
                    yield following

    def _take(self, entry: Entry) -> None:
        super()._take(entry)
        del self._by_age[bisect_left(self._by_age, entry.order, key=by_order)]
