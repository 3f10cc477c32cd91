"""A format for tests whose text says what its parts are: `|c` content, `|r` reasoning, `|t` a call of that name, `|a` its arguments.

The text before the first bar is content. `partwise(monkeypatch)` gives it to every model.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from server.chat.parts import Arguments, Content, Part, Reasoning, ToolCall
from server.chat.tools import OutputWish
from server.requests import Constraint

CALL = '|tget_weather|a{"city": "Paris", "days": 2}'
THOUGHTFUL = '|rLet me |rsee.|c\n\n|cI look.|tget_weather|a{"city":|a "Paris"}|tget_time|a{}'


class PartParser:
    def __init__(self) -> None:
        self._kind, self._name, self._n_calls, self._after_bar = "c", "", 0, False

    def push(self, text: str) -> list[Part]:
        parts: list[Part] = []
        run = ""
        for char in text:
            if self._after_bar:
                self._kind, self._after_bar = char, False
            elif char == "|":
                parts += [*self._made(run), *self._call()]
                run, self._after_bar = "", True
            elif self._kind == "t":
                self._name += char
            else:
                run += char
        return [*parts, *self._made(run)]

    def finish(self) -> list[Part]:
        return self._call()

    def _made(self, run: str) -> list[Part]:
        if not run:
            return []
        return [Reasoning(run) if self._kind == "r" else Arguments(self._n_calls - 1, run) if self._kind == "a" else Content(run)]

    def _call(self) -> list[Part]:
        name, self._name = self._name, ""
        if not name:
            return []
        self._n_calls += 1
        return [ToolCall(self._n_calls - 1, f"call_{self._n_calls}", name)]


class PartFormat:
    name = "partwise"
    shown_tokens: tuple[str, ...] = ("<shown>",)

    def __init__(self) -> None:
        self.wishes: list[OutputWish] = []

    def parser(self, wish: OutputWish, prompt: str) -> PartParser:
        return PartParser()

    def constraint(self, wish: OutputWish, prompt: str) -> Constraint | None:
        self.wishes.append(wish)
        return wish.constraint


def partwise(monkeypatch: pytest.MonkeyPatch) -> PartFormat:
    """Its `wishes` are those of the requests that come, in their order."""
    chosen = PartFormat()
    choose: Callable[[str | None], PartFormat] = lambda template: chosen  # noqa: E731
    monkeypatch.setattr("server.api.chatting.format_of", choose)
    return chosen
