"""When a piece of a GBNF grammar may be read as one lexeme: where its end can be told from the next character alone. Pure.

The grammar compiler cuts text into lexemes greedily: a lexeme goes on as long as any lexeme can. A GBNF grammar has no lexemes, so a
piece may become one only if greed never errs, that is, if no lexeme can go on with a character that may also follow the piece. The
characters after which a lexeme may go on come from running position automata (Glushkov 1961) of two lexemes side by side.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from server.llama.gbnf import MAX_CODE_POINT, Chars, Choice, Join, Node, Ranges, Ref, Repeat, Rules

MAX_POSITIONS = 400
"""Characters of a lexeme, repetitions counted once."""
MAX_WORK = 200_000
"""Pairs of positions that are looked at for one grammar: about 0.3 s."""


class TooLarge(Exception):
    """It may be a lexeme or not; finding out would take too long."""


class Alphabet:
    """Sets of characters as numbers, a bit for each class of characters that no rule tells apart."""

    def __init__(self, rules: Rules) -> None:
        starts = {0}
        for node in rules.values():
            for low, high in _all_ranges(node):
                starts |= {low, high + 1}
        self._starts = sorted(start for start in starts if start <= MAX_CODE_POINT)

    def mask(self, ranges: Ranges) -> int:
        found = 0
        for low, high in ranges:
            first, last = bisect_left(self._starts, low), bisect_left(self._starts, high + 1)
            found |= (1 << last) - (1 << first)
        return found


def _all_ranges(node: Node) -> Iterable[tuple[int, int]]:
    match node:
        case Chars(ranges):
            yield from ranges
        case Join(items) | Choice(items):
            for item in items:
                yield from _all_ranges(item)
        case Repeat(item):
            yield from _all_ranges(item)


@dataclass(slots=True)
class Automaton:
    """`masks`, `after`: of each position the characters it stands for, and the positions that may come next."""

    masks: list[int] = field(default_factory=list)
    after: list[set[int]] = field(default_factory=list)
    first: set[int] = field(default_factory=set)
    last: set[int] = field(default_factory=set)

    @property
    def first_mask(self) -> int:
        return _union(self.masks, self.first)


def _union(masks: Sequence[int], positions: Iterable[int]) -> int:
    found = 0
    for position in positions:
        found |= masks[position]
    return found


def automaton(node: Node, rules: Rules, alphabet: Alphabet) -> Automaton:
    """Of a node without recursion. Counts of repetitions are forgotten: once or more, so it may accept more than the node does.

    Raises:
        TooLarge: it has too many positions.
    """
    made = Automaton()

    def build(node: Node) -> tuple[set[int], set[int], bool]:
        """First and last positions, and whether the node can be empty."""
        match node:
            case Chars(ranges):
                if len(made.masks) >= MAX_POSITIONS:
                    raise TooLarge
                made.masks.append(alphabet.mask(ranges))
                made.after.append(set())
                return {len(made.masks) - 1}, {len(made.masks) - 1}, False
            case Ref(name):
                return build(rules[name])
            case Choice(options):
                parts = [build(option) for option in options]
                return set().union(*(p[0] for p in parts)), set().union(*(p[1] for p in parts)), any(p[2] for p in parts)
            case Repeat(item, least, most):
                if most == 0:
                    return set(), set(), True
                first, last, empty = build(item)
                if most != 1:
                    for position in last:
                        made.after[position] |= first
                return first, last, empty or least == 0
            case Join(items):
                first, last, empty = set(), set(), True
                for item in items:
                    more_first, more_last, more_empty = build(item)
                    for position in last:
                        made.after[position] |= more_first
                    first |= more_first if empty else set()
                    last = more_last | (last if more_empty else set())
                    empty = empty and more_empty
                return first, last, empty

    made.first, made.last, _ = build(node)
    return made


def goes_on_with(ending: Automaton, other: Automaton, work: Callable[[int], None]) -> int:
    """The characters with which `other` can go on where `ending` has just matched the same text as a whole."""
    found = 0
    pending = [(a, b) for a, b in product(ending.first, other.first) if ending.masks[a] & other.masks[b]]
    seen = set(pending)
    while pending:
        a, b = pending.pop()
        if a in ending.last:
            found |= _union(other.masks, other.after[b])
        work(1 + len(ending.after[a]) * len(other.after[b]))
        for pair in product(ending.after[a], other.after[b]):
            if pair not in seen and ending.masks[pair[0]] & other.masks[pair[1]]:
                seen.add(pair)
                pending.append(pair)
    return found


Symbol = int
"""Lexemes are numbered from 0 up, rules from -1 down."""
Productions = Mapping[Symbol, Sequence[Sequence[Symbol]]]


def followers(productions: Productions, root: Symbol, first_masks: Sequence[int]) -> dict[Symbol, int]:
    """The characters that may come after each lexeme and each rule: FIRST and FOLLOW of the textbooks. Lexemes are never empty."""
    empty: set[Symbol] = set()
    first: dict[Symbol, int] = {symbol: 0 for symbol in productions} | dict(enumerate(first_masks))
    follow: dict[Symbol, int] = dict.fromkeys(first, 0)
    changed = True
    while changed:
        changed = False
        for symbol, alternatives in productions.items():
            for alternative in alternatives:
                found, is_empty = 0, True
                for part in alternative:
                    if is_empty:
                        found |= first[part]
                    is_empty = is_empty and part in empty
                if (is_empty and symbol not in empty) or found | first[symbol] != first[symbol]:
                    changed = True
                    first[symbol] |= found
                    if is_empty:
                        empty.add(symbol)
    changed = True
    while changed:
        changed = False
        for symbol, alternatives in productions.items():
            for alternative in alternatives:
                after = follow[symbol]
                for part in reversed(alternative):
                    if after | follow[part] != follow[part]:
                        follow[part] |= after
                        changed = True
                    after = first[part] | (after if part in empty else 0)
    return follow
