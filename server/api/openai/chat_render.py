"""POST /v1/chat/completions, the response: whole answers or events -> wire values. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from server.api.generate import Answer
from server.api.identity import Identity
from server.api.logprobs import entries
from server.api.openai.stream import OpenAIStreamView, ending_json
from server.api.options import Options
from server.api.timing import joined, timings_json, usage_json
from server.protocol import TokenLogprob


def chat_response(identity: Identity, options: Options, answers: list[Answer]) -> dict[str, Any]:
    finished = [answer.finished for answer in answers]
    return {
        **identity.members("chat.completion"),
        "choices": [_choice(i, answer, options) for i, answer in enumerate(answers)],
        "usage": usage_json(finished, options.n),
        "timings": timings_json(joined([f.timings for f in finished])),
    }


def _choice(index: int, answer: Answer, options: Options) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": index,
        "message": {"role": "assistant", "content": answer.text},
        **ending_json(answer.finished),
        "logprobs": None if options.base.n_logprobs is None else {"content": entries(answer.logprobs)},
    }
    if options.show_tokens:
        choice["tokens"] = answer.tokens
    return choice


class ChatStreamView(OpenAIStreamView):
    """The role comes once per choice, in its first chunk."""

    def __init__(self, identity: Identity, options: Options) -> None:
        super().__init__(identity, "chat.completion.chunk", options, options.n)

    def opening(self, index: int) -> dict[str, Any]:
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}

    def choice(self, index: int, text: str | None, logprobs: Sequence[TokenLogprob] = ()) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "delta": {} if text is None else {"content": text}, "finish_reason": None}
        if logprobs:
            choice["logprobs"] = {"content": entries(logprobs)}
        return choice
