"""Lark grammars before they are compiled: schemas in them are bounded, tokens are found, what has no bound is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.llama.lark import MAX_LINES, prepare_lark
from server.llama.schema import BOUNDED, MAX_NESTING, STRICT, TooMuch

TOKENS = {"<think>": (7, True), "[TOOL_CALLS]": (8, True), "<tool_call>": (9, False), "[ARGS]": (10, False)}


def prepared(source: str) -> str:
    return prepare_lark(source, TOKENS.get)


PLAIN = r"""
// "a comment" with <think> & /things/
start: A b{1,3} | "<think> & \"quoted\"" c~0..3 # another <think> & one
A: /<think>&~[\/"]/i | "x" ~ 2
%regex { "substring_words": "<think> & more" }
c: <[7]> <[^7-9,12]> <[*]> <unheard-of>
"""


def test_what_is_meant_for_the_compiler_stays_as_it_is() -> None:
    assert prepared(PLAIN) == PLAIN


def test_tokens_stand_for_what_the_vocabulary_has() -> None:
    """A token that leaves no trace is named by its number, one of text is its text."""
    assert prepared("start: <think> <tool_call> <[TOOL_CALLS]> <[ARGS]>") == 'start: <[7]> "<tool_call>" <[8]> "[ARGS]"'


def schema_in(source: str) -> Any:
    return json.JSONDecoder().raw_decode(prepared(source), len("start: %json "))[0]


def test_schemas_are_bounded_and_strict() -> None:
    assert schema_in('start: %json {"type": "object"} "after"') == {"type": "object", "x-guidance": {**BOUNDED, **STRICT}}
    assert prepared('start: %json {"const": "} & <think>"} <think>').endswith("} <[7]>")


def test_a_schema_may_have_its_own_white_space_but_is_strict_all_the_same() -> None:
    options = {"whitespace_flexible": False, "lenient": True}
    source = f"start: %json {json.dumps({'x-guidance': options})}"
    assert schema_in(source)["x-guidance"] == {"whitespace_flexible": False, **STRICT}


@pytest.mark.parametrize(
    "source",
    [
        "start: %json {",
        "start: %json {'a': 1}",
        'start: A\nA: "a" & "b"',
        'start: A\nA: ~"b"',
        'start: A\nA: /a/ & ~/b/ // "&"',
        'start: %json {"type": "integer", "multipleOf": 999983}',
        "start: " + "(" * (MAX_NESTING + 1),
        "start: /" + "(" * (MAX_NESTING + 1) + "/",
        "start: %json " + '{"items":' * 5000 + "{}" + "}" * 5000,
        "start: %json " + '{"items":' * MAX_NESTING + "{}" + "}" * MAX_NESTING,
    ],
)
def test_what_has_no_bound_is_refused(source: str) -> None:
    with pytest.raises(ValueError):
        prepared(source)


def test_the_number_of_lines_is_bounded() -> None:
    prepared("\n" * (MAX_LINES - 1))
    with pytest.raises(TooMuch):
        prepared("\n" * MAX_LINES)
