"""POST /v1/completions, the response: whole answers or events -> wire values. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from server.api.generate import Answer
from server.api.identity import Identity
from server.api.logprobs import CompletionLogprobs
from server.api.openai.stream import OpenAIStreamView, ending_json
from server.api.options import Options
from server.api.timing import joined, timings_json, usage_json
from server.protocol import TokenLogprob


def completion_response(identity: Identity, options: Options, answers: list[Answer], prefixes: Sequence[str]) -> dict[str, Any]:
    """`prefixes`: what stands in front of each answer (the prompt, with echo)."""
    finished = [answer.finished for answer in answers]
    return {
        **identity.members("text_completion"),
        "choices": [_choice(i, answer, options, prefixes[i]) for i, answer in enumerate(answers)],
        "usage": usage_json(finished, options.n),
        "timings": timings_json(joined([f.timings for f in finished])),
    }


def _choice(index: int, answer: Answer, options: Options, prefix: str) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": index,
        "text": prefix + answer.text,
        **ending_json(answer.finished),
        "logprobs": None if options.base.n_logprobs is None else CompletionLogprobs().render(answer.logprobs),
    }
    if options.show_tokens:
        choice["tokens"] = answer.tokens
    return choice


class CompletionStreamView(OpenAIStreamView):
    """Each choice's prefix comes once, before its text."""

    def __init__(self, identity: Identity, options: Options, prefixes: Sequence[str]) -> None:
        super().__init__(identity, "text_completion", options, len(prefixes))
        self._prefixes = prefixes
        self._logprobs = [CompletionLogprobs() for _ in prefixes]

    def opening(self, index: int) -> dict[str, Any] | None:
        prefix = self._prefixes[index]
        return self.choice(index, prefix) if prefix else None

    def choice(self, index: int, text: str | None, logprobs: Sequence[TokenLogprob] = ()) -> dict[str, Any]:
        shown = self._logprobs[index].render(logprobs) if logprobs else None
        return {"index": index, "text": text or "", "finish_reason": None, "logprobs": shown}
