"""POST /v1/completions, the request: wire record -> `CompletionCall`. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from server.api.fields import GenerationFields, refuse
from server.api.options import Options, Prompt, logprobs_of, parse_options
from server.api.prompts import WirePrompt, parse_prompts
from server.errors import Unsupported
from server.protocol import ModelInfo
from server.settings import Settings

MAX_LOGPROBS = 20


class CompletionBody(GenerationFields, kw_only=True):
    prompt: WirePrompt | None = None
    logprobs: int | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None


_UNSUPPORTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "best_of": (lambda v: v == 1, "only 1 is supported"),
    "suffix": (lambda v: v == "", "text behind the completion is not supported"),
}


@dataclass(frozen=True, slots=True)
class CompletionCall:
    options: Options
    prompts: list[Prompt]
    echo: bool


def parse_completion(body: CompletionBody, settings: Settings, info: ModelInfo) -> CompletionCall:
    """Raises:
    ClientError: a member is missing, out of range or not supported; `param` names it.
    """
    refuse(body, _UNSUPPORTED)
    prompts, _ = parse_prompts(body.prompt, info.n_vocab)
    n_logprobs = logprobs_of("logprobs", body.logprobs, MAX_LOGPROBS)
    if n_logprobs is None:
        n_logprobs = logprobs_of("n_probs", body.n_probs) or None
    if body.echo and n_logprobs is not None:
        raise Unsupported("echo with logprobs is not supported: the prompt has no log-probabilities", param="echo")
    options = parse_options(body, settings, info, n_logprobs=n_logprobs)
    return CompletionCall(options, prompts, bool(body.echo))
