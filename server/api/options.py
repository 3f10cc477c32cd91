"""What all generating requests have in common beyond sampling: how many, how long, where to stop, what comes back. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from server.api.fields import UNSUPPORTED, GenerationFields, refuse
from server.api.sampling import INT_MAX, Sampling, check_range, nth_seed, parse_sampling
from server.errors import ClientError
from server.protocol import GenerationRequest, ModelInfo
from server.settings import Settings

MAX_CHOICES = 128
MAX_SEQUENCES = 1024
"""Of one HTTP request: prompts times choices."""
MAX_STOPS = 64
MAX_STOP_CHARS = 1024
MAX_LOGPROBS = 100

Prompt = str | list[int] | list[int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    base: GenerationRequest
    """The request without its prompt."""
    sampling: Sampling
    n: int
    stream: bool
    include_usage: bool
    show_tokens: bool
    timings_per_token: bool
    show_queue: bool
    """Positions in the queue come as events of their own."""
    ping_interval: float
    """Seconds; 0 or less: none."""


def parse_options(fields: GenerationFields, settings: Settings, info: ModelInfo, *, n_logprobs: int | None) -> Options:
    """Raises:
    ClientError: a value is out of range, or not supported; `param` names the member.
    """
    refuse(fields, UNSUPPORTED)
    for name, low in (("n_keep", -1), ("n_discard", 0)):
        check_range(name, getattr(fields, name) or 0, low, INT_MAX)
    sampling = parse_sampling(fields, settings, info.n_vocab)
    ping = (
        settings.sse_ping_interval
        if fields.sse_ping_interval is None
        else check_range("sse_ping_interval", fields.sse_ping_interval, -1, 1e6)
    )
    stream = bool(fields.stream)
    timings_per_token = stream and bool(fields.timings_per_token)
    return Options(
        base=GenerationRequest(
            prompt="",
            max_tokens=_max_tokens(fields, settings),
            stop=_stop(fields.stop),
            sampling=sampling.params,
            n_logprobs=n_logprobs,
            cache_prompt=fields.cache_prompt is not False,
            return_tokens=bool(fields.return_tokens) or timings_per_token,
            return_progress=stream and bool(fields.return_progress),
        ),
        sampling=sampling,
        n=_n(fields),
        stream=stream,
        include_usage=bool(fields.stream_options and fields.stream_options.include_usage),
        show_tokens=bool(fields.return_tokens),
        timings_per_token=timings_per_token,
        show_queue=stream and bool(fields.return_queue or (fields.stream_options and fields.stream_options.include_queue)),
        ping_interval=max(ping, 0.05) if ping > 0 else 0.0,
    )


def expand(base: GenerationRequest, prompts: Sequence[Prompt], n: int, *, field: str = "prompt") -> list[GenerationRequest]:
    """One request per prompt and choice; choice i of prompt p is at p * n + i.

    Raises:
        ClientError: they are too many.
    """
    if len(prompts) * n > MAX_SEQUENCES:
        raise ClientError(f"{len(prompts)} prompts with {n} choices each are more than {MAX_SEQUENCES} sequences", param=field)
    requests = []
    for prompt in prompts:
        for i in range(n):
            sampling = msgspec.structs.replace(base.sampling, seed=nth_seed(base.sampling.seed, i))
            requests.append(msgspec.structs.replace(base, prompt=prompt, sampling=sampling))
    return requests


def logprobs_of(name: str, value: int | None, highest: int = MAX_LOGPROBS) -> int | None:
    return None if value is None else int(check_range(name, value, 0, highest))


def _max_tokens(fields: GenerationFields, settings: Settings) -> int:
    for name in ("n_predict", "max_completion_tokens", "max_tokens"):
        value = getattr(fields, name)
        if value is not None:
            return int(check_range(name, value, -1, INT_MAX))
    return settings.n_predict


def _n(fields: GenerationFields) -> int:
    name, value = ("n_cmpl", fields.n_cmpl) if fields.n_cmpl is not None else ("n", fields.n)
    return 1 if value is None else int(check_range(name, value, 1, MAX_CHOICES))


def _stop(given: str | list[str] | None) -> tuple[str, ...]:
    stops = () if given is None else (given,) if isinstance(given, str) else tuple(given)
    if len(stops) > MAX_STOPS:
        raise ClientError(f"stop holds {len(stops)} strings; at most {MAX_STOPS} are accepted", param="stop")
    if not all(0 < len(text) <= MAX_STOP_CHARS for text in stops):
        raise ClientError(f"stop: a stop string has 1 to {MAX_STOP_CHARS} characters", param="stop")
    return stops
