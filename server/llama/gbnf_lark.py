"""GBNF grammars in Lark's notation: the same texts, no more and no fewer. Pure.

A grammar without recursion becomes one regular expression. In another one, pieces become lexemes where that is exact (see
`gbnf_lexemes`), and the rest is spelled out character by character, which is always exact and slower to follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from server.llama.gbnf import EMPTY, ROOT, Chars, Choice, Join, Node, Ref, Repeat, Rules, parse_gbnf
from server.llama.gbnf_lexemes import MAX_WORK, Alphabet, Automaton, Symbol, TooLarge, automaton, followers, goes_on_with
from server.llama.schema import TooMuch

MAX_EXPRESSION = 1 << 17
"""Characters of one regular expression; rules that refer to rules can make it exponentially long."""
MAX_RULES = 2000


def lark_of_gbnf(source: str) -> str:
    """Raises:
    ValueError: it is no such grammar, not supported, or too much.
    """
    rules = parse_gbnf(source)
    if len(rules) > MAX_RULES:
        raise TooMuch(f"it has more than {MAX_RULES} rules")
    facts = _Facts(rules)
    if facts.is_regular(rules[ROOT]):
        try:
            return f"start: /{facts.expression(rules[ROOT])}/\n"
        except TooLarge:
            pass
    return _Writer(facts).write()


class _Facts:
    """What can be said of the nodes of one grammar."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.alphabet = Alphabet(rules)
        self._recursive = _recursive(rules)
        self._empty = _empty_rules(rules)
        self.automaton = cache(self._automaton)
        self.expression = cache(self._expression)

    def is_regular(self, node: Node) -> bool:
        match node:
            case Chars():
                return True
            case Ref(name):
                return name not in self._recursive
            case Join(items) | Choice(items):
                return all(map(self.is_regular, items))
            case Repeat(item):
                return self.is_regular(item)

    def can_be_empty(self, node: Node) -> bool:
        return _can_be_empty(node, self._empty)

    def without_empty(self, node: Node) -> Node | None:
        """What the node matches beside the empty text; None: that is not simple to say, or nothing."""
        if not self.can_be_empty(node):
            return node
        match node:
            case Ref(name):
                return self.without_empty(self.rules[name])
            case Repeat(item, _, most) if most != 0:
                inner = self.without_empty(item)
                return None if inner is None else Repeat(inner, 1, most)
            case Choice(options):
                left = [option if not self.can_be_empty(option) else self.without_empty(option) for option in options if option != EMPTY]
                known = [option for option in left if option is not None]
                return Choice(tuple(known)) if known and len(known) == len(left) else None
        return None

    def is_lexeme(self, node: Node) -> bool:
        """Whether the node could be one, were it not for the others."""
        if not self.is_regular(node) or self.can_be_empty(node):
            return False
        try:
            self.automaton(node)
            self.expression(node)
        except TooLarge:
            return False
        return True

    def _automaton(self, node: Node) -> Automaton:
        return automaton(node, self.rules, self.alphabet)

    def _expression(self, node: Node) -> str:
        """A regular expression that matches what the node does.

        Raises:
            TooLarge: it would be too long.
        """
        match node:
            case Chars(ranges):
                text = f"[{''.join(map(_range, ranges))}]"
            case Ref(name):
                text = self.expression(self.rules[name])
            case Join(items):
                text = "".join(self.expression(item) for item in items) or "(?:)"
            case Choice(options):
                text = f"(?:{'|'.join(self.expression(option) for option in options)})"
            case Repeat(item, least, most):
                text = f"(?:{self.expression(item)}){_times(least, most)}"
        if len(text) > MAX_EXPRESSION:
            raise TooLarge
        return text


def _range(ends: tuple[int, int]) -> str:
    low, high = ends
    return f"\\x{{{low:X}}}" if low == high else f"\\x{{{low:X}}}-\\x{{{high:X}}}"


def _times(least: int, most: int | None) -> str:
    return {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most), f"{{{least},{'' if most is None else most}}}")


def _recursive(rules: Rules) -> set[str]:
    """The rules that come back to themselves, or to one that does."""
    uses = {name: _used(node) for name, node in rules.items()}
    regular: set[str] = set()
    while found := {name for name in uses if name not in regular and uses[name] <= regular}:
        regular |= found
    return set(rules) - regular


def _used(node: Node) -> set[str]:
    match node:
        case Ref(name):
            return {name}
        case Join(items) | Choice(items):
            return set().union(*map(_used, items))
        case Repeat(item):
            return _used(item)
    return set()


def _empty_rules(rules: Rules) -> set[str]:
    found: set[str] = set()
    while more := {name for name, node in rules.items() if name not in found and _can_be_empty(node, found)}:
        found |= more
    return found


def _can_be_empty(node: Node, rules: set[str]) -> bool:
    match node:
        case Chars():
            return False
        case Ref(name):
            return name in rules
        case Join(items):
            return all(_can_be_empty(item, rules) for item in items)
        case Choice(options):
            return any(_can_be_empty(option, rules) for option in options)
        case Repeat(item, least):
            return least == 0 or _can_be_empty(item, rules)


