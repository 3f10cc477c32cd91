"""An object whose text ends too early keeps the members that were whole; nothing makes it raise."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.api.partial_json import arguments_object


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("  ", {}),
        ("{", {}),
        ('{"a"', {}),
        ('{"a": 1', {}),
        ('{"a": 1,', {"a": 1}),
        ('{"a": 1, "b": "x', {"a": 1}),
        ('{"a": {"b": [1, 2', {"a": {"b": [1]}}),
        ('{"a": {"b": [1, 2]', {"a": {"b": [1, 2]}}),
        ('{"a": "}],{", "b": tr', {"a": "}],{"}),
        ('{"a": "\\"", "b', {"a": '"'}),
        ('{"a": 1}', {"a": 1}),
        ("[1]", {}),
        ("5", {}),
        ("}", {}),
        ('{"a": 1]', {}),
        ("words", {}),
    ],
)
def test_what_is_left(text: str, expected: dict[str, Any]) -> None:
    assert arguments_object(text) == expected


def test_every_beginning_of_an_object() -> None:
    text = json.dumps({"a": [1, {"b": 'x\\"y'}], "c": {"d": None}, "e": "é,]}"})
    for end in range(len(text)):
        found = arguments_object(text[:end])
        assert set(found) <= {"a", "c", "e"} and found.get("e") is None
    assert arguments_object(text) == json.loads(text)
    assert arguments_object("[" * 100_000) == {} and arguments_object('{"a":' * 100_000) == {}
