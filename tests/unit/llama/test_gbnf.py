"""GBNF is read as llama.cpp reads it, and what it becomes in Lark's notation matches the same texts (see also the contract tests)."""

from __future__ import annotations

import re

import pytest

from server.llama.gbnf import ANY, EMPTY, MAX_REPEATS, Chars, Choice, Join, Ref, Repeat, merged, others, parse_gbnf
from server.llama.gbnf_lark import lark_of_gbnf
from server.llama.schema import MAX_NESTING, TooMuch


def chars(text: str) -> Chars:
    return Chars(merged([(ord(character), ord(character)) for character in text]))


def test_pieces() -> None:
    rules = parse_gbnf(
        r"""
        # a comment
        root ::= "a\"\n\x41\u00e9\U0001F600" [a-c\]x-] [^\n] . ( sub | "" ) # another
        sub-2 ::= sub* sub+ sub? sub{2} sub{2,} sub{0,3}
        sub ::= "x" |
                "y"
        """
    )
    assert rules["root"] == Join(
        (
            Join(tuple(chars(character) for character in 'a"\nAé😀')),
            Chars(((45, 45), (93, 93), (97, 99), (120, 120))),
            Chars(others(((10, 10),))),
            ANY,
            Choice((Ref("sub"), EMPTY)),
        )
    )
    sub = Ref("sub")
    counts: list[tuple[int, int | None]] = [(0, None), (1, None), (0, 1), (2, 2), (2, None), (0, 3)]
    assert rules["sub-2"] == Join(tuple(Repeat(sub, least, most) for least, most in counts))
    assert rules["sub"] == Choice((Join((chars("x"),)), Join((chars("y"),))))


def test_a_repetition_takes_the_whole_string_before_it() -> None:
    assert parse_gbnf('root ::= "ab" + [c]')["root"] == Join((Repeat(Join((chars("a"), chars("b"))), 1, None), chars("c")))


def test_lines_end_rules_but_not_groups() -> None:
    assert parse_gbnf('root ::= ( "a"\n "b" )\r\nx ::= "c"')["root"] == Join((Join((chars("a"),)), Join((chars("b"),))))
    with pytest.raises(ValueError, match="line 2"):
        parse_gbnf('root ::= "a"\n"b"')


def test_a_rule_that_is_written_again_counts() -> None:
    assert parse_gbnf('root ::= "a"\nroot ::= "b"')["root"] == Join((chars("b"),))


@pytest.mark.parametrize(
    "source",
    [
        "", "start ::= [a]", "root := [a]", "root ::= x", 'root ::= "a', "root ::= [a", "root ::= ([a]", "root ::= [a])", "root ::= *",
        "root ::= [a]{", "root ::= [a]{x}", "root ::= [a]{3,2}", "root ::= [a]{,3}", r'root ::= "\q"', r'root ::= "\x4"',
        r'root ::= "\ud800"',
        r'root ::= "\UFFFFFFFF"', "root ::= [z-a]", "root ::= []", "root ::= <think>", "root ::= !<[5]>", "root ::= a_b\na_b ::= [x]",
        "root ::= [a] ::= [b]", "\0", "root ::= [a]\\",
    ],
)  # fmt: skip
def test_what_is_no_grammar_is_said_with_its_place(source: str) -> None:
    with pytest.raises(ValueError):
        lark_of_gbnf(source)


@pytest.mark.parametrize(
    "source", ["root ::= " + "(" * (MAX_NESTING + 1), f"root ::= [a]{{{MAX_REPEATS + 1}}}", "root ::= [a]{" + "9" * 5000 + "}"]
)
def test_what_is_too_much(source: str) -> None:
    with pytest.raises(TooMuch):
        lark_of_gbnf(source)


def lexemes(source: str) -> list[str]:
    """The expressions of a grammar's lexemes, readable."""
    found = re.findall(r"T\d+: /(.*)/", lark_of_gbnf(source))
    return [re.sub(r"\\x\{([0-9A-F]+)\}", lambda match: chr(int(match[1], 16)), text).replace("(?:)|", "") for text in found]


def test_a_grammar_without_recursion_is_one_expression() -> None:
    assert lark_of_gbnf('root ::= x x | "c"\nx ::= [ab]{2,3}') == (
        "start: /(?:(?:[\\x{61}-\\x{62}]){2,3}(?:[\\x{61}-\\x{62}]){2,3}|[\\x{63}])/\n"
    )


def test_pieces_whose_end_can_be_told_are_lexemes() -> None:
    """Strings end with their quotation mark, numbers before what is no digit."""
    source = 'root ::= string | number | "[" root ("," root)* "]"\nstring ::= "\\"" [a-z]* "\\""\nnumber ::= [0-9]+ ("." [0-9]+)?'
    found = lexemes(source)
    assert '["](?:[a-z])*["]' in found and "(?:[0-9])+(?:[.](?:[0-9])+)?" in found and len(found) == 5


def test_pieces_that_may_run_into_what_follows_are_not() -> None:
    """After [a-z]+ another letter may follow; and "if" could go on where [a-z] has ended."""
    assert lexemes('root ::= [a-z]+ end\nend ::= [a-z] | "(" root ")"') == ["[a-z]", "[(]", "[)]"]
    assert lexemes('root ::= [a-z] root | "if" | "."')[0] == "[a-z]" and "[i][f]" not in lexemes('root ::= [a-z] root | "if" | "."')


def test_rules_that_grow_exponentially_stay_rules() -> None:
    doubling = "".join(f"a{n} ::= a{n + 1} a{n + 1}\n" for n in range(40))
    text = lark_of_gbnf(f"root ::= a0\n{doubling}a40 ::= [x]")
    assert len(text) < 4000


def test_large_grammars_are_written_in_time() -> None:
    words = " | ".join(f'"word {n} and more"' for n in range(400))
    source = f'root ::= word | "(" root+ ")"\nword ::= {words}'
    assert lark_of_gbnf(source).startswith("start: ")
