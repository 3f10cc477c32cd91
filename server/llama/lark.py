"""Lark grammars on their way to the compiler: bounded, their tokens looked up, JSON schemas in them treated like any other. Pure.

In such a grammar `<name>` stands for the token that is written so in the vocabulary, whatever kind of token it is, and `<[name]>` for the
one written `[name]`; numbers, as in `<[12-15]>`, are left to the compiler. So a grammar need not know which of them a model has as
control tokens and which as tokens of text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from server.llama.schema import BOUNDED, OPTIONS_KEY, STRICT, STRING, TooMuch, check_expression, check_nesting, check_schema

MAX_LINES = 4000
"""A chain of so many rules takes a 10th of the compiling thread's stack."""

FindToken = Callable[[str], tuple[int, bool] | None]
"""Token as written in the vocabulary -> its id, and whether it leaves no trace in a text; None: there is no such token."""

_PART = re.compile(
    r"""
      (?P<string>"(?:[^"\\\n]|\\.)*"i?)
    | (?P<comment>(?://|\#)[^\n]*)
    | (?P<regex>/(?:[^/\\]|\\.)+/[imslux]*)
    | (?P<json>%json\s*(?=\{))
    | (?P<token><[^<>\s]+>)
    | (?P<operator>&|~(?!\s*\d))
    """,
    re.VERBOSE,
)
_NUMBERS = re.compile(r"\[\^?[\d\s,*-]*\]")


def prepare_lark(source: str, find_token: FindToken) -> str:
    """The grammar as it is compiled.

    Raises:
        ValueError: it is too much, or uses what is not supported.
    """
    if source.count("\n") >= MAX_LINES:
        raise TooMuch(f"it has more than {MAX_LINES} lines")
    out: list[str] = []
    skeleton: list[str] = []
    at = 0
    while match := _PART.search(source, at):
        out.append(source[at : match.start()])
        skeleton.append(source[at : match.start()])
        at = match.end()
        text = match[0]
        if match["operator"]:
            raise ValueError("the operators & and ~ on terminals are not supported: what they take to compile has no bound")
        if match["json"]:
            schema, at = _inline_schema(source, at)
            text += schema
        elif match["token"]:
            text = _token(text[1:-1], find_token)
        out.append(text)
        if match["regex"]:
            check_expression(text)
    out.append(source[at:])
    skeleton.append(source[at:])
    check_nesting("".join(skeleton))
    return "".join(out)


def _inline_schema(source: str, start: int) -> tuple[str, int]:
    """The schema that begins there, bounded, and where it ends."""
    try:
        schema, end = json.JSONDecoder().raw_decode(source, start)
    except RecursionError:
        raise TooMuch("a schema in it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"a schema behind %json is no JSON: {error}") from None
    check_schema(schema)
    text = json.dumps({**schema, OPTIONS_KEY: {**_layout(schema.get(OPTIONS_KEY)), **STRICT}})
    check_nesting(STRING.sub('""', text))
    return text, end


def _layout(options: Any) -> dict[str, Any]:
    """How the schema's own options want its white space; bounded where they say nothing."""
    given = options if isinstance(options, dict) else {}
    own_space = given.keys() & {"whitespace_pattern", "whitespace_flexible"}
    return given if own_space else {**given, **BOUNDED}


def _token(name: str, find_token: FindToken) -> str:
    if _NUMBERS.fullmatch(name):
        return f"<{name}>"
    found = find_token(name if name.startswith("[") else f"<{name}>")
    if found is None:
        return f"<{name}>"  # the compiler says what is wrong
    token, leaves_no_trace = found
    return f"<[{token}]>" if leaves_no_trace else json.dumps(name if name.startswith("[") else f"<{name}>")
