"""What the front and the render child say to each other: msgpack bodies in frames (`server/framing.py`). Knows no Jinja.

The child sends `Hello` when it has loaded, the front answers `Configure` once; then each `Render` gets one `Rendered` or `Refused`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

MAX_INPUT_BYTES = 64 * 1024 * 1024
"""Largest encoded `Render`."""
MAX_OUTPUT_CHARS = 32 * 1024 * 1024
"""Longest prompt that a template may make; as UTF-8 it fits a frame."""


class Configure(msgspec.Struct, frozen=True, tag=True):
    template: str | None
    bos_token: str
    eos_token: str


class Render(msgspec.Struct, frozen=True, tag=True):
    messages: list[dict[str, Any]]
    add_generation_prompt: bool
    continue_final: bool
    variables: dict[str, Any]


class Hello(msgspec.Struct, frozen=True, tag=True):
    pass


class Rendered(msgspec.Struct, frozen=True, tag=True):
    text: str


class Refused(msgspec.Struct, frozen=True, tag=True):
    """`by`: the input was refused ("input"), the template itself is broken ("template"), the memory was used up ("memory")."""

    by: Literal["input", "template", "memory"]
    message: str
    param: str | None = None


Command = Configure | Render
Reply = Hello | Rendered | Refused

encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
