"""POST /completion, the request: wire record -> `NativeCall`. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from server.api.fields import GenerationFields
from server.api.options import Options, Prompt, logprobs_of, parse_options
from server.api.prompts import WirePrompt, parse_prompts
from server.protocol import ModelInfo
from server.settings import Settings


class NativeBody(GenerationFields, kw_only=True):
    prompt: WirePrompt | None = None
    logprobs: int | None = None
    response_fields: list[str] | None = None


@dataclass(frozen=True, slots=True)
class NativeCall:
    options: Options
    prompts: list[Prompt]
    as_list: bool
    """Several prompts or choices: the response is a list."""
    response_fields: tuple[str, ...]
    """Empty: all."""


def parse_native(body: NativeBody, settings: Settings, info: ModelInfo) -> NativeCall:
    """Raises:
    ClientError: a member is missing, out of range or not supported; `param` names it.
    """
    prompts, listed = parse_prompts(body.prompt, info.n_vocab)
    n_probs = logprobs_of("n_probs", body.n_probs)
    if n_probs is None:
        n_probs = logprobs_of("logprobs", body.logprobs)
    options = parse_options(body, settings, info, n_logprobs=n_probs or None)
    return NativeCall(options, prompts, listed or options.n > 1, tuple(body.response_fields or ()))
