"""llama.cpp's grammar notation, GBNF: from text to a tree of rules, read as llama.cpp reads it. Knows no other notation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from server.llama.schema import MAX_NESTING, TooMuch

MAX_CODE_POINT = 0x10FFFF
MAX_REPEATS = 100_000
"""Larger counts are refused. (llama.cpp takes those over 2,000 for "any number".)"""

Ranges = tuple[tuple[int, int], ...]
"""Code points, ascending and apart, both ends included."""


@dataclass(frozen=True, slots=True)
class Chars:
    """One character out of these."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Ref:
    name: str


@dataclass(frozen=True, slots=True)
class Join:
    """One after the other; none: the empty text."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    item: Node
    least: int
    most: int | None


Node = Chars | Ref | Join | Choice | Repeat
Rules = dict[str, Node]

EMPTY = Join(())
ROOT = "root"
_NAME = re.compile(r"[A-Za-z0-9-]+")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]", "-": "-"}
_HEX = {"x": 2, "u": 4, "U": 8}


def parse_gbnf(text: str) -> Rules:
    """The rules by name; `root` is among them, and every name is defined.

    Raises:
        ValueError: it is no such grammar, or uses what is not supported.
    """
    rules = _Parser(text).rules()
    if ROOT not in rules:
        raise ValueError('there is no rule "root"')
    for node in rules.values():
        for name in _names(node):
            if name not in rules:
                raise ValueError(f'there is no rule "{name[:60]}"')
    return rules


def _names(node: Node) -> set[str]:
    match node:
        case Ref(name):
            return {name}
        case Join(items) | Choice(items):
            return set().union(*map(_names, items))
        case Repeat(item):
            return _names(item)
    return set()


def merged(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """The same code points in order, and no two ranges that touch."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return tuple(out)


def others(ranges: Ranges) -> Ranges:
    out, start = [], 0
    for low, high in ranges:
        if low > start:
            out.append((start, low - 1))
        start = high + 1
    if start <= MAX_CODE_POINT:
        out.append((start, MAX_CODE_POINT))
    return tuple(out)


ANY = Chars(((0, MAX_CODE_POINT),))


@dataclass(slots=True)
class _Parser:
    text: str
    at: int = 0
    depth: int = 0
    found: Rules = field(default_factory=dict)

    def rules(self) -> Rules:
        self._skip(lines=True)
        while self.at < len(self.text):
            name = self._name()
            self._skip(lines=False)
            self._expect("::=")
            self._skip(lines=True)
            self.found[name] = self._choice(nested=False)  # a rule that is written again replaces the first, as in llama.cpp
            if self.at < len(self.text) and self._here() not in "\r\n":
                self._fail("a rule ends with its line")
            self._skip(lines=True)
        return self.found

    # ---- rules -----------------------------------------------------------------------------------------------------

    def _choice(self, *, nested: bool) -> Node:
        options = [self._sequence(nested)]
        while self._here() == "|":
            self.at += 1
            self._skip(lines=True)
            options.append(self._sequence(nested))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self, nested: bool) -> Node:
        items: list[Node] = []
        while True:
            match self._here():
                case '"':
                    items.append(self._literal())
                case "[":
                    items.append(self._class())
                case "(":
                    items.append(self._group())
                case ".":
                    self.at += 1
                    items.append(ANY)
                case "<" | "!":
                    self._fail("tokens in a GBNF grammar are not supported; write the grammar in Lark's notation instead")
                case "*" | "+" | "?" | "{":
                    if not items:
                        self._fail("there is nothing to repeat")
                    least, most = self._times(nested)
                    items[-1] = Repeat(items[-1], least, most)
                case character if character and _NAME.match(character):
                    items.append(Ref(self._name()))
                case _:
                    return items[0] if len(items) == 1 else Join(tuple(items))
            self._skip(lines=nested)

    def _group(self) -> Node:
        self.at += 1
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise TooMuch(f"it is nested more than {MAX_NESTING} brackets deep")
        self._skip(lines=True)
        node = self._choice(nested=True)
        self._expect(")")
        self.depth -= 1
        return node

    def _times(self, nested: bool) -> tuple[int, int | None]:
        sign = self._here()
        self.at += 1
        if sign != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        self._skip(lines=nested)
        least = self._number()
        most: int | None = least
        self._skip(lines=nested)
        if self._here() == ",":
            self.at += 1
            self._skip(lines=nested)
            most = None if self._here() == "}" else self._number()
            self._skip(lines=nested)
        self._expect("}")
        if most is not None and most < least:
            self._fail(f"{{{least},{most}}} asks for fewer than it needs")
        return least, most

    def _number(self) -> int:
        match = re.compile(r"[0-9]+").match(self.text, self.at)
        if match is None:
            self._fail("a number is missing")
        if len(match[0]) > 6 or int(match[0]) > MAX_REPEATS:
            raise TooMuch(f"it repeats something more than {MAX_REPEATS} times")
        self.at = match.end()
        return int(match[0])

    # ---- characters ------------------------------------------------------------------------------------------------

    def _literal(self) -> Node:
        self.at += 1
        items: list[Node] = []
        while self._here() != '"':
            code = self._character()
            items.append(Chars(((code, code),)))
        self.at += 1
        return Join(tuple(items))

    def _class(self) -> Node:
        self.at += 1
        negated = self._here() == "^"
        self.at += negated
        ranges: list[tuple[int, int]] = []
        while self._here() != "]":
            low = high = self._character()
            if self._here() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self._character()
            if high < low:
                self._fail("a range of characters runs backwards")
            ranges.append((low, high))
        self.at += 1
        if not ranges:
            self._fail("a class of characters is empty")
        return Chars(others(merged(ranges)) if negated else merged(ranges))

    def _character(self) -> int:
        character = self._here()
        if not character:
            self._fail("it ends in the middle")
        self.at += 1
        if character != "\\":
            return ord(character)
        kind = self._here()
        self.at += 1
        if kind in _ESCAPES and kind:
            return ord(_ESCAPES[kind])
        digits = self.text[self.at : self.at + _HEX.get(kind, 0)]
        if kind not in _HEX or not re.fullmatch(r"[0-9A-Fa-f]+", digits) or len(digits) != _HEX[kind]:
            self._fail(f"there is no escape \\{kind}{digits}")
        self.at += len(digits)
        code = int(digits, 16)
        if code > MAX_CODE_POINT or 0xD800 <= code < 0xE000:
            self._fail(f"\\{kind}{digits} is no character")
        return code

    # ---- text ------------------------------------------------------------------------------------------------------

    def _here(self) -> str:
        return self.text[self.at : self.at + 1]

    def _name(self) -> str:
        match = _NAME.match(self.text, self.at)
        if match is None:
            self._fail("the name of a rule is missing")
        self.at = match.end()
        return match[0]

    def _skip(self, *, lines: bool) -> None:
        match = (_SPACE_AND_LINES if lines else _SPACE).match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def _expect(self, text: str) -> None:
        if not self.text.startswith(text, self.at):
            self._fail(f"{text} is missing")
        self.at += len(text)

    def _fail(self, why: str) -> NoReturn:
        line = self.text.count("\n", 0, self.at) + 1
        raise ValueError(f"{why}, in line {line} before {self.text[self.at : self.at + 20]!r}")
