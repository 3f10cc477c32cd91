"""Requests at chosen moments, by chosen people, and when each piece of their answers arrives. Speaks OpenAI's /v1/completions only."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.bench.clients import WORDS
from tests.bench.servers import Running


@dataclass(frozen=True, kw_only=True)
class Shot:
    """One request. `at`: seconds after the start; `after`: it is sent once so many pieces of all earlier shots have arrived."""

    prompt: str | list[int]
    n_predict: int
    at: float = 0.0
    after: int = 0
    key: str = ""
    label: str = ""
    body: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Hit:
    """What came of a shot; `sent` and `arrivals` in seconds after the start of the volley. `error` empty = it finished."""

    label: str
    sent: float
    arrivals: tuple[float, ...]
    n_prompt: int
    n_cached: int
    n_tokens: int
    error: str
    text: str

    @property
    def ttft(self) -> float:
        return self.arrivals[0] - self.sent if self.arrivals else float("inf")

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]

    @property
    def end(self) -> float:
        return self.arrivals[-1] if self.arrivals else self.sent


@dataclass(frozen=True)
class Volley:
    hits: tuple[Hit, ...]
    seconds: float

    def labelled(self, label: str) -> list[Hit]:
        return [hit for hit in self.hits if hit.label == label]

    @property
    def n_tokens(self) -> int:
        return sum(hit.n_tokens for hit in self.hits)

    @property
    def n_finished(self) -> int:
        return sum(not hit.error for hit in self.hits)


def words(n: int, *seed: object) -> str:
    """About `n` tokens that share no beginning with those of another seed."""
    source = random.Random("-".join(map(str, seed)))
    return " ".join(source.choices(WORDS, k=n))


def fire(server: Running, shots: Sequence[Shot], *, strict: bool = True) -> Volley:
    """Run all shots. `strict`: any error ends the benchmark."""
    volley = asyncio.run(_fire(server, shots))
    failed = [hit for hit in volley.hits if hit.error]
    if strict and failed:
        raise SystemExit(f"{server.name}: {len(failed)} of {len(shots)} requests failed: {failed[0].error[:500]}")
    return volley


async def _fire(server: Running, shots: Sequence[Shot]) -> Volley:
    timeout = aiohttp.ClientTimeout(total=1800)
    progress = _Progress()
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        began = time.perf_counter()
        hits = await asyncio.gather(*(_shoot(session, server.url, shot, began, progress) for shot in shots))
        return Volley(tuple(hits), time.perf_counter() - began)


class _Progress:
    """Pieces that have arrived so far."""

    def __init__(self) -> None:
        self.n = 0
        self._changed = asyncio.Event()

    def add(self) -> None:
        self.n += 1
        self._changed.set()

    async def wait(self, n: int) -> None:
        while self.n < n:
            self._changed.clear()
            await self._changed.wait()


async def _shoot(session: aiohttp.ClientSession, url: str, shot: Shot, began: float, progress: _Progress) -> Hit:
    await progress.wait(shot.after)
    await asyncio.sleep(max(0.0, shot.at - (time.perf_counter() - began)))
    sent = time.perf_counter() - began
    body = {
        "prompt": shot.prompt, "max_tokens": shot.n_predict, "temperature": 0.0, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True}, **shot.body,
    }  # fmt: skip
    headers = {"Authorization": f"Bearer {shot.key}"} if shot.key else {}
    arrivals: list[float] = []
    parts: list[str] = []
    usage: dict[str, Any] = {}
    error = ""
    try:
        async with session.post(f"{url}/v1/completions", json=body, headers=headers) as response:
            if response.status != 200:
                error = f"{response.status}: {await response.text()}"
            async for line in response.content:
                if error or not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                    continue
                event = json.loads(line[5:])
                if "error" in event:
                    error = json.dumps(event["error"])
                    continue
                usage = event.get("usage") or usage
                for choice in event.get("choices", ()):
                    if choice.get("text"):
                        parts.append(choice["text"])
                        arrivals.append(time.perf_counter() - began)
                        progress.add()
    except aiohttp.ClientError as failure:
        error = f"{type(failure).__name__}: {failure}"
    if not error and not usage:
        error = "the stream ended without saying how"
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    n_prompt, n_tokens = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    return Hit(shot.label, sent, tuple(arrivals), n_prompt, cached, n_tokens, error, "".join(parts))
