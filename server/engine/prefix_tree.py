"""A radix tree over token ids: under each key one token sequence, found by its beginning. Pure; knows no slot, no cell and no clock.

Token granular: an edge holds as many tokens as nothing branches off, so memory is that of the live entries, shared parts once.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator
from collections.abc import Sequence as Seq
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class _Node(Generic[Key]):
    """`edge` leads here from `parent`; `end` is how many tokens there are from the root to here."""

    __slots__ = ("children", "edge", "end", "keys", "parent")

    def __init__(self, edge: array[int], parent: _Node[Key] | None, end: int) -> None:
        self.edge, self.parent, self.end = edge, parent, end
        self.children: dict[int, _Node[Key]] = {}
        self.keys: dict[Key, None] = {}


class PrefixTree(Generic[Key]):
    """No entry is empty. A query costs its own length, however many entries there are; what lists entries costs those besides."""

    def __init__(self) -> None:
        self._root: _Node[Key] = _Node(array("i"), None, 0)
        self._nodes: dict[Key, _Node[Key]] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, key: Key) -> bool:
        return key in self._nodes

    # ---- entries ---------------------------------------------------------------------------------------------------

    def insert(self, key: Key, tokens: Seq[int]) -> None:
        """Under `key` are now these tokens, and nothing else. An empty sequence is no entry."""
        old = self._nodes.pop(key, None)
        if len(tokens):
            node = self._reach(packed(tokens))
            self._nodes[key] = node
            node.keys[key] = None
            if old is node:
                return
        if old is not None:
            del old.keys[key]
            self._tidy(old)

    def remove(self, key: Key) -> None:
        """Nothing is under `key` any more."""
        self.insert(key, ())

    def truncate(self, key: Key, n_tokens: int) -> None:
        """Keep the first `n_tokens` of an entry."""
        node = self._nodes[key]
        if n_tokens >= node.end:
            return
        if n_tokens <= 0:
            return self.remove(key)
        place = node
        while place.parent is not None and place.parent.end >= n_tokens:
            place = place.parent
        if place.end > n_tokens:
            place = _split(place, n_tokens)
        del node.keys[key]
        place.keys[key] = None
        self._nodes[key] = place
        self._tidy(node)

    def rename(self, key: Key, new: Key) -> None:
        """What was under `key` is under `new`, which was not in use."""
        node = self._nodes.pop(key)
        del node.keys[key]
        node.keys[new] = None
        self._nodes[new] = node

    def n_tokens(self, key: Key) -> int:
        """Length of the entry; 0 = there is none."""
        node = self._nodes.get(key)
        return 0 if node is None else node.end

    def tokens(self, key: Key) -> array[int]:
        edges = []
        node: _Node[Key] | None = self._nodes[key]
        while node is not None:
            edges.append(node.edge)
            node = node.parent
        whole = array("i")
        for edge in reversed(edges):
            whole += edge
        return whole

    def n_alone(self, key: Key) -> int:
        """How many tokens at the end of this entry no other one holds. Costs nothing: it is the entry's own edge or none."""
        node = self._nodes[key]
        return 0 if node.children or len(node.keys) > 1 else len(node.edge)

    def twins(self, key: Key) -> list[Key]:
        """The other entries of exactly the same tokens."""
        return [other for other in self._nodes[key].keys if other != key]

    # ---- queries ---------------------------------------------------------------------------------------------------

    def longest(self, tokens: Seq[int]) -> int:
        """Length of the longest common beginning with any entry."""
        return self._walk(packed(tokens))[1]

    def match(self, tokens: Seq[int]) -> tuple[int, list[Key]]:
        """The longest common beginning with any entry, and who holds it."""
        node, n = self._walk(packed(tokens))
        return n, list(_under(node)) if n else []

    def ranked(self, tokens: Seq[int]) -> Iterator[tuple[int, Key]]:
        """Each entry with a common beginning and its length, longest first. The tree must not change meanwhile."""
        node, n = self._walk(packed(tokens))
        if not n:
            return
        for key in _under(node):
            yield n, key
        while (parent := node.parent) is not None and parent.end:
            for key in parent.keys:
                yield parent.end, key
            for child in parent.children.values():
                if child is not node:
                    for key in _under(child):
                        yield parent.end, key
            node = parent

    def ends(self, tokens: Seq[int]) -> Iterator[tuple[int, Key]]:
        """Each entry that is wholly a beginning of `tokens` and its length, longest first. The tree must not change meanwhile."""
        found, n = self._walk(packed(tokens))
        node: _Node[Key] | None = found if n == found.end else found.parent
        while node is not None:
            for key in node.keys:
                yield node.end, key
            node = node.parent

    # ---- nodes -----------------------------------------------------------------------------------------------------

    def _walk(self, query: array[int]) -> tuple[_Node[Key], int]:
        """The last node whose edge the query enters, and how many tokens agree until the query or the tree ends, or they differ."""
        node, n = self._root, 0
        while n < len(query) and (child := node.children.get(query[n])) is not None:
            node, n = child, n + _common(query, n, child.edge)
            if n < node.end:
                break
        return node, n

    def _reach(self, query: array[int]) -> _Node[Key]:
        """The node at the end of `query`; it is made if there is none."""
        node, n = self._walk(query)
        if n < node.end:
            node = _split(node, n)
        if n == len(query):
            return node
        leaf = _Node(query[n:], node, len(query))
        node.children[query[n]] = leaf
        return leaf

    def _tidy(self, node: _Node[Key]) -> None:
        """Drop or merge a node that has become needless, and those above it that it was the reason for."""
        while (parent := node.parent) is not None and not node.keys and not node.children:
            del parent.children[node.edge[0]]
            node = parent
        if node.parent is not None and not node.keys and len(node.children) == 1:
            (child,) = node.children.values()
            child.edge = node.edge + child.edge
            child.parent = node.parent
            node.parent.children[child.edge[0]] = child


def packed(tokens: Seq[int]) -> array[int]:
    """Four bytes a token, compared many at a time."""
    return tokens if isinstance(tokens, array) else array("i", tokens)


def _split(node: _Node[Key], n_tokens: int) -> _Node[Key]:
    """A node inside the edge of `node`, `n_tokens` from the root; it becomes the parent of `node`, which stays where it is."""
    parent = node.parent
    assert parent is not None and parent.end < n_tokens < node.end
    upper: _Node[Key] = _Node(node.edge[: n_tokens - parent.end], parent, n_tokens)
    parent.children[upper.edge[0]] = upper
    node.edge, node.parent = node.edge[n_tokens - parent.end :], upper
    upper.children[node.edge[0]] = node
    return upper


def _under(top: _Node[Key]) -> Iterator[Key]:
    """The keys of `top` and of all below it."""
    nodes = [top]
    while nodes:
        node = nodes.pop()
        yield from node.keys
        nodes += node.children.values()


def _common(query: array[int], start: int, edge: array[int]) -> int:
    """How many tokens of `edge` agree with `query` from `start` on. The first difference is found by halving, at C speed."""
    same, differ = 0, min(len(edge), len(query) - start)
    if query[start : start + differ] == edge[:differ]:
        return differ
    while differ - same > 1:
        middle = (same + differ) // 2
        if query[start + same : start + middle] == edge[same:middle]:
            same = middle
        else:
            differ = middle
    return same
