"""The policy `fair`: classes with minimum shares, within a class fair shares of keys, addresses and sessions, within a session the
longest cached prefix first, with bounds. Knows no slots, no cells and no clock."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from server.engine.accounts import OUTPUT_COST, PROMPT_COST, Accounts, expected_cost
from server.engine.classes import Credits, Paid
from server.engine.flows import Node, Walk
from server.engine.request import Entry, PutAside, Sequence
from server.engine.victims import Candidate, first_to_yield, victim
from server.figures import KeyShare
from server.requests import CLASSES, RANKS

WINDOW = 8
"""Of so many at the head of a session's queue, the one with the longest cached prefix goes."""
MOST_PASSED = 4
"""Whoever has been passed by so often cannot be passed again."""
AGED_STEPS = 64
"""Steps without a token computed after which a prompt goes before the others of its class."""


@dataclass(slots=True)
class _Run:
    """What a running request has been held to cost and not been charged yet (weighted tokens), and who pays."""

    leaf: Node
    key: str
    paid: Paid
    prompt_left: float
    output_left: float
    began: int
    """The step it was started after."""


class Fair:
    """Who is served: by class, key, address, session, cached prefix, order; see `Credits` and `Node` for the two algorithms.

    Bounds. Two flows side by side that both always have somebody waiting: what they were served differs by at most
    2 x max(input weight x longest prompt, output weight x tokens that can be in the running set), over any time. A class that
    always has somebody waiting is served its share (`SHARES`) less `MOST_SAVED` and one request. An entry at the head of its
    session is passed by at most `MOST_PASSED` times. A request is put aside for another's sake at most `max_preemptions` times.
    """

    def __init__(self, max_preemptions: int = 3) -> None:
        self._max_preemptions = max_preemptions
        self._classes = [Node(name) for name in CLASSES]
        self._credits = Credits()
        self._accounts = Accounts()
        self._runs: dict[int, _Run] = {}
        self._seen: tuple[int, int] = (-1, 0)
        """Who goes next, and how much of it is cached."""
        self._step = 0
        self._no_room = False
        """Nobody made room for the last one that asked, and no slot has become free since."""

    def __len__(self) -> int:
        return sum(node.n_waiting for node in self._classes)

    # ---- the queue ---------------------------------------------------------------------------------------------

    def add(self, entry: Entry) -> int:
        self._settle()
        flow = entry.request.flow
        account = self._accounts.waits(flow)
        root = self._classes[RANKS[entry.request.priority]]
        leaf = root.child(flow.key).child(flow.address).child(flow.session)
        leaf.insert(entry, sum(expected_cost(entry)))
        self._key_changed(flow.key, account.weight)
        higher = self._classes[: RANKS[entry.request.priority]]
        return sum(node.n_waiting for node in higher) + leaf.ahead_of(entry)

    def remove(self, entry: Entry) -> None:
        self._settle()
        leaf = self._leaf(entry)
        leaf.take(entry, sum(expected_cost(entry)))
        self._accounts.withdrawn(entry.request.flow.key)
        self._tidy(leaf, RANKS[entry.request.priority])

    def next(self, cached: Callable[[Entry], int]) -> Entry | None:
        self._settle()
        waiting = self._waiting()
        if not any(waiting):
            return None
        # A low class's turn is the next slot that becomes free; nobody is put aside for it, and it is in nobody's way until then.
        rank = waiting.index(True) if self._no_room else self._credits.due(waiting, self._price)
        entry, n_cached = chosen(self._classes[rank].leaf().entries, cached)
        self._seen = (entry.id, n_cached)
        return entry

    def start(self, entry: Entry) -> None:
        self._settle()
        flow, rank = entry.request.flow, RANKS[entry.request.priority]
        leaf = self._leaf(entry)
        for passed in leaf.entries[: leaf.index(entry)]:
            passed.n_passed += 1
        prompt, output = expected_cost(entry)
        leaf.take(entry, prompt + output)
        if self._seen[0] == entry.id and not isinstance(entry, PutAside):
            prompt = max(PROMPT_COST, prompt - PROMPT_COST * self._seen[1])
        paid = self._credits.start(rank, prompt + output, self._waiting())
        self._runs[entry.id] = _Run(leaf, flow.key, paid, prompt, output, self._step)
        leaf.runs(1)
        leaf.hold(prompt + output)
        self._accounts.starts(flow.key)
        self._key_changed(flow.key)

    def stop(self, sequence: Sequence) -> None:
        self._settle()
        self._no_room = False
        run = self._runs.pop(sequence.id)
        run.leaf.hold(-run.prompt_left - run.output_left)
        run.leaf.runs(-1)
        self._credits.stop(run.paid)
        self._accounts.stops(run.key)
        self._key_changed(run.key)
        self._tidy(run.leaf, run.paid.rank)

    def charge(self, sequence: Sequence, *, n_prompt: int = 0, n_output: int = 0) -> None:
        run = self._runs[sequence.id]
        self._step = max(self._step, sequence.last_step)
        prompt, output = PROMPT_COST * n_prompt, OUTPUT_COST * n_output
        held_prompt, held_output = min(prompt, run.prompt_left), min(output, run.output_left)
        run.prompt_left -= held_prompt
        run.output_left -= held_output
        run.leaf.charge(prompt + output, held_prompt + held_output)
        if n_output and run.prompt_left:
            run.leaf.hold(-run.prompt_left)  # the rest was cached after all
            run.prompt_left = 0.0
        self._accounts.charge(run.key, prompt + output)
        self._credits.charge(run.paid, prompt + output)

    def __iter__(self) -> Iterator[Entry]:
        self._settle()
        credits = self._credits.copy()
        walks = [Walk(root, [key for key in root.children.values() if key.is_active]) for root in self._classes]
        waiting, none_runs = [bool(walk) for walk in walks], [False] * len(walks)
        while any(waiting):
            rank = credits.due(waiting, lambda rank: sum(expected_cost(walks[rank].head())))
            entry, cost = walks[rank].take()
            waiting[rank] = bool(walks[rank])
            if any(waiting[1:]):
                credits.charge(credits.start(rank, cost, waiting), cost)
                credits.settle(waiting, none_runs)
            yield entry
        for root in self._classes:  # keys at their limit go on when one of their own is over, which nobody knows
            walk = Walk(root, [key for key in root.children.values() if key.n_waiting and not key.is_active])
            while walk:
                yield walk.take()[0]

    # ---- who makes room ----------------------------------------------------------------------------------------

    def victim(self, entry: Entry, running: Collection[Sequence]) -> Sequence | None:
        candidates = [self._candidate(sequence) for sequence in running]
        found = victim(self._leaf(entry), RANKS[entry.request.priority], candidates, self._max_preemptions, is_paused=entry.paused)
        self._no_room = found is None
        return None if found is None else found.sequence

    def yields(self, running: Collection[Sequence]) -> Sequence:
        return first_to_yield([self._candidate(sequence) for sequence in running], self._max_preemptions).sequence

    def urgency(self, sequence: Sequence) -> tuple[float, ...]:
        self._settle()
        run = self._runs[sequence.id]
        rank = -1 if self._credits.owes_step(run.paid.rank) else run.paid.rank
        last = max(sequence.last_step, run.began)
        if self._step - last >= AGED_STEPS:
            return (rank, 0, last)
        return (rank, 1, *run.leaf.served, sequence.n_pending)

    def shares(self) -> list[KeyShare]:
        return self._accounts.shares()

    def _candidate(self, sequence: Sequence) -> Candidate:
        run = self._runs[sequence.id]
        return Candidate(sequence, run.leaf, run.paid.rank, in_its_share=run.paid.left > 0)

    # ---- bookkeeping -------------------------------------------------------------------------------------------

    def _leaf(self, entry: Entry) -> Node:
        flow = entry.request.flow
        return self._classes[RANKS[entry.request.priority]].children[flow.key].children[flow.address].children[flow.session]

    def _waiting(self) -> list[bool]:
        """Which classes have somebody who may go."""
        return [node.n_active > 0 for node in self._classes]

    def _settle(self) -> None:
        self._credits.settle(self._waiting(), [node.n_running > 0 for node in self._classes])

    def _price(self, rank: int) -> float:
        return sum(expected_cost(chosen(self._classes[rank].leaf().entries, _nothing)[0]))

    def _key_changed(self, key: str, weight: float | None = None) -> None:
        """A key has reached its limit or is below it again, or its weight is another now, in whatever class it waits."""
        for root in self._classes:
            node = root.children.get(key)
            if node is None:
                continue
            if weight is not None and weight != node.weight:
                node.weight = weight
                node.reconsider()
            node.activate(node.n_waiting > 0 and key not in self._accounts.at_limit)

    def _tidy(self, leaf: Node, rank: int) -> None:
        leaf.tidy()
        root = self._classes[rank]
        if not root.n_waiting and not root.n_running:
            root.clear()
            self._credits.idle(rank)


def _nothing(entry: Entry) -> int:
    return 0


def chosen(entries: Seq[Entry], cached: Callable[[Entry], int]) -> tuple[Entry, int]:
    """Who of a session goes next, and how much of it is cached: the longest cached prefix among the first few, unless somebody
    before it has been passed by too often. A paused entry has nobody who reads what it would say: it waits if another does not."""
    best, most = entries[0], -1
    for entry in entries[:WINDOW]:
        if entry.paused:
            continue
        n_cached = cached(entry)
        if n_cached > most:
            best, most = entry, n_cached
        if entry.n_passed >= MOST_PASSED:
            break
    return best, (most if most >= 0 else cached(best))
