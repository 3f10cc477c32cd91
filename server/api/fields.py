"""The members that all generating requests share, as they come over the wire, and those that are known but not done here.

Types are checked by decoding; ranges in `sampling.py` and `options.py`. None = absent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from server.errors import Unsupported


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    include_queue: bool | None = None


class Speculative(msgspec.Struct, kw_only=True):
    n_max: int | None = None


class GenerationFields(msgspec.Struct, kw_only=True):
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    # sampling
    seed: int | None = None
    temperature: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    repeat_last_n: int | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    min_keep: int | None = None
    samplers: str | list[str] | None = None
    logit_bias: dict[str, float | bool] | list[tuple[int | str, float | bool]] | None = None
    ignore_eos: bool | None = None

    # how much, and what comes back
    n: int | None = None
    n_cmpl: int | None = None
    n_predict: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    n_probs: int | None = None
    cache_prompt: bool | None = None
    return_tokens: bool | None = None
    return_progress: bool | None = None
    timings_per_token: bool | None = None
    sse_ping_interval: float | None = None

    # how soon, for whom (see scheduling.py)
    priority: str | int | None = None
    timeout: float | None = None
    session: str | None = None
    session_id: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    cache_salt: str | None = None
    return_queue: bool | None = None
    n_draft_max: int | None = msgspec.field(name="speculative.n_max", default=None)
    speculative: Speculative | None = None
    """The same as an object; the dotted member wins."""

    # of no effect: a full context ends the answer and is never shifted
    n_keep: int | None = None
    n_discard: int | None = None

    # known, not done here (see UNSUPPORTED)
    grammar: Any = None
    json_schema: Any = None
    grammar_lazy: Any = None
    lora: Any = None
    adaptive_target: Any = None
    post_sampling_probs: Any = None
    t_max_predict_ms: Any = None
    n_indent: Any = None
    id_slot: Any = None
    image_data: Any = None
    response_format: Any = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None


def _no(value: Any) -> bool:
    return False


def _falsy(value: Any) -> bool:
    return not value


def _not_positive(value: Any) -> bool:
    return isinstance(value, int | float) and value <= 0


UNSUPPORTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "grammar": (_falsy, "constrained output is not supported"),
    "json_schema": (_no, "constrained output is not supported"),
    "grammar_lazy": (_falsy, "constrained output is not supported"),
    "lora": (_falsy, "adapters are not supported"),
    "adaptive_target": (lambda v: isinstance(v, int | float) and v < 0, "adaptive sampling is not supported"),
    "post_sampling_probs": (_falsy, "probabilities after sampling are not supported"),
    "t_max_predict_ms": (_not_positive, "a time limit is not supported"),
    "n_indent": (_not_positive, "a minimum indentation is not supported"),
    "id_slot": (lambda v: v == -1 and v is not True, "a request cannot choose its slot; only -1 is accepted"),
    "image_data": (_falsy, "images are not supported"),
    "response_format": (lambda v: isinstance(v, dict) and v.get("type") == "text", "only the type text is supported"),
    "tools": (lambda v: v == [], "tools are not supported"),
    "tool_choice": (lambda v: v in ("none", "auto"), "tools are not supported"),
    "functions": (lambda v: v == [], "functions are not supported; nor are tools"),
    "function_call": (lambda v: v in ("none", "auto"), "functions are not supported"),
}
"""Member -> (which values change nothing, what to say about the others)."""


def refuse(fields: msgspec.Struct, table: dict[str, tuple[Callable[[Any], bool], str]]) -> None:
    """Never ignore silently what would change the answer.

    Raises:
        Unsupported: a member of `table` has a value that would.
    """
    for name, (harmless, message) in table.items():
        value = getattr(fields, name)
        if value is not None and not harmless(value):
            raise Unsupported(f"{name}: {message}", param=name)
