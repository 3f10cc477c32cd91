"""POST /v1/messages, the response: events -> Anthropic's events, and the whole message that they add up to. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from server.api.anthropic.blocks import BlockWriter, event
from server.api.chatting import ChatView, Prepared
from server.api.identity import Identity
from server.api.reasoning_count import ReasoningCount
from server.chat.parts import Part, ToolCall
from server.http.ports import Progress
from server.protocol import Delta, Finished, Queued, Started


class MessagesView(ChatView):
    """`message_start` comes when the prompt's counts are known; what is said before that are comments."""

    def __init__(self, identity: Identity, prepared: Prepared, *, shows_thinking: bool) -> None:
        super().__init__(prepared)
        self._identity = identity
        self._max_tokens = prepared.options.base.max_tokens
        self._writer = BlockWriter(shows_thinking=shows_thinking)
        self._thinking = ReasoningCount()
        self._calls_tools = False
        self._n_prompt = self._n_cached = 0
        self._has_begun = False
        self._finished: Finished | None = None

    def message(self) -> dict[str, Any]:
        """The whole answer, once it has finished."""
        assert self._finished is not None
        usage = self._usage(self._finished)
        return {**self._head(), "content": self._writer.blocks, **self._ending(self._finished), "usage": usage}

    def parts(self, index: int, parts: Sequence[Part], delta: Delta | None) -> list[Any]:
        self._thinking.add(parts, delta)
        self._calls_tools = self._calls_tools or any(isinstance(part, ToolCall) for part in parts)
        return [*self._begin(), *(value for part in parts for value in self._writer.add(part))]

    def finished(self, index: int, event_: Finished) -> list[Any]:
        self._finished = event_
        self._n_prompt, self._n_cached = event_.n_prompt_tokens, event_.n_cached_tokens
        return [
            *self._begin(),
            *self._writer.finish(),
            event("message_delta", delta=self._ending(event_), usage=self._usage(event_)),
            event("message_stop"),
        ]

    def other(self, index: int, event_: Progress) -> list[Any]:
        if isinstance(event_, Queued):
            self._n_prompt = event_.n_prompt_tokens
        if isinstance(event_, Started):
            self._n_prompt, self._n_cached = event_.n_prompt_tokens, event_.n_cached_tokens
            return self._begin()
        return []

    def closing(self) -> list[Any]:
        return []

    def ping(self) -> Any:
        return event("ping")

    def _begin(self) -> list[Any]:
        if self._has_begun:
            return []
        self._has_begun = True
        usage = {**_prompt_usage(self._n_prompt, self._n_cached), "output_tokens": 0}
        message = {**self._head(), "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        return [event("message_start", message=message)]

    def _head(self) -> dict[str, Any]:
        return {"id": self._identity.id, "type": "message", "role": "assistant", "model": self._identity.model}

    def _ending(self, finished: Finished) -> dict[str, Any]:
        by_word = finished.reason == "stop" and finished.stop_type == "word"
        return {"stop_reason": self._stop_reason(finished, by_word), "stop_sequence": finished.stopping_word if by_word else None}

    def _stop_reason(self, finished: Finished, by_word: bool) -> str:
        if finished.reason == "length":
            is_full = finished.stop_type == "limit" and not 0 <= self._max_tokens <= finished.n_predicted
            return "model_context_window_exceeded" if is_full else "max_tokens"
        if by_word:
            return "stop_sequence"
        return "tool_use" if self._calls_tools else "end_turn"

    def _usage(self, finished: Finished) -> dict[str, Any]:
        n_thinking = min(self._thinking.n_tokens, finished.n_predicted)
        details = {"output_tokens_details": {"thinking_tokens": n_thinking}} if n_thinking else {}
        prompt = _prompt_usage(finished.n_prompt_tokens, finished.n_cached_tokens)
        return {**prompt, "output_tokens": finished.n_predicted, **details}


def _prompt_usage(n_prompt: int, n_cached: int) -> dict[str, int]:
    """The three add up to the prompt. Nothing is ever written to a cache for its own sake: prompts stay as they have been computed."""
    return {"input_tokens": n_prompt - n_cached, "cache_creation_input_tokens": 0, "cache_read_input_tokens": n_cached}
