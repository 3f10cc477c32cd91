"""Parts of an answer -> Anthropic's content blocks, and the events that build them, one block after the other. Pure."""

from __future__ import annotations

from typing import Any

from server.api.opaque import mark, sealed
from server.api.partial_json import arguments_object
from server.chat.parts import Arguments, Content, Part, Reasoning, ToolCall
from server.http.sse import Named


def event(kind: str, **members: Any) -> Named:
    return Named(kind, {"type": kind, **members})


class BlockWriter:
    """White space alone makes no block beside others: clients send blocks back, and Anthropic refuses such ones."""

    def __init__(self, *, shows_thinking: bool) -> None:
        self.blocks: list[dict[str, Any]] = []
        """Those that are closed."""
        self._shows_thinking = shows_thinking
        self._open: dict[str, Any] | None = None
        self._texts: list[str] = []
        """Of the open block."""
        self._held = ""
        """White space that has no block yet."""

    def add(self, part: Part) -> list[Named]:
        match part:
            case Content():
                return self._content(part.text)
            case Reasoning():
                return self._reasoning(part.text) if part.text else []
            case ToolCall():
                self._held = ""
                return [*self._close(), *self._start({"type": "tool_use", "id": part.id, "name": part.name, "input": {}})]
            case Arguments():
                return self._delta(part.text, {"type": "input_json_delta", "partial_json": part.text}) if part.text else []

    def finish(self) -> list[Named]:
        events = self._close()
        if self._held and not self.blocks:
            held, self._held = self._held, ""
            events += [*self._start({"type": "text", "text": ""}), *self._text(held), *self._close()]
        return events

    def _content(self, text: str) -> list[Named]:
        if self._open is not None and self._open["type"] == "text":
            return self._text(text) if text else []
        self._held += text
        if not self._held.strip():
            return []
        text, self._held = self._held, ""
        return [*self._close(), *self._start({"type": "text", "text": ""}), *self._text(text)]

    def _reasoning(self, text: str) -> list[Named]:
        events: list[Named] = []
        if self._open is None or self._open["type"] != "thinking":
            self._held = ""
            events = [*self._close(), *self._start({"type": "thinking", "thinking": "", "signature": ""})]
        if not self._shows_thinking:
            self._texts.append(text)
            return events
        return [*events, *self._delta(text, {"type": "thinking_delta", "thinking": text})]

    def _text(self, text: str) -> list[Named]:
        return self._delta(text, {"type": "text_delta", "text": text})

    def _start(self, block: dict[str, Any]) -> list[Named]:
        self._open, self._texts = block, []
        return [event("content_block_start", index=len(self.blocks), content_block=dict(block))]

    def _delta(self, text: str, delta: dict[str, Any]) -> list[Named]:
        self._texts.append(text)
        return [event("content_block_delta", index=len(self.blocks), delta=delta)]

    def _close(self) -> list[Named]:
        block, self._open = self._open, None
        if block is None:
            return []
        index, text = len(self.blocks), "".join(self._texts)
        events: list[Named] = []
        match block["type"]:
            case "text":
                block["text"] = text
            case "tool_use":
                block["input"] = arguments_object(text)
                if not text:  # some clients parse what they have gathered, without a look whether there is any
                    events.append(event("content_block_delta", index=index, delta={"type": "input_json_delta", "partial_json": "{}"}))
            case _:
                block["thinking"] = text if self._shows_thinking else ""
                block["signature"] = mark(text) if self._shows_thinking else sealed(text)
                events.append(event("content_block_delta", index=index, delta={"type": "signature_delta", "signature": block["signature"]}))
        self.blocks.append(block)
        return [*events, event("content_block_stop", index=index)]
