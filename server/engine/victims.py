"""Who of those that run makes room for whom, where shares are fair. Knows no queue but the counters of its flows, and no slots."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from server.engine.flows import Node
from server.engine.request import Sequence


@dataclass(frozen=True, slots=True)
class Candidate:
    """One that runs, in the session `leaf` of the class `rank`."""

    sequence: Sequence
    leaf: Node
    rank: int
    in_its_share: bool
    """It runs on its class's minimum share: a higher class had to let it pass, and would have to again."""

    @property
    def served_most(self) -> tuple[tuple[float, ...], int]:
        """The greatest goes first: of the most served key, then address, then session the one that has least computed to save."""
        return self.leaf.served, -self.sequence.n_computed


def victim(leaf: Node, rank: int, running: Seq[Candidate], max_preemptions: int, *, is_paused: bool) -> Candidate | None:
    """Who is put aside so that an entry of the session `leaf` gets a slot; None = nobody.

    First one that is paused, of its own class or a lower one: its reader does not keep up, so it holds a slot and computes nothing,
    and many such readers could hold all slots. Then one of the lowest class, unless it runs on that class's minimum share. Then,
    within the class, one of a flow that runs more than its share while the entry's runs less. Whoever has been put aside
    `max_preemptions` times is left alone, paused or not, so that every request comes to an end.
    """
    allowed = [candidate for candidate in running if candidate.rank >= rank and candidate.sequence.n_preemptions < max_preemptions]
    paused = [] if is_paused else [candidate for candidate in allowed if candidate.sequence.paused]
    lower = [candidate for candidate in allowed if candidate.rank > rank and not candidate.in_its_share]
    if paused or lower:
        return max(paused or lower, key=lambda candidate: (candidate.rank, candidate.served_most))
    weights = _weights(leaf.path, [candidate for candidate in running if candidate.rank == rank])
    over = [candidate for candidate in allowed if candidate.rank == rank and _may_swap(leaf, candidate.leaf, weights)]
    return max(over, key=lambda candidate: candidate.served_most, default=None)


def first_to_yield(running: Seq[Candidate], max_preemptions: int) -> Candidate:
    """Who is put aside when memory runs out. Those who have been put aside often enough only if there is nobody else."""

    def key(candidate: Candidate) -> tuple[bool, int, bool, tuple[tuple[float, ...], int]]:
        sequence = candidate.sequence
        return sequence.n_preemptions < max_preemptions, candidate.rank, sequence.paused, candidate.served_most

    return max(running, key=key)


def _may_swap(leaf: Node, other: Node, weights: Seq[float]) -> bool:
    """At the first level where the two are not of the same flow, the entry's flow has to run less than its share of what their
    parent runs, the victim's more, and it must still be so, or even, when they have changed places.

    So the sum of n^2 / weight falls with every change, and changes come to an end.
    """
    for mine, theirs, total in zip(leaf.path, other.path, weights, strict=True):
        if mine is not theirs:
            assert mine.parent is not None
            share = mine.parent.n_running / total
            under, over = mine.n_running / mine.weight < share, theirs.n_running / theirs.weight > share
            return under and over and (theirs.n_running - 1) / theirs.weight >= (mine.n_running + 1) / mine.weight
    return False


def _weights(mine: Seq[Node], running: Iterable[Candidate]) -> list[float]:
    """At each level the weights of all flows beside `mine` that run something, and its own."""
    flows = [{node} for node in mine]
    for candidate in running:
        for level, node in enumerate(candidate.leaf.path):
            if node.parent is mine[level].parent:
                flows[level].add(node)
    return [sum(node.weight for node in level) for level in flows]
