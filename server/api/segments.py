"""Parts of an answer -> segments: a stretch of text, of reasoning, one call. Each is closed before the next opens. Pure.

For dialects whose answers are lists. White space alone makes no segment of text beside others: it is what stands between the tags of a
model's own language, and clients send segments back to servers that refuse empty ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from server.chat.parts import Arguments, Content, Part, Reasoning, ToolCall


@dataclass(slots=True)
class Segment:
    index: int
    kind: Literal["text", "reasoning", "call"]
    id: str = ""
    """Of a call; `name`: its tool's."""
    name: str = ""
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """So far. Of a call: its arguments, as JSON text."""
        return "".join(self.texts)


@dataclass(frozen=True, slots=True)
class Step:
    kind: Literal["open", "more", "close"]
    segment: Segment
    text: str = ""
    """What is new."""


class Segmenter:
    def __init__(self) -> None:
        self.n_opened = 0
        self._open: Segment | None = None
        self._held = ""
        """White space that has no segment yet."""

    def add(self, part: Part) -> list[Step]:
        match part:
            case Content():
                return self._content(part.text)
            case Reasoning():
                return self._reasoning(part.text)
            case ToolCall():
                return self._next(Segment(self.n_opened, "call", part.id, part.name))
            case Arguments():
                assert self._open is not None and self._open.kind == "call", "arguments follow their call"
                return self._more(part.text)

    def finish(self) -> list[Step]:
        """The end of the last segment. An answer that was nothing but white space is one of that."""
        if self._held and not self.n_opened:
            held = self._held
            return [*self._next(Segment(self.n_opened, "text")), *self._more(held), *self._close()]
        return self._close()

    def _content(self, text: str) -> list[Step]:
        if self._open is not None and self._open.kind == "text":
            return self._more(text)
        self._held += text
        if not text.strip():
            return []
        held = self._held
        return [*self._next(Segment(self.n_opened, "text")), *self._more(held)]

    def _reasoning(self, text: str) -> list[Step]:
        if not text:
            return []
        steps = [] if self._open is not None and self._open.kind == "reasoning" else self._next(Segment(self.n_opened, "reasoning"))
        return [*steps, *self._more(text)]

    def _next(self, segment: Segment) -> list[Step]:
        steps = self._close()
        self._open, self._held = segment, ""
        self.n_opened += 1
        return [*steps, Step("open", segment)]

    def _more(self, text: str) -> list[Step]:
        if not text or self._open is None:
            return []
        self._open.texts.append(text)
        return [Step("more", self._open, text)]

    def _close(self) -> list[Step]:
        segment, self._open = self._open, None
        return [] if segment is None else [Step("close", segment)]
