"""POST /completion, the response in llama-server's shape: whole answers or events -> wire values. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from server.api.generate import Answer
from server.api.logprobs import entries
from server.api.native.completion_wire import NativeCall
from server.api.openai.stream import progress_json, queue_json
from server.api.timing import LiveTimings, timings_json
from server.http.ports import Progress
from server.protocol import Delta, Finished, GenerationRequest, Prefilled, Queued, Started


def generation_settings(request: GenerationRequest, *, stream: bool) -> dict[str, Any]:
    s = request.sampling
    return {
        **{name: getattr(s, name) for name in s.__struct_fields__ if name != "logit_bias"},
        "logit_bias": [[token, bias if math.isfinite(bias) else False] for token, bias in s.logit_bias],
        "stop": request.stop,
        "max_tokens": request.max_tokens,
        "n_predict": request.max_tokens,
        "n_probs": request.n_logprobs or 0,
        "stream": stream,
        "priority": request.priority,
        "timeout": request.timeout_s,
        "speculative.n_max": request.n_draft_max,
    }


def native_response(
    call: NativeCall, answers: list[Answer], requests: Sequence[GenerationRequest], texts: Sequence[str], model: str
) -> Any:
    """`texts`: each request's prompt as text."""
    results = []
    for i, answer in enumerate(answers):
        result = _final(i, answer.finished, answer.text, answer.tokens, requests[i], texts[i], model, stream=False)
        if requests[i].n_logprobs is not None:
            result["completion_probabilities"] = entries(answer.logprobs)
        results.append(select(result, call.response_fields))
    return results if call.as_list else results[0]


def _final(
    index: int,
    finished: Finished,
    text: str,
    tokens: Sequence[int],
    request: GenerationRequest,
    prompt: str,
    model: str,
    *,
    stream: bool,
    has_new_line: bool | None = None,
) -> dict[str, Any]:
    return {
        "index": index,
        "content": text,
        "tokens": tokens,
        "id_slot": finished.slot,
        "stop": True,
        "model": model,
        "tokens_predicted": finished.n_predicted,
        "tokens_evaluated": finished.n_prompt_tokens,
        "generation_settings": generation_settings(request, stream=stream),
        "prompt": prompt,
        "has_new_line": "\n" in text if has_new_line is None else has_new_line,
        "truncated": False,
        "stop_type": finished.stop_type,
        "stopping_word": finished.stopping_word,
        "tokens_cached": finished.n_cached_tokens,
        "timings": timings_json(finished.timings),
    }


def select(result: dict[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """Only these members; `a/b` is taken out of `a`. What does not exist is left out."""
    if not wanted:
        return result
    chosen: dict[str, Any] = {}
    for path in wanted:
        value: Any = result
        for name in path.split("/"):
            value = value.get(name, ...) if isinstance(value, dict) else ...
        if value is not ...:
            chosen[path.rpartition("/")[2]] = value
    return chosen


class NativeStreamView:
    """One chunk per event, the last one with everything but the text."""

    done_line = False

    def __init__(self, call: NativeCall, requests: Sequence[GenerationRequest], texts: Sequence[str], model: str) -> None:
        self._call = call
        self._requests = requests
        self._texts = texts
        self._model = model
        self._slots = [-1] * len(requests)
        self._evaluated = [0] * len(requests)
        self._predicted = [0] * len(requests)
        self._new_line = [False] * len(requests)
        self._clocks = [LiveTimings() for _ in requests] if call.options.timings_per_token else []

    def event(self, index: int, event: Progress) -> list[Any]:
        if self._clocks:
            self._clocks[index].event(event)
        match event:
            case Started():
                self._slots[index] = event.slot
                self._evaluated[index] = event.n_prompt_tokens
            case Queued() if self._call.options.show_queue:
                return [self._chunk(index, "", queue=queue_json(event))]
            case Queued() if self._requests[index].return_progress:
                return [self._chunk(index, "", queue_position=event.position)]
            case Prefilled():
                return [self._chunk(index, "", prompt_progress=progress_json(event))]
            case Delta():
                return self._delta(index, event)
            case Finished():
                final = _final(
                    index,
                    event,
                    "",
                    (),
                    self._requests[index],
                    self._texts[index],
                    self._model,
                    stream=True,
                    has_new_line=self._new_line[index],
                )
                return [select(final, self._call.response_fields)]
        return []

    def closing(self) -> list[Any]:
        return []

    def _delta(self, index: int, event: Delta) -> list[Any]:
        self._predicted[index] += max(1, len(event.tokens), len(event.logprobs))
        self._new_line[index] = self._new_line[index] or "\n" in event.text
        members: dict[str, Any] = {}
        if event.logprobs:
            members["completion_probabilities"] = entries(event.logprobs)
        if self._clocks:
            members["timings"] = self._clocks[index].now()
        return [self._chunk(index, event.text, event.tokens if self._call.options.show_tokens else (), **members)]

    def _chunk(self, index: int, text: str, tokens: Sequence[int] = (), **members: Any) -> dict[str, Any]:
        return {
            "index": index,
            "content": text,
            "tokens": tokens,
            "stop": False,
            "id_slot": self._slots[index],
            "tokens_predicted": self._predicted[index],
            "tokens_evaluated": self._evaluated[index],
            **members,
        }
