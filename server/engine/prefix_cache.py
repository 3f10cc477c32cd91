"""Who holds the beginning of which prompt: slots, and states saved in bounded host memory. Pure; knows no decoder and no clock.

Each namespace has a tree of its own, so nothing is found from another. Saved states go least recently used first; those of
requests that were put aside count against the same limit, push others out, and are never dropped.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from server.engine.ports import State
from server.engine.prefix_tree import PrefixTree


@dataclass(frozen=True, slots=True, eq=False)
class Saved:
    """A state in host memory that anyone of its namespace may restore; `n_tokens` cells."""

    state: State
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Entry:
    """Tokens under a namespace, on their way from one holder to another."""

    namespace: str
    tokens: array[int]


Holder = int | Saved
"""A slot or a saved state."""


class PrefixCache:
    """A holder has one entry at most. `whole`: an entry is of use only as it is, since the model cannot rewind."""

    def __init__(self, *, ram_limit: int, whole: bool) -> None:
        """`ram_limit`: bytes; 0 = nothing is saved."""
        self.ram_limit, self.whole = ram_limit, whole
        self.ram_bytes = 0
        self._trees: dict[str, PrefixTree[Holder]] = {}
        self._namespaces: dict[Holder, str] = {}
        self._saved: dict[Saved, None] = {}
        """Least recently used first."""
        self._swapped: dict[int, tuple[State, Entry | None]] = {}
        """By the state's identity, with what was published of it."""
        self._swapped_bytes = 0

    # ---- entries ---------------------------------------------------------------------------------------------------

    def hold(self, holder: Holder, namespace: str, tokens: Seq[int]) -> None:
        """The holder's entry is this now; empty = it has none."""
        if self._namespaces.get(holder, namespace) != namespace or not len(tokens):
            self.drop(holder)
        if len(tokens):
            self._namespaces[holder] = namespace
            self._trees.setdefault(namespace, PrefixTree()).insert(holder, tokens)

    def drop(self, holder: Holder) -> None:
        namespace = self._namespaces.pop(holder, None)
        if namespace is not None:
            self._trees[namespace].remove(holder)
            if not self._trees[namespace]:
                del self._trees[namespace]

    def cut(self, holder: Holder, n_tokens: int) -> None:
        """No more than the first `n_tokens` of the entry are left."""
        if n_tokens <= 0:
            self.drop(holder)
        elif holder in self._namespaces:
            self._trees[self._namespaces[holder]].truncate(holder, n_tokens)

    def move(self, holder: Holder, new: Holder) -> None:
        """`new`, which has no entry, takes over the holder's, if there is one."""
        namespace = self._namespaces.pop(holder, None)
        if namespace is not None:
            self._namespaces[new] = namespace
            self._trees[namespace].rename(holder, new)

    def entry(self, holder: Holder) -> Entry | None:
        namespace = self._namespaces.get(holder)
        return None if namespace is None else Entry(namespace, self._trees[namespace].tokens(holder))

    def n_tokens(self, holder: Holder) -> int:
        """Length of its entry; 0 = it has none."""
        namespace = self._namespaces.get(holder)
        return 0 if namespace is None else self._trees[namespace].n_tokens(holder)

    def n_alone(self, holder: Holder) -> int:
        """Tokens at the end of its entry that would have to be computed again if it went."""
        namespace = self._namespaces.get(holder)
        if namespace is None:
            return 0
        tree = self._trees[namespace]
        if self.whole:
            return 0 if tree.twins(holder) else tree.n_tokens(holder)
        return tree.n_alone(holder)

    # ---- queries ---------------------------------------------------------------------------------------------------

    def longest(self, namespace: str, tokens: Seq[int]) -> int:
        """How many tokens of a prompt some entry can give."""
        tree = self._trees.get(namespace)
        if tree is None:
            return 0
        return next((n for n, _ in tree.ends(tokens)), 0) if self.whole else tree.longest(tokens)

    def ranked(self, namespace: str, tokens: Seq[int]) -> Iterator[tuple[int, Holder]]:
        """Who can give how many tokens of a prompt, the most first. No entry may change meanwhile."""
        tree = self._trees.get(namespace)
        if tree is None:
            return iter(())
        return tree.ends(tokens) if self.whole else tree.ranked(tokens)

    # ---- host memory -----------------------------------------------------------------------------------------------

    @property
    def n_saved(self) -> int:
        return len(self._saved) + len(self._swapped)

    def could_take(self, n_bytes: int) -> bool:
        """Whether a state of this size would fit if all went that may go."""
        return self._swapped_bytes + n_bytes <= self.ram_limit

    def save(self, entry: Entry, state: State) -> bool:
        """Keep a state for anyone; those that it covers go. False = it does not fit."""
        if not self.could_take(state.n_bytes):
            return False
        if not self.whole:
            self._drop_covered(entry)
        self._make_room(state.n_bytes)
        saved = Saved(state, len(entry.tokens))
        self._saved[saved] = None
        self.ram_bytes += state.n_bytes
        self.hold(saved, entry.namespace, entry.tokens)
        return True

    def is_saved(self, holder: Holder) -> bool:
        """Whether there is a saved state of exactly the same tokens."""
        namespace = self._namespaces.get(holder)
        return namespace is not None and any(isinstance(twin, Saved) for twin in self._trees[namespace].twins(holder))

    def used(self, saved: Saved) -> None:
        """It goes last now."""
        if saved in self._saved:
            del self._saved[saved]
            self._saved[saved] = None

    def discard(self, saved: Saved) -> None:
        """Forget a saved state; nothing happens if it has gone already."""
        if saved in self._saved:
            del self._saved[saved]
            self.ram_bytes -= saved.state.n_bytes
            self.drop(saved)

    def swap(self, state: State, entry: Entry | None) -> bool:
        """Keep the state of a request that was put aside, and what was published of it. False = it does not fit."""
        if not self.could_take(state.n_bytes):
            return False
        self._make_room(state.n_bytes)
        self._swapped[id(state)] = (state, entry)
        self._swapped_bytes += state.n_bytes
        self.ram_bytes += state.n_bytes
        return True

    def unswap(self, state: State) -> Entry | None:
        """Forget a swapped state; gives back what was published of it. Nothing happens if it is not known."""
        if id(state) not in self._swapped:
            return None
        _, entry = self._swapped.pop(id(state))
        self._swapped_bytes -= state.n_bytes
        self.ram_bytes -= state.n_bytes
        return entry

    def _make_room(self, n_bytes: int) -> None:
        while self.ram_bytes + n_bytes > self.ram_limit:
            self.discard(next(iter(self._saved)))

    def _drop_covered(self, entry: Entry) -> None:
        tree = self._trees.get(entry.namespace)
        covered = [holder for _, holder in tree.ends(entry.tokens)] if tree else []
        for holder in covered:
            if isinstance(holder, Saved):
                self.discard(holder)
