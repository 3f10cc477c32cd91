"""A tree of flows with virtual token counters: who of a flow's children is served next, and in which queue. Knows no classes, no clock.

The algorithm is that of "Fairness in Serving Large Language Models" (Sheng et al., OSDI 2024, arXiv 2401.00588), nested: each flow has
a counter of what it was served (weighted tokens / its weight), the active child with the least one goes first, and who comes back
from being idle is lifted to where the others are, so that leaving gains nothing. Beyond the paper, what running requests are
expected to cost still (`held`) counts when the next one is chosen: a burst cannot take all slots before its first token is charged.
Counters themselves hold only what was really computed.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from itertools import count
from operator import attrgetter

from server.engine.accounts import expected_cost
from server.engine.request import Entry

IDLE_KEPT = 256
"""So many flows with nothing in work are remembered per parent; to be forgotten gains no more than a new name would."""
LOOKED_AT = 64
"""Siblings that an estimate of a position looks at."""

by_order: Callable[[Entry], int] = attrgetter("order")
_turns = count()


class Node:
    """A flow: a class (no parent), a key in it, an address, or a session, which has `entries` instead of children."""

    __slots__ = (
        "_heap", "_idle", "_last", "_stamp", "children", "cost_waiting", "counter", "entries", "held", "is_active",
        "n_active", "n_running", "n_waiting", "name", "parent", "path", "turn", "weight",
    )  # fmt: skip

    def __init__(self, name: str = "", parent: Node | None = None) -> None:
        self.name, self.parent, self.weight = name, parent, 1.0
        self.path: tuple[Node, ...] = () if parent is None else (*parent.path, self)
        """Key, address, session, as far as it is below them; the class is not among them, since nothing is compared with it."""
        self.counter = 0.0
        """What it was served: weighted tokens / weight."""
        self.held = 0.0
        """What its running requests are expected to cost still: weighted tokens."""
        self.n_waiting = self.n_running = 0
        self.cost_waiting = 0.0
        self.is_active = False
        """Among those of whom the parent chooses. Whoever is at a limit waits without being active."""
        self.children: dict[str, Node] = {}
        self.entries: list[Entry] = []
        self.n_active = 0
        self.turn = next(_turns)
        """Among equals the first goes first; unique."""
        self._stamp = 0
        self._heap: list[tuple[float, int, int, Node]] = []
        self._idle: dict[str, None] = {}
        self._last: Node | None = None

    @property
    def due(self) -> float:
        """The least one goes first."""
        return self.counter + self.held / self.weight

    @property
    def root(self) -> Node:
        """The class."""
        return self.path[0].parent or self if self.path else self

    @property
    def served(self) -> tuple[float, ...]:
        """Counters from the key down: what siblings are compared by."""
        return tuple([node.counter for node in self.path])

    # ---- who is next -------------------------------------------------------------------------------------------

    def first(self) -> Node | None:
        """The active child that is due first; among equals the one that has been active for longest."""
        while self._heap:
            due, turn, stamp, child = self._heap[0]
            if stamp != child._stamp:
                heapq.heappop(self._heap)
            elif child.due > due:
                heapq.heapreplace(self._heap, (child.due, turn, stamp, child))
            else:
                return child
        return None

    def leaf(self) -> Node:
        """The session whose turn it is. Something in here is active."""
        node = self
        while (child := node.first()) is not None:
            node = child
        return node

    def activate(self, wanted: bool) -> None:
        """Let the parent choose it, or not. Who comes is lifted to the one that is due first, or was active last; never lowered."""
        parent = self.parent
        if parent is None or wanted == self.is_active:
            return
        self._stamp += 1
        if wanted:
            self.counter = max(self.counter, parent._lift())
            self.turn = next(_turns)
            parent.n_active += 1
            parent._push(self)
        else:
            parent.n_active -= 1
            parent._last = self
        self.is_active = wanted

    def reconsider(self) -> None:
        """Its weight or what it holds has become less than what it was queued by."""
        if self.is_active and self.parent is not None:
            self._stamp += 1
            self.parent._push(self)

    def _push(self, child: Node) -> None:
        # What is out of date is dropped when it comes up; a rebuild now and then bounds how much of it there is.
        if len(self._heap) > 2 * self.n_active + 32:
            self._heap = [item for item in self._heap if item[2] == item[3]._stamp]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (child.due, child.turn, child._stamp, child))

    def _lift(self) -> float:
        first = self.first() or self._last
        return 0.0 if first is None else first.counter

    # ---- what waits --------------------------------------------------------------------------------------------

    def child(self, name: str) -> Node:
        node = self.children.get(name)
        if node is None:
            node = self.children[name] = Node(name, self)
        self._idle.pop(name, None)
        return node

    def insert(self, entry: Entry, cost: float) -> None:
        """Into a session. Keys are activated by the caller, who knows their limits; everything below them is here."""
        insort(self.entries, entry, key=by_order)
        self._waits(1, cost)
        for node in self.path[:0:-1]:
            node.activate(True)

    def take(self, entry: Entry, cost: float) -> None:
        """Out of a session."""
        del self.entries[self.index(entry)]
        self._waits(-1, -cost)
        for node in reversed(self.path):
            if not node.n_waiting:
                node.cost_waiting = 0.0
                node.activate(False)

    def index(self, entry: Entry) -> int:
        return bisect_left(self.entries, entry.order, key=by_order)

    def _waits(self, n: int, cost: float) -> None:
        for node in (self.root, *self.path):
            node.n_waiting += n
            node.cost_waiting += cost

    # ---- what runs ---------------------------------------------------------------------------------------------

    def runs(self, n: int) -> None:
        for node in (self.root, *self.path):
            node.n_running += n

    def hold(self, cost: float) -> None:
        for node in self.path:
            node.held += cost
            if cost < 0:
                node.reconsider()

    def charge(self, cost: float, held: float) -> None:
        """It was served `cost`, of which `held` had been expected."""
        for node in self.path:
            node.counter += cost / node.weight
            node.held -= held

    def tidy(self) -> None:
        """Forget what has nothing in work: within an idle flow everything, beside it those who would be lifted anyway."""
        for node in reversed(self.path):
            assert node.parent is not None
            if node.n_waiting or node.n_running:
                return
            node.clear()
            node.parent._idle[node.name] = None
            node.parent._forget()

    def clear(self) -> None:
        """Nothing in here waits or runs: everybody begins anew."""
        self.held = 0.0
        self.children.clear()
        self._idle.clear()
        self._heap.clear()
        self._last = None

    def _forget(self) -> None:
        lift = self._lift()
        while self._idle:
            longest = next(iter(self._idle))
            if self.children[longest].counter > lift and len(self._idle) <= IDLE_KEPT:
                return
            del self._idle[longest], self.children[longest]

    # ---- looking ahead -----------------------------------------------------------------------------------------

    def ahead_of(self, entry: Entry) -> int:
        """About how many of the class go before an entry of this session: by counters and mean costs."""
        n_ahead = self.index(entry)
        cost = n_ahead * self.cost_waiting / self.n_waiting
        for node in reversed(self.path):
            assert node.parent is not None
            n, more = node.parent._before(node, node.due + cost / node.weight)
            n_ahead, cost = n_ahead + n, cost + more
        return n_ahead

    def _before(self, child: Node, due: float) -> tuple[int, float]:
        """How many entries of a child's siblings go before it reaches `due`, and what they cost."""
        stride = len(self._heap) // LOOKED_AT + 1
        n_looked_at, n, cost = 0, 0.0, 0.0
        for _, _, stamp, sibling in self._heap[::stride]:
            if stamp == sibling._stamp and sibling is not child:
                n_looked_at += 1
                room = (due - sibling.due) * sibling.weight
                if room > 0 or (room == 0 and sibling.turn < child.turn):
                    mean = sibling.cost_waiting / sibling.n_waiting
                    n_first = min(sibling.n_waiting, int(room / mean) + 1)
                    n, cost = n + n_first, cost + n_first * mean
        scale = (self.n_active - child.is_active) / n_looked_at if n_looked_at else 0.0
        return round(n * scale), cost * scale


class Walk:
    """A flow while the future is played through: nothing in it is changed. What starts costs at once what it is expected to."""

    __slots__ = ("_entries", "_heap")

    def __init__(self, node: Node, children: Iterable[Node]) -> None:
        self._entries = sorted(reversed(node.entries), key=lambda entry: not entry.paused)
        self._heap = [
            (child.due, child.turn, child.weight, Walk(child, [node for node in child.children.values() if node.is_active]))
            for child in children
        ]
        heapq.heapify(self._heap)

    def __bool__(self) -> bool:
        return bool(self._entries or self._heap)

    def head(self) -> Entry:
        """The next entry."""
        walk = self
        while walk._heap:
            walk = walk._heap[0][3]
        return walk._entries[-1]

    def take(self) -> tuple[Entry, float]:
        """The next entry and its cost; it is gone then."""
        if not self._heap:
            entry = self._entries.pop()
            return entry, sum(expected_cost(entry))
        due, turn, weight, walk = self._heap[0]
        entry, cost = walk.take()
        if walk._entries or walk._heap:
            heapq.heapreplace(self._heap, (due + cost / weight, turn, weight, walk))
        else:
            heapq.heappop(self._heap)
        return entry, cost
