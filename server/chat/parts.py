"""What a model's text is made of: content, reasoning, calls of tools; and what cuts it up. Knows no template, no dialect and no HTTP."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """More of what is meant for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Begins call number `index` (0, 1, ...) of the answer. `Arguments` of the same index follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of a call's arguments: JSON text, a whole object when the call has ended."""

    index: int
    text: str


Part = Content | Reasoning | ToolCall | Arguments


class OutputParser(Protocol):
    """Cuts up the text of one answer as it comes, each character looked at once or a few times, never all of it again.

    What it returns for a text does not depend on where the text was split, but for where `Content`, `Reasoning` and `Arguments` are split.
    """

    def push(self, text: str) -> list[Part]: ...

    def finish(self) -> list[Part]:
        """The text has ended: what was held back. Text of tools that turned out malformed comes as content; nothing is lost."""
        ...


class PlainParser:
    """Everything is content."""

    def push(self, text: str) -> list[Part]:
        return [Content(text)] if text else []

    def finish(self) -> list[Part]:
        return []


@dataclass(slots=True)
class WholeCall:
    id: str
    name: str
    arguments: str = ""
    """JSON text."""


@dataclass(slots=True)
class Message:
    """An answer put together again."""

    content: str = ""
    reasoning: str = ""
    calls: list[WholeCall] = field(default_factory=list)

    def add(self, parts: Iterable[Part]) -> None:
        for part in parts:
            match part:
                case Content():
                    self.content += part.text
                case Reasoning():
                    self.reasoning += part.text
                case ToolCall():
                    self.calls.append(WholeCall(part.id, part.name))
                case Arguments():
                    self.calls[part.index].arguments += part.text
