"""Requests that share a prompt's beginning and arrive together: one computes it, the others take it over. Pure; knows no queue.

A follower holds its slot but computes nothing until its leader's prompt has come as far as theirs agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from server.engine.kv import KvStore
from server.engine.request import Follow, Sequence
from server.requests import RANKS
from server.tokens import common_prefix

LEAST = 32
"""Tokens; sharing fewer is not worth the wait."""


def follow(sequence: Sequence, running: Iterable[Sequence]) -> Follow | None:
    """Whom of `running` a sequence that has just got its slot should wait for: the one that will hold most of its prompt."""
    best: Follow | None = None
    least = sequence.n_computed + LEAST
    for leader in running:
        if leader.paused or leader.n_computed >= leader.n_prompt or not _may_share(leader, sequence):
            continue
        n_common = min(common_prefix(leader.tokens[: leader.n_prompt], sequence.tokens), len(sequence.tokens) - 1)
        if n_common >= least and n_common > (best.n_tokens if best else 0):
            best = Follow(leader, n_common)
    return best


def _may_share(leader: Sequence, sequence: Sequence) -> bool:
    """Nobody waits for one of a lower class, whose prompt may take its time."""
    theirs, ours = leader.request, sequence.request
    return theirs.cache_prompt and theirs.namespace == ours.namespace and RANKS[theirs.priority] <= RANKS[ours.priority]


def resolve(running: Mapping[int, Sequence], kv: KvStore) -> Iterator[tuple[Sequence, int]]:
    """Let followers go on whose leader has come far enough, or will not any more. Yields them with the tokens they took over; who
    has found another leader still `follows`. Leaders are always earlier in `running`, so nobody waits in a circle.
    """
    earlier: list[Sequence] = []
    for sequence in running.values():
        if (following := sequence.follows) is not None:
            leader = following.leader
            is_there = running.get(leader.id) is leader and not leader.paused
            if is_there and leader.n_computed >= following.n_tokens:
                sequence.follows = None
                yield sequence, _take_over(sequence, leader.slot, following.n_tokens, kv)
            elif not is_there:
                n_shared = _find_again(sequence, leader, following.n_tokens, running, kv)
                sequence.follows = follow(sequence, earlier)
                yield sequence, n_shared
        earlier.append(sequence)


def _take_over(sequence: Sequence, source: int, n_tokens: int, kv: KvStore) -> int:
    before = sequence.n_computed
    held = kv.share(source, sequence.slot, n_tokens)
    sequence.n_computed = sequence.n_cached = held
    sequence.n_highest = max(sequence.n_highest, held)
    return max(0, held - before)


def _find_again(sequence: Sequence, leader: Sequence, n_tokens: int, running: Mapping[int, Sequence], kv: KvStore) -> int:
    """The leader has gone or stands still: take what it has left behind, or what it has computed by now."""
    if running.get(leader.id) is leader:
        n_ready = min(leader.n_computed, n_tokens)
        return _take_over(sequence, leader.slot, n_ready, kv) if n_ready > sequence.n_computed else 0
    namespace = sequence.request.namespace
    if kv.longest(namespace, sequence.tokens) <= sequence.n_computed:
        return 0
    before = sequence.n_computed
    kv.release(sequence.slot, namespace, sequence.tokens[:before], keep=True)
    attached = kv.attach(namespace, sequence.tokens, reuse=True)
    assert attached is not None, "a slot was just given back"
    sequence.slot = attached.slot
    sequence.n_computed = sequence.n_cached = attached.n_cached
    sequence.n_highest = max(sequence.n_highest, attached.n_cached)
    return max(0, attached.n_cached - before)
