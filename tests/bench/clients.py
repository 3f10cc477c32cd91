"""Streaming clients that note when each piece arrives. Speaks OpenAI's /v1/completions, which every server here understands."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.request import Request, urlopen

import aiohttp

from tests.bench.common import Setup, percentile
from tests.bench.servers import PYTHON_SERVER, Running

# Each is one token with its leading space in the usual vocabularies; what a prompt really comes to is counted by the server.
WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand part place "
    "case week company system program question work government number night point home water room mother area money story fact month "
    "lot right study book eye job word business issue side kind head house service friend father power hour game line end member law"
).split()


@dataclass(frozen=True)
class Timed:
    """One finished stream; times in seconds from sending it."""

    n_prompt: int
    n_tokens: int
    arrivals: tuple[float, ...]

    @property
    def ttft(self) -> float:
        return self.arrivals[0]

    @property
    def max_gap(self) -> float:
        return max((b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)), default=0.0)

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first one."""
        return (self.n_tokens - 1) / (self.arrivals[-1] - self.arrivals[0])


@dataclass(frozen=True)
class Burst:
    """Streams sent at the same moment."""

    streams: tuple[Timed, ...]
    seconds: float

    @property
    def rate(self) -> float:
        """Generated tokens a second, all streams together, prefill included."""
        return sum(stream.n_tokens for stream in self.streams) / self.seconds

    @property
    def ttft_p50(self) -> float:
        return percentile([stream.ttft for stream in self.streams], 0.5)

    @property
    def ttft_p95(self) -> float:
        return percentile([stream.ttft for stream in self.streams], 0.95)

    @property
    def max_gap(self) -> float:
        return max(stream.max_gap for stream in self.streams)

    @property
    def n_prompt(self) -> float:
        return sum(stream.n_prompt for stream in self.streams) / len(self.streams)


def prompt_texts(setup: Setup, n: int, seed: int) -> list[str]:
    """`n` prompts of about `n_prompt` tokens that share no prefix, neither with each other nor with those of another seed."""
    made = []
    for i in range(n):
        source = random.Random(f"{seed}-{i}")
        made.append(" ".join(source.choices(WORDS, k=setup.n_prompt)))
    return made


def run_burst(server: Running, setup: Setup, prompts: Sequence[str]) -> Burst:
    """All prompts at once, each to be answered by exactly `n_predict` tokens."""
    common = {"max_tokens": setup.n_predict, "temperature": 0.0, "stream": True, **_fixed_length(server)}
    bodies = [{**common, "prompt": prompt} for prompt in prompts]

    async def run() -> Burst:
        timeout = aiohttp.ClientTimeout(total=1800)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            began = time.perf_counter()
            streams = await asyncio.gather(*(_stream(session, server.url, body) for body in bodies))
            return Burst(tuple(streams), time.perf_counter() - began)

    burst = asyncio.run(run())
    wrong = [stream.n_tokens for stream in burst.streams if stream.n_tokens != setup.n_predict]
    if wrong:
        raise SystemExit(f"{server.name} answered with {wrong} tokens instead of {setup.n_predict}: nothing to compare")
    return burst


def warm_up(server: Running, setup: Setup) -> None:
    """One request that is not counted."""
    run_burst(server, setup, prompt_texts(setup, 1, -1))


def _fixed_length(server: Running) -> dict[str, Any]:
    """What makes every answer run to its limit, and makes the server count its tokens."""
    if server.name != PYTHON_SERVER:
        return {"ignore_eos": True, "cache_prompt": False, "stream_options": {"include_usage": True}}
    # It has no ignore_eos and no usage in streams: the usual ends are forbidden, and `length` says that the limit was reached.
    ends = []
    for text in ("<|im_end|>", "<|endoftext|>", "</s>", "<|eot_id|>", "<end_of_turn>"):
        request = Request(f"{server.url}/extras/tokenize", json.dumps({"input": text}).encode(), {"Content-Type": "application/json"})
        with urlopen(request, timeout=30) as response:
            tokens = json.loads(response.read())["tokens"]
        if len(tokens) == 1:  # a text that is no token of this vocabulary comes in pieces
            ends += tokens
    return {"logit_bias": {str(token): -100.0 for token in ends}}


async def _stream(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Timed:
    began = time.perf_counter()
    arrivals: list[float] = []
    usage: dict[str, int] | None = None
    reason = None
    async with session.post(f"{url}/v1/completions", json=body) as response:
        if response.status != 200:
            raise SystemExit(f"{response.status}: {(await response.text())[:500]}")
        async for line in response.content:
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            event = json.loads(line[5:])
            if "error" in event:
                raise SystemExit(str(event["error"]))
            usage = event.get("usage") or usage
            for choice in event.get("choices", ()):
                reason = choice.get("finish_reason") or reason
                if choice.get("text"):
                    arrivals.append(time.perf_counter() - began)
    if usage is not None:
        return Timed(usage["prompt_tokens"], usage["completion_tokens"], tuple(arrivals))
    return Timed(0, body["max_tokens"] if reason == "length" else len(arrivals), tuple(arrivals))
