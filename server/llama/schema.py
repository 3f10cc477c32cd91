"""JSON schemas on their way to the grammar compiler: checked for what would take it too long, and bounded in white space. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

WHITE_SPACE = r"(\x20|\r?\n[\x20\x09]{0,32})"
"""What may stand between two parts of a JSON text: nothing, a space, or a line break and an indentation. Without a bound some models
go on with white space for ever."""
BOUNDED = {"whitespace_pattern": WHITE_SPACE}
STRICT = {"lenient": False, "coerce_one_of": False}
"""What is not enforced is an error, not ignored."""
OPTIONS_KEY = "x-guidance"
"""The compiler's own keyword for these; to everybody else an unknown keyword, which a schema may have and which means nothing."""

MAX_NESTING = 100
"""Brackets in brackets; the compiler itself ends at 128."""
MAX_REFERENCES = 2000
"""A chain of so many takes a 20th of the compiling thread's stack."""
MAX_STEPS = 20_000
"""`multipleOf` n takes n states, a number that is a multiple of two takes their least common multiple: 0.2 s for so many."""
_COMBINERS = ("allOf", "anyOf", "oneOf", "$ref", "$dynamicRef", "$recursiveRef")
STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET = re.compile(r"[][{}()]")


class TooMuch(ValueError):
    """It is well-formed as far as one can see, but larger or deeper than what is compiled."""


def parse_schema(text: str) -> dict[str, Any]:
    """A schema that can be given to the compiler. To JSON schema 2.0 is an integer like 2, so it becomes one.

    Raises:
        ValueError: it is no JSON, no schema, or too much.
    """
    check_nesting(STRING.sub('""', text))
    try:
        schema = json.loads(text, parse_constant=_no_constant, parse_float=_number)
    except RecursionError:
        raise TooMuch("it is nested too deeply") from None
    if schema is True:
        return {}
    if schema is False:
        raise ValueError("the schema false allows nothing")
    if not isinstance(schema, dict):
        raise ValueError("a JSON schema is an object")
    schema.pop(OPTIONS_KEY, None)
    check_schema(schema)
    return schema


def check_nesting(text: str) -> None:
    """Of any source, strings taken out.

    Raises:
        TooMuch: brackets are nested too deeply.
    """
    depth = 0
    for match in _BRACKET.finditer(text):
        depth += 1 if match[0] in "[{(" else -1
        if depth > MAX_NESTING:
            raise TooMuch(f"it is nested more than {MAX_NESTING} brackets deep")


def check_expression(text: str) -> None:
    """Raises:
    TooMuch: groups of a regular expression are nested too deeply.
    """
    check_nesting(re.sub(r"\\.", "", text, flags=re.DOTALL))


def check_schema(schema: Any) -> None:
    """Raises:
    TooMuch: compiling it could take very long.
    """
    members = list(_members(schema))
    if sum(key == "$ref" for key, _ in members) > MAX_REFERENCES:
        raise TooMuch(f"it has more than {MAX_REFERENCES} references")
    steps = {Decimal(str(value)) for key, value in members if key == "multipleOf" and _is_number(value)}
    sizes = [_mantissa(step) for step in steps]
    can_meet = any(key in _COMBINERS for key, _ in members)
    if sum(sizes) > MAX_STEPS or (can_meet and math.lcm(*sizes) > MAX_STEPS):
        raise TooMuch(f"its multipleOf values are too many, too large or too fine (together more than {MAX_STEPS} steps)")


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, member in value.items():
            yield key, member
            yield from _members(member)
    elif isinstance(value, list):
        for item in value:
            yield from _members(item)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _mantissa(step: Decimal) -> int:
    """A step counted in units of its last digit: 0.25 is 25, 100 is 100."""
    exponent = step.as_tuple().exponent
    assert isinstance(exponent, int)
    return max(1, int(step.scaleb(max(0, -exponent))))


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
