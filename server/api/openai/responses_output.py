"""Segments of an answer -> output items of /v1/responses, and the events that build them. Pure."""

from __future__ import annotations

from typing import Any

from server.api.opaque import sealed
from server.api.openai.responses_items import new_id
from server.api.segments import Segment, Segmenter, Step
from server.chat.parts import Part

Event = tuple[str, dict[str, Any]]
"""Its type and its members, without its number."""
_KINDS = {"text": "message", "reasoning": "reasoning", "call": "function_call"}


class ItemWriter:
    """`summarises`: reasoning comes as its summary, which is what most clients show; else as its text. `seals`: and once more sealed,
    for clients that send back nothing else."""

    def __init__(self, *, summarises: bool, seals: bool, has_logprobs: bool) -> None:
        self.output: list[dict[str, Any]] = []
        """Items that are closed."""
        self._summarises = summarises
        self._seals = seals
        self._has_logprobs = has_logprobs
        self._segments = Segmenter()
        self._id = ""
        self._logprobs: list[dict[str, Any]] = []
        """Of the open item."""

    def add(self, part: Part, logprobs: list[dict[str, Any]]) -> list[Event]:
        """`logprobs`: of the text in it."""
        return [event for step in self._segments.add(part) for event in self._events(step, logprobs, "completed")]

    def finish(self, *, is_complete: bool) -> list[Event]:
        """The end of the last item; `is_complete`: False where the answer was cut off in it."""
        status = "completed" if is_complete else "incomplete"
        return [event for step in self._segments.finish() for event in self._events(step, [], status)]

    def _events(self, step: Step, logprobs: list[dict[str, Any]], status: str) -> list[Event]:
        match step.kind:
            case "open":
                self._id, self._logprobs = new_id(_KINDS[step.segment.kind]), []
                return self._opening(step.segment)
            case "more":
                if step.segment.kind == "text":
                    self._logprobs += logprobs
                return [self._delta(step.segment, step.text, logprobs)]
            case "close":
                return self._closing(step.segment, status)

    def _opening(self, segment: Segment) -> list[Event]:
        events: list[Event] = [
            ("response.output_item.added", {"output_index": segment.index, "item": self._item(segment, None, "in_progress")})
        ]
        if segment.kind != "call":
            event = "response.reasoning_summary_part.added" if self._is_summary(segment) else "response.content_part.added"
            events.append((event, {**self._place(segment), "part": self._part(segment, "", [])}))
        return events

    def _delta(self, segment: Segment, text: str, logprobs: list[dict[str, Any]]) -> Event:
        members = {**self._place(segment), "delta": text}
        match segment.kind:
            case "text":
                return "response.output_text.delta", {**members, "logprobs": logprobs}
            case "reasoning":
                return f"response.{self._reasoning_kind}.delta", members
            case "call":
                return "response.function_call_arguments.delta", members

    def _closing(self, segment: Segment, status: str) -> list[Event]:
        text, place = segment.text, self._place(segment)
        events: list[Event] = []
        match segment.kind:
            case "text":
                events.append(("response.output_text.done", {**place, "text": text, "logprobs": self._logprobs}))
            case "reasoning":
                events.append((f"response.{self._reasoning_kind}.done", {**place, "text": text}))
            case "call":
                if not text:
                    text = "{}"
                    events.append(self._delta(segment, text, []))
                events.append(("response.function_call_arguments.done", {**place, "name": segment.name, "arguments": text}))
        if segment.kind != "call":
            event = "response.reasoning_summary_part.done" if self._is_summary(segment) else "response.content_part.done"
            events.append((event, {**place, "part": self._part(segment, text, self._logprobs)}))
        item = self._item(segment, text, status)
        self.output.append(item)
        return [*events, ("response.output_item.done", {"output_index": segment.index, "item": item})]

    @property
    def _reasoning_kind(self) -> str:
        return "reasoning_summary_text" if self._summarises else "reasoning_text"

    def _is_summary(self, segment: Segment) -> bool:
        return segment.kind == "reasoning" and self._summarises

    def _place(self, segment: Segment) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": self._id, "output_index": segment.index}
        if segment.kind != "call":
            place["summary_index" if self._is_summary(segment) else "content_index"] = 0
        return place

    def _part(self, segment: Segment, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        if segment.kind == "text":
            return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs if self._has_logprobs else []}
        return {"type": "summary_text" if self._summarises else "reasoning_text", "text": text}

    def _item(self, segment: Segment, text: str | None, status: str) -> dict[str, Any]:
        """`text` None: nothing of it is there yet."""
        item: dict[str, Any] = {"id": self._id, "type": _KINDS[segment.kind], "status": status}
        parts = [] if text is None else [self._part(segment, text, self._logprobs)]
        match segment.kind:
            case "text":
                return {**item, "role": "assistant", "content": parts}
            case "call":
                return {**item, "call_id": segment.id, "name": segment.name, "arguments": text or ""}
            case "reasoning":
                content = {"summary": parts} if self._summarises else {"summary": [], "content": parts}
                seal = {"encrypted_content": sealed(text or "")} if self._seals else {}
                return {**item, **content, **seal}
