"""JSON schemas before they are compiled: what is no schema, what would take too long, and what becomes of the compiler's own keyword."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.llama.schema import MAX_NESTING, TooMuch, check_expression, parse_schema


def test_a_schema_is_an_object_or_true() -> None:
    assert parse_schema('{"type": "string"}') == {"type": "string"}
    assert parse_schema("true") == {}
    for text in ("false", "[]", "3", '"string"', "null", "", "{", '{"a": NaN}', '{"minimum": Infinity}'):
        with pytest.raises(ValueError):
            parse_schema(text)


def test_whole_numbers_are_integers_however_they_are_written() -> None:
    assert (
        json.dumps(parse_schema('{"maxItems": 2.0, "minimum": -1.50, "maximum": 1e3}'))
        == '{"maxItems": 2, "minimum": -1.5, "maximum": 1000}'
    )


def test_properties_stay_in_their_order() -> None:
    assert list(parse_schema('{"properties": {"b": {}, "a": {}}}')["properties"]) == ["b", "a"]


def test_the_compilers_own_keyword_is_an_unknown_one() -> None:
    assert parse_schema('{"type": "string", "x-guidance": {"lenient": true}}') == {"type": "string"}
    inner = {"properties": {"x-guidance": {"type": "string"}}}
    assert parse_schema(json.dumps(inner)) == inner


def test_nesting_is_bounded_brackets_in_strings_do_not_count() -> None:
    def nested(depth: int) -> str:
        return '{"items":' * (depth - 1) + '{"const":"[[[[[\\"{{{{{"}' + "}" * (depth - 1)

    parse_schema(nested(MAX_NESTING))
    for depth in (MAX_NESTING + 1, 100_000):
        with pytest.raises(TooMuch):
            parse_schema(nested(depth))


def integers(*steps: float, **others: Any) -> str:
    return json.dumps({"properties": {f"p{n}": {"type": "integer", "multipleOf": step} for n, step in enumerate(steps)}, **others})


@pytest.mark.parametrize("text", [integers(5, 10, 0.01, 1000), integers(9973, 97), integers(20_000), integers(7, 11, allOf=[{}])])
def test_usual_multiples_pass(text: str) -> None:
    parse_schema(text)


@pytest.mark.parametrize(
    "text", [integers(999_983), integers(1.00001), integers(*range(19_000, 19_010)), integers(9973, 97, allOf=[{}]), integers(1e300)]
)
def test_multiples_that_take_the_compiler_seconds_are_refused(text: str) -> None:
    with pytest.raises(TooMuch):
        parse_schema(text)


def test_a_property_may_be_called_multiple_of() -> None:
    parse_schema('{"properties": {"multipleOf": {"type": "string"}, "$ref": {"type": "string"}}}')


def test_long_chains_of_references_are_refused() -> None:
    chain = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(2001)}
    with pytest.raises(TooMuch):
        parse_schema(json.dumps({"$defs": chain, "$ref": "#/$defs/a0"}))


def test_groups_of_an_expression_are_counted_without_escapes() -> None:
    check_expression(r"\(" * 1000 + "(a)")
    with pytest.raises(TooMuch):
        check_expression("(" * (MAX_NESTING + 1))
