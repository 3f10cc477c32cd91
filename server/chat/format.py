"""How one model writes reasoning and calls of tools, told by its template: what to look for in its text, and what to hold it to. Pure."""

from __future__ import annotations

from typing import Protocol

from server.chat.parts import OutputParser, PlainParser
from server.chat.tools import OutputWish
from server.requests import Constraint


class ChatFormat(Protocol):
    name: str
    shown_tokens: tuple[str, ...]
    """Control tokens that the parser must see."""

    def parser(self, wish: OutputWish, prompt: str) -> OutputParser:
        """For one answer. `prompt`: as rendered; it may have opened the reasoning already."""
        ...

    def constraint(self, wish: OutputWish, prompt: str) -> Constraint | None:
        """What the whole text of the answer is held to; None: nothing."""
        ...


class PlainFormat:
    """A model of which nothing is known: text, or the shape that the request asks for."""

    name = "plain"
    shown_tokens: tuple[str, ...] = ()

    def parser(self, wish: OutputWish, prompt: str) -> OutputParser:
        return PlainParser()

    def constraint(self, wish: OutputWish, prompt: str) -> Constraint | None:
        return wish.constraint


def format_of(template: str | None) -> ChatFormat:
    """The format that goes with a chat template (None: the model has none)."""
    return PlainFormat()
