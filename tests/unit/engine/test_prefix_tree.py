"""The tree says of any sequences what a list of them says, and holds no more tokens than they need."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.prefix_tree import PrefixTree, _Node

Entries = dict[int, list[int]]
TOKENS = st.lists(st.integers(0, 2), max_size=12)
CALLS = st.lists(
    st.tuples(st.sampled_from(["insert", "insert", "insert", "remove", "truncate", "rename"]), st.integers(0, 7), TOKENS), max_size=40
)


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def apply(tree: PrefixTree[int], entries: Entries, call: str, key: int, tokens: list[int]) -> None:
    if call == "insert":
        tree.insert(key, tokens)
        entries.pop(key, None)
        if tokens:
            entries[key] = tokens
    elif call == "remove":
        tree.remove(key)
        entries.pop(key, None)
    elif call == "rename" and key in entries:
        new = max(entries) + 1
        tree.rename(key, new)
        entries[new] = entries.pop(key)
    elif call == "truncate" and key in entries:
        tree.truncate(key, len(tokens))
        entries[key] = entries[key][: len(tokens)]
        if not entries[key]:
            del entries[key]


def check_shape(node: _Node[int], is_root: bool = True) -> int:
    """Tokens in the edges below; every node but the root holds a key or branches."""
    assert is_root or node.keys or len(node.children) > 1
    total = 0
    for token, child in node.children.items():
        assert child.edge[0] == token and child.parent is node and child.end == node.end + len(child.edge)
        total += len(child.edge) + check_shape(child, False)
    return total


@settings(max_examples=300)
@given(CALLS, st.lists(TOKENS, max_size=6))
def test_the_tree_agrees_with_a_list_of_lists(calls: list[tuple[str, int, list[int]]], queries: list[list[int]]) -> None:
    tree: PrefixTree[int] = PrefixTree()
    entries: Entries = {}
    for call in calls:
        apply(tree, entries, *call)
    assert len(tree) == len(entries)
    assert check_shape(tree._root) == len({tuple(entry[:n]) for entry in entries.values() for n in range(1, len(entry) + 1)})
    for key, entry in entries.items():
        others = [common(entry, other) for name, other in entries.items() if name != key]
        assert key in tree and list(tree.tokens(key)) == entry and tree.n_tokens(key) == len(entry)
        assert sorted(tree.twins(key)) == sorted(name for name, other in entries.items() if other == entry and name != key)
        # What is above a branch or another entry is shared, even where that entry is no longer than it.
        assert tree.n_alone(key) == len(entry) - max(others, default=0)
    for query in [*queries, *entries.values()]:
        check_query(tree, entries, query)


def check_query(tree: PrefixTree[int], entries: Entries, query: list[int]) -> None:
    shared = {key: n for key, entry in entries.items() if (n := common(entry, query))}
    most = max(shared.values(), default=0)
    assert tree.longest(query) == most
    n, keys = tree.match(query)
    assert (n, sorted(keys)) == (most, sorted(key for key in shared if shared[key] == most))
    ranked = list(tree.ranked(query))
    assert {key: n for n, key in ranked} == shared and len(ranked) == len(shared)
    assert [n for n, _ in ranked] == sorted(shared.values(), reverse=True)
    ends = list(tree.ends(query))
    assert sorted(key for _, key in ends) == sorted(key for key, n in shared.items() if n == len(entries[key]))
    assert [n for n, _ in ends] == sorted((len(entries[key]) for _, key in ends), reverse=True)


@given(st.lists(st.integers(0, 1), max_size=1500), st.integers(0, 1500), st.integers(0, 1))
def test_a_difference_is_found_at_any_place_of_a_long_edge(tokens: list[int], cut: int, other: int) -> None:
    tree: PrefixTree[int] = PrefixTree()
    tree.insert(0, tokens)
    changed = tokens[:cut] + [other] + tokens[cut + 1 :]
    assert tree.longest(changed) == common(tokens, changed)
