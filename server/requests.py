"""A request in the engine's terms: what to generate, how to sample, whose it is and how soon it matters. Knows no pipe and no dialect."""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

RANDOM_SEED = 0xFFFFFFFF

Priority = Literal["interactive", "normal", "batch"]
"""Classes of requests, most urgent first. Each is sure of a share; none can be starved by another."""
CLASSES: tuple[Priority, ...] = get_args(Priority)
RANKS: dict[str, int] = {name: rank for rank, name in enumerate(CLASSES)}
"""0 = most urgent."""


class Flow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whose request it is, for fair shares: key, within it address, within it session. Names, never secrets; empty = none."""

    key: str = ""
    weight: float = 1.0
    """The key's share beside other keys."""
    max_running: int = 0
    """Requests of the key that may run at once; 0 = any number."""
    address: str = ""
    session: str = ""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """llama.cpp's sampler settings with llama-server's defaults. Ranges are checked by the front (api/), not here."""

    seed: int = RANDOM_SEED
    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: Literal[0, 1, 2] = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    min_keep: int = 0
    samplers: tuple[str, ...] = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_eos: bool = False


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """What the answer must look like. `param`: the member of the request that asked for it, for messages about it."""

    kind: Literal["json_schema", "regex", "lark", "gbnf"]
    source: str
    """The schema as JSON text, the expression, or the grammar."""
    param: str = "response_format"


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sequence to generate, in the engine's terms; dialects (api/) translate to it.

    `prompt` is text, token ids, or a mixed list of both; text is tokenised in the runner (`add_special`: BOS where the model
    wants one; `parse_special`: control tokens written out in the text count as such). `max_tokens` -1 = until the context
    is full; 0 = evaluate the prompt only. `n_logprobs` None = no log-probabilities, n = the chosen token's and n alternatives'.
    """

    prompt: str | list[int | str]
    add_special: bool = True
    parse_special: bool = True
    max_tokens: int = -1
    stop: tuple[str, ...] = ()
    sampling: SamplingParams = SamplingParams()
    n_logprobs: int | None = None
    cache_prompt: bool = True
    return_tokens: bool = False
    return_progress: bool = False
    priority: Priority = "normal"
    flow: Flow = Flow()
    timeout_s: float | None = None
    """Seconds from submit after which it is ended: while waiting with an error, while running as if it had reached `max_tokens`."""
    namespace: str = ""
    """Prefixes are shared within a namespace only (cache salt, API key)."""
    constraint: Constraint | None = None
    shown_tokens: tuple[str, ...] = ()
    """Control tokens, as written in the vocabulary, that appear in the text; others leave no trace in it."""
    n_draft_max: int = -1
    """Most tokens that may be guessed ahead of a step; 0 = no speculation, -1 = as the server is set."""