@dataclass(slots=True)
class _Draft:
    """One attempt to write the grammar down."""

    lexemes: dict[Node, Symbol] = field(default_factory=dict)
    productions: dict[Symbol, list[list[Symbol]]] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)
    symbols: dict[str, Symbol] = field(default_factory=dict)

    def rule(self, *alternatives: list[Symbol]) -> Symbol:
        symbol = -1 - len(self.productions)
        self.productions[symbol] = list(alternatives)
        return symbol


class _Writer:
    def __init__(self, facts: _Facts) -> None:
        self._facts = facts
        self._open: set[Node] = set()
        """Pieces that must not be lexemes."""
        self._single = False
        """No lexeme has more than one character."""
        self._work = 0

    def write(self) -> str:
        while True:
            draft = self._draft()
            try:
                wrong = set() if self._single else self._wrong(draft)
            except TooLarge:
                self._single = True
                continue
            if not wrong:
                lexemes = [f"T{symbol}: /{self._facts.expression(node)}/" for node, symbol in draft.lexemes.items()]
                return "\n".join([f"start: {_name(draft, ROOT)}", *draft.lines.values(), *lexemes, ""])
            self._open |= wrong

    def _wrong(self, draft: _Draft) -> set[Node]:
        """Lexemes that would go on where another may have ended."""
        nodes = list(draft.lexemes)
        automata = [self._facts.automaton(node) for node in nodes]
        follow = followers(draft.productions, draft.symbols[ROOT], [machine.first_mask for machine in automata])
        return {
            nodes[other]
            for ending, machine in enumerate(automata)
            for other, rival in enumerate(automata)
            if not isinstance(nodes[other], Chars) and goes_on_with(machine, rival, self._spend) & follow[ending]
        }

    def _spend(self, amount: int) -> None:
        self._work += amount
        if self._work > MAX_WORK:
            raise TooLarge

    # ---- writing ---------------------------------------------------------------------------------------------------

    def _draft(self) -> _Draft:
        draft = _Draft()
        pending = [ROOT]
        draft.symbols[ROOT] = draft.rule()
        while pending:
            name = pending.pop()
            known = set(draft.symbols)
            text, symbols = self._node(draft, self._facts.rules[name])
            draft.productions[draft.symbols[name]] = [symbols]
            draft.lines[name] = f"{_name(draft, name)}: {text}"
            pending += [other for other in draft.symbols if other not in known]
        return draft

    def _node(self, draft: _Draft, node: Node) -> tuple[str, list[Symbol]]:
        """The node in Lark's notation, and as symbols of a context-free grammar."""
        if self._may_fold(node):
            return self._lexeme(draft, node)
        if self._facts.is_regular(node) and self._facts.can_be_empty(node):
            inner = self._facts.without_empty(node)
            if inner is not None and self._may_fold(inner):
                text, symbols = self._lexeme(draft, inner)
                return f"({text})?", [draft.rule([], symbols)]
        match node:
            case Chars():
                return self._lexeme(draft, node)
            case Ref(name):
                draft.symbols.setdefault(name, 0)
                if not draft.symbols[name]:
                    draft.symbols[name] = draft.rule()
                return _name(draft, name), [draft.symbols[name]]
            case Join(items):
                parts = [self._node(draft, part) for part in (items if node in self._open else self._runs(items))]
                return " ".join(text for text, _ in parts) or '""', [symbol for _, symbols in parts for symbol in symbols]
            case Choice(options):
                parts = [self._node(draft, option) for option in options]
                return f"({' | '.join(text for text, _ in parts)})", [draft.rule(*(symbols for _, symbols in parts))]
            case Repeat(item, least, most):
                if most == 0:
                    return '""', []
                text, symbols = self._node(draft, item)
                again = draft.rule()
                draft.productions[again] = [[] if least == 0 else symbols, symbols if most == 1 else [again, *symbols]]
                return f"({text}){_times(least, most)}", [again]

    def _may_fold(self, node: Node) -> bool:
        if isinstance(node, Chars):
            return True
        return not self._single and node not in self._open and self._facts.is_lexeme(node)

    def _runs(self, items: tuple[Node, ...]) -> list[Node]:
        """Neighbours that have no recursion put together, so that they may become one lexeme."""
        if self._single:
            return list(items)
        runs: list[list[Node]] = []
        for item in items:
            regular = self._facts.is_regular(item)
            if runs and regular and self._facts.is_regular(runs[-1][-1]):
                runs[-1].append(item)
            else:
                runs.append([item])
        if len(runs) == 1 and len(items) > 1 and self._facts.is_regular(items[0]):
            return list(items)
        return [run[0] if len(run) == 1 else Join(tuple(run)) for run in runs]

    def _lexeme(self, draft: _Draft, node: Node) -> tuple[str, list[Symbol]]:
        symbol = draft.lexemes.setdefault(node, len(draft.lexemes))
        return f"T{symbol}", [symbol]


def _name(draft: _Draft, rule: str) -> str:
    return f"r{-draft.symbols[rule]}"
