"""Arguments of a call whose JSON text was cut off, as an object: what was complete stays. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

_CLOSERS = {"{": "}", "[": "]"}


def arguments_object(text: str) -> dict[str, Any]:
    """The object that `text` writes; of a text that ends too early, the object of its complete members. Anything else is empty."""
    if not text.strip():
        return {}
    found = _decoded(text)
    if found is None:
        found = _decoded(_closed(text))
    return found or {}


def _decoded(text: str) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _closed(text: str) -> str:
    """Cut behind the last member that is certainly whole (a comma or a bracket follows it), every bracket closed."""
    open_brackets: list[str] = []
    end = 0
    in_string = is_escaped = False
    for i, char in enumerate(text):
        if in_string:
            if is_escaped:
                is_escaped = False
            elif char == "\\":
                is_escaped = True
            elif char == '"':
                in_string = False
            continue
        if char == '"':
            in_string = True
            continue
        if char in "{[":
            open_brackets.append(char)
        elif char in "}]":
            if not open_brackets or char != _CLOSERS[open_brackets.pop()]:
                break
        elif char != ",":
            continue
        end = i if char == "," else i + 1
    return text[:end] + "".join(_CLOSERS[bracket] for bracket in reversed(open_brackets))
