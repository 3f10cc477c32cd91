"""Contract: a GBNF grammar in Lark's notation matches the same texts, tried on random grammars against a recogniser of their own."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from server.llama.constraint import GrammarConstraints
from server.llama.gbnf import Chars, Choice, Join, Node, Ref, Repeat, Rules, parse_gbnf
from server.llama.model import Model
from server.protocol import Constraint

FIRST_BYTE = 3
"""The token of byte 0 in the tiny vocabulary."""
LETTERS = "abc"


class Recogniser:
    """Says what a grammar matches, by trying everything."""

    def __init__(self, rules: Rules, text: str) -> None:
        self._rules, self._text = rules, text
        self._ends: dict[tuple[str, int], set[int]] = {}

    def matches(self) -> bool:
        while True:  # rules that begin with themselves: until nothing more is found
            before = sum(map(len, self._ends.values()))
            found = len(self._text) in self._after(Ref("root"), {0}, set())
            if found or sum(map(len, self._ends.values())) == before:
                return found

    def _after(self, node: Node, starts: set[int], under_way: set[tuple[str, int]]) -> set[int]:
        match node:
            case Chars(ranges):
                within = (at for at in starts if at < len(self._text))
                return {at + 1 for at in within if any(low <= ord(self._text[at]) <= high for low, high in ranges)}
            case Choice(options):
                return set().union(*(self._after(option, starts, under_way) for option in options))
            case Join(items):
                for item in items:
                    starts = self._after(item, starts, under_way)
                return starts
            case Repeat(item, least, most):
                found = set(starts) if least == 0 else set()
                for count in itertools.count(1):
                    if (most is not None and count > most) or (count > least and starts <= found and count > len(self._text)):
                        return found
                    starts = self._after(item, starts, under_way)
                    if count >= least:
                        if starts <= found:
                            return found
                        found |= starts
            case Ref(name):
                return set().union(*(self._rule(name, at, under_way) for at in starts))
        raise AssertionError

    def _rule(self, name: str, at: int, under_way: set[tuple[str, int]]) -> set[int]:
        known = self._ends.setdefault((name, at), set())
        if (name, at) not in under_way:
            known |= self._after(self._rules[name], {at}, under_way | {(name, at)})
        return known


def random_node(source: random.Random, names: list[str], depth: int) -> str:
    kind = source.choice("clljrrog" if depth else "cllr")
    match kind:
        case "c":
            return source.choice(["[a-b]", "[^a]", "[b]", ".", "[a-c]"])
        case "l":
            return '"' + "".join(source.choices(LETTERS, k=source.randint(0, 3))) + '"'
        case "r":
            return source.choice(names)
        case "j":
            return " ".join(random_node(source, names, depth - 1) for _ in range(source.randint(1, 3)))
        case "o":
            return "(" + " | ".join(random_node(source, names, depth - 1) for _ in range(source.randint(1, 3))) + ")"
        case _:
            return f"({random_node(source, names, depth - 1)}){source.choice(['*', '+', '?', '{2}', '{1,2}', '{0,3}', '{2,}'])}"


def random_grammar(source: random.Random) -> str:
    names = ["root", "x", "y"]
    return "\n".join(f"{name} ::= {random_node(source, names, 3)} {random_node(source, names, 2)}" for name in names)


@pytest.fixture(scope="module")
def constraints(tiny_models: dict[str, Model]) -> Iterator[GrammarConstraints]:
    made = GrammarConstraints(tiny_models["llama"].vocab)
    yield made
    made.close()


TEXTS = ["".join(letters) for length in range(5) for letters in itertools.product(LETTERS, repeat=length)]


def accepts(matcher: Any, text: str) -> bool:
    copy, tokens = matcher.deep_copy(), [FIRST_BYTE + byte for byte in text.encode()]
    return bool(copy.try_consume_tokens(tokens) == len(tokens) and copy.is_accepting())


@pytest.mark.parametrize("seed", range(4))
def test_random_grammars_match_the_same_texts(constraints: GrammarConstraints, seed: int) -> None:
    source = random.Random(seed)
    n_compared = n_lexemes = 0
    while n_compared < 20:
        grammar = random_grammar(source)
        rules = parse_gbnf(grammar)
        expected = {text for text in TEXTS if Recogniser(rules, text).matches()}
        if not expected:
            continue  # it may match nothing at all, which is refused
        matcher = constraints._find(Constraint(kind="gbnf", source=grammar))
        found = {text for text in TEXTS if accepts(matcher, text)}
        assert found == expected, f"{grammar}\n{constraints._grammar('gbnf', grammar)}"
        n_compared += 1
        n_lexemes += "{" in constraints._grammar("gbnf", grammar)
    assert n_lexemes


@pytest.mark.parametrize(
    ("grammar", "yes", "no"),
    [
        ('root ::= [^"\\n]+', ["é漢😀", "/", "\\"], ['"', "", "a\n"]),
        ("root ::= .", ["\n", "漢", "/", "\x00"], ["", "ab"]),
        (r'root ::= "\u00e9\U0001F600" [\x41-\x43]', ["é😀B"], ["é😀b", "é"]),
        ('root ::= "/" [/\\]\\-^]', ["//", "/]", "/-", "/^"], ["/a"]),
        ('root ::= "(" root ")" | [a-z]*', ["", "((x))", "(())"], ["(", "(()"]),
        ('root ::= root "a" | "b"', ["b", "baa"], ["a", "bb"]),
    ],
)
def test_characters(constraints: GrammarConstraints, grammar: str, yes: list[str], no: list[str]) -> None:
    matcher = constraints._find(Constraint(kind="gbnf", source=grammar))
    assert [accepts(matcher, text) for text in yes] == [True] * len(yes)
    assert [accepts(matcher, text) for text in no] == [False] * len(no)
