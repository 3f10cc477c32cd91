"""POST /v1/responses, the response: events -> the events of the dialect, and the response that they add up to. Pure but for a clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from server.api.chatting import ChatView, Prepared
from server.api.identity import Identity
from server.api.logprobs import entries
from server.api.openai.responses_output import Event, ItemWriter
from server.api.openai.responses_wire import ResponsesCall
from server.api.reasoning_count import ReasoningCount
from server.chat.parts import Content, Part
from server.errors import CapsuleError
from server.http.ports import Progress
from server.http.sse import Named
from server.protocol import Delta, Finished

_KNOWN_CODES = frozenset({"context_length_exceeded", "rate_limit_exceeded"})


class ResponsesView(ChatView):
    """Numbers every event. `keep` gets the finished response before the client does, so that the next request may build upon it."""

    def __init__(self, identity: Identity, prepared: Prepared, call: ResponsesCall, keep: Callable[[dict[str, Any]], bool] | None) -> None:
        super().__init__(prepared)
        self.response = response_json(identity, call, stores=keep is not None)
        """As it stands."""
        self._keep = keep
        self._has_logprobs = prepared.options.base.n_logprobs is not None
        self._writer = ItemWriter(summarises=call.summarises, seals=call.seals, has_logprobs=self._has_logprobs)
        self._reasoning = ReasoningCount()
        self._logprobs: list[dict[str, Any]] = []
        """Of tokens whose text is still held back."""
        self._n_events = 0

    def event(self, index: int, event: Progress) -> list[Any]:
        return [*self._begin(), *super().event(index, event)]

    def parts(self, index: int, parts: Sequence[Part], delta: Delta | None) -> list[Any]:
        self._reasoning.add(parts, delta)
        if delta is not None and self._has_logprobs:
            self._logprobs += entries(delta.logprobs)
        events: list[Event] = []
        for part in parts:
            events += self._writer.add(part, self._logprobs if isinstance(part, Content) else [])
            self._logprobs = []
        return self._numbered(events)

    def finished(self, index: int, event: Finished) -> list[Any]:
        is_complete = event.reason != "length"
        events = self._writer.finish(is_complete=is_complete)
        self.response.update(
            status="completed" if is_complete else "incomplete",
            completed_at=int(time.time()) if is_complete else None,
            incomplete_details=None if is_complete else {"reason": "max_output_tokens"},
            output=self._writer.output,
            usage=usage_json(event, self._reasoning.n_tokens),
        )
        if self._keep is not None:
            self.response["store"] = self._keep(self.response)
        last = "response.completed" if is_complete else "response.incomplete"
        return self._numbered([*events, (last, {"response": self.response})])

    def other(self, index: int, event: Progress) -> list[Any]:
        return []

    def closing(self) -> list[Any]:
        return []

    def failure(self, error: CapsuleError) -> list[Any]:
        code = error.code if error.code in _KNOWN_CODES else "server_error"
        failed = {**self.response, "status": "failed", "output": self._writer.output, "error": {"code": code, "message": error.message}}
        reason = {"code": error.code, "message": error.message, "param": error.param}
        return [*self._begin(), *self._numbered([("error", reason), ("response.failed", {"response": failed})])]

    def ping(self) -> Any:
        """Nothing new. Some clients give up on a stream without events, and stumble over kinds that they do not know."""
        return self._numbered([("response.in_progress", {"response": self.response})])[0]

    def _begin(self) -> list[Any]:
        if self._n_events:
            return []
        response = dict(self.response)
        return self._numbered([("response.created", {"response": response}), ("response.in_progress", {"response": response})])

    def _numbered(self, events: Sequence[Event]) -> list[Any]:
        values = []
        for kind, members in events:
            values.append(Named(kind, {"type": kind, "sequence_number": self._n_events, **members}))
            self._n_events += 1
        return values


def response_json(identity: Identity, call: ResponsesCall, *, stores: bool) -> dict[str, Any]:
    """A response of which nothing has been said yet."""
    body, sampling = call.body, call.options.base.sampling
    text_format = body.text.format if body.text is not None and body.text.format is not None else None
    found = {
        "id": identity.id,
        "object": "response",
        "created_at": identity.created,
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata or {},
        "model": identity.model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {
            "effort": body.reasoning.effort if body.reasoning is not None else None,
            "summary": body.reasoning.summary if body.reasoning is not None else None,
        },
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": stores,
        "temperature": sampling.temperature,
        "text": {
            "format": {"type": "text"} if text_format is None else msgspec.to_builtins(text_format),
            "verbosity": body.text.verbosity if body.text is not None and body.text.verbosity else "medium",
        },
        "tool_choice": "auto" if body.tool_choice is None else msgspec.to_builtins(body.tool_choice),
        "tools": call.use.tools_json(),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
    }
    return {**found, "warnings": list(call.notices)} if call.notices else found


def usage_json(finished: Finished, n_reasoning: int) -> dict[str, Any]:
    return {
        "input_tokens": finished.n_prompt_tokens,
        "input_tokens_details": {"cached_tokens": finished.n_cached_tokens, "cache_write_tokens": 0},
        "output_tokens": finished.n_predicted,
        "output_tokens_details": {"reasoning_tokens": min(n_reasoning, finished.n_predicted)},
        "total_tokens": finished.n_prompt_tokens + finished.n_predicted,
    }
