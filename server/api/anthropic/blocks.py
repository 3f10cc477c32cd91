"""Segments of an answer -> Anthropic's content blocks, and the events that build them. Pure."""

from __future__ import annotations

from typing import Any

from server.api.opaque import mark, sealed
from server.api.partial_json import arguments_object
from server.api.segments import Segment, Segmenter, Step
from server.chat.parts import Part
from server.http.sse import Named

_MEMBERS = {"text": "text", "reasoning": "thinking", "call": "partial_json"}
_DELTAS = {"text": "text_delta", "reasoning": "thinking_delta", "call": "input_json_delta"}


def event(kind: str, **members: Any) -> Named:
    return Named(kind, {"type": kind, **members})


class BlockWriter:
    def __init__(self, *, shows_thinking: bool) -> None:
        self.blocks: list[dict[str, Any]] = []
        """Those that are closed."""
        self._shows_thinking = shows_thinking
        self._segments = Segmenter()

    def add(self, part: Part) -> list[Named]:
        return [event for step in self._segments.add(part) for event in self._events(step)]

    def finish(self) -> list[Named]:
        return [event for step in self._segments.finish() for event in self._events(step)]

    def _events(self, step: Step) -> list[Named]:
        segment = step.segment
        match step.kind:
            case "open":
                return [event("content_block_start", index=segment.index, content_block=_empty(segment))]
            case "more":
                is_hidden = segment.kind == "reasoning" and not self._shows_thinking
                return [] if is_hidden else [_delta(segment, step.text)]
            case "close":
                return [*self._last(segment), event("content_block_stop", index=segment.index)]

    def _last(self, segment: Segment) -> list[Named]:
        """Puts the whole block to the others; what remains to be said of it."""
        block, text = _empty(segment), segment.text
        self.blocks.append(block)
        match segment.kind:
            case "text":
                block["text"] = text
                return []
            case "call":
                block["input"] = arguments_object(text)
                # Some clients parse what they have gathered, without a look whether there is any.
                return [] if text else [_delta(segment, "{}")]
            case "reasoning":
                block["thinking"] = text if self._shows_thinking else ""
                signature = block["signature"] = mark(text) if self._shows_thinking else sealed(text)
                return [event("content_block_delta", index=segment.index, delta={"type": "signature_delta", "signature": signature})]


def _empty(segment: Segment) -> dict[str, Any]:
    match segment.kind:
        case "text":
            return {"type": "text", "text": ""}
        case "call":
            return {"type": "tool_use", "id": segment.id, "name": segment.name, "input": {}}
        case "reasoning":
            return {"type": "thinking", "thinking": "", "signature": ""}


def _delta(segment: Segment, text: str) -> Named:
    delta = {"type": _DELTAS[segment.kind], _MEMBERS[segment.kind]: text}
    return event("content_block_delta", index=segment.index, delta=delta)
