"""Who asks for what and when: traces from files, and named synthetic workloads. Knows no scheduler.

A trace file has one JSON object a line; only `at` (seconds), `prompt` and `output` (tokens) are needed:
{"at": 0.5, "key": "anna", "priority": "normal", "prompt": 300, "prefix": "manual", "shared": 200, "output": 64, "timeout": 30}
`shared` prompt tokens are the same in all requests that name the same `prefix`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from server.requests import CLASSES, Priority

Length = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class Arrival(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"n_prompt": "prompt", "n_output": "output", "n_shared": "shared"},
):
    """One request: `at` and `timeout` in seconds, lengths in tokens."""

    at: Seconds
    n_prompt: Length
    n_output: Length
    key: str = ""
    priority: Priority = "normal"
    prefix: str = ""
    n_shared: int = 0
    timeout: Seconds | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.n_shared <= (self.n_prompt if self.prefix else 0):
            raise ValueError("`shared` is a part of `prompt` and belongs to a `prefix`")


def read_trace(path: Path) -> list[Arrival]:
    """The requests of a file, by time.

    Raises:
        SystemExit: a line is not as described above.
    """
    decoder = msgspec.json.Decoder(Arrival)
    arrivals = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip():
            try:
                arrivals.append(decoder.decode(line))
            except msgspec.DecodeError as error:
                raise SystemExit(f"{path}:{number}: not a request: {error}") from error
    return sorted(arrivals, key=lambda arrival: arrival.at)


# ---- synthetic workloads: (number of requests, requests a second, source of chance) -> requests ----


def _times(n: int, rate: float, source: random.Random) -> Iterator[float]:
    """Poisson arrivals."""
    at = 0.0
    for _ in range(n):
        yield at
        at += source.expovariate(rate)


def _length(source: random.Random, middle: float, spread: float, most: int) -> int:
    """Log-normal, as prompts and answers of people are."""
    return max(1, min(most, int(middle * source.lognormvariate(0.0, spread))))


def _chat(n: int, rate: float, source: random.Random) -> Iterator[Arrival]:
    """Eight keys, a few system prompts, answers of all lengths."""
    for at in _times(n, rate, source):
        prompt, prefix = _length(source, 60, 0.9, 600), source.randrange(4)
        yield Arrival(
            at=at, n_prompt=200 + prompt, n_shared=200, prefix=f"system {prefix}", n_output=_length(source, 60, 0.8, 500),
            key=f"key {source.randrange(8)}",
        )  # fmt: skip


def _flood(n: int, rate: float, source: random.Random) -> Iterator[Arrival]:
    """One key asks for nearly everything at once; another one for little, now and then."""
    n_light = max(1, n // 25)
    for _ in range(n - n_light):
        yield Arrival(at=0.0, n_prompt=200, n_output=64, key="heavy")
    for at in _times(n_light, rate / 10, source):
        yield Arrival(at=3 + at, n_prompt=10, n_output=16, key="light")


def _classes(n: int, rate: float, source: random.Random) -> Iterator[Arrival]:
    """A backlog of `batch`, and people before it."""
    for at in _times(n, rate, source):
        priority = source.choices(CLASSES, (1, 2, 3))[0]
        long = priority == "batch"
        yield Arrival(
            at=0.0 if long else at, n_prompt=_length(source, 200 if long else 60, 0.5, 1000), n_output=_length(source, 60, 0.5, 300),
            key=f"{priority} {source.randrange(2)}", priority=priority,
        )  # fmt: skip


def _shared(n: int, rate: float, source: random.Random) -> Iterator[Arrival]:
    """Bursts of 16 with one long beginning."""
    for i in range(n):
        at = i // 16 * 16 / rate
        yield Arrival(at=at, n_prompt=1020, n_shared=1000, prefix=f"burst {i // 16}", n_output=64, key=f"key {source.randrange(4)}")


def _long(n: int, rate: float, source: random.Random) -> Iterator[Arrival]:
    """Streams, and every now and then a prompt of thousands of tokens."""
    for i, at in enumerate(_times(n, rate, source)):
        long = i % 10 == 9
        yield Arrival(
            at=at, n_prompt=3000 if long else 30, n_output=8 if long else 150, key="long" if long else f"stream {i % 4}"
        )  # fmt: skip


def _burst(n: int, rate: float, source: random.Random) -> Iterator[Arrival]:
    """Equal requests, all at once."""
    for i in range(n):
        yield Arrival(at=0.0, n_prompt=30, n_output=64, key=f"key {i % 4}")


WORKLOADS: dict[str, Callable[[int, float, random.Random], Iterable[Arrival]]] = {
    "chat": _chat,
    "flood": _flood,
    "classes": _classes,
    "shared": _shared,
    "long": _long,
    "burst": _burst,
}


def workload(name: str, n: int, rate: float, seed: int = 1) -> list[Arrival]:
    """`n` requests of a named workload, about `rate` a second where it has a rate, by time."""
    return sorted(WORKLOADS[name](n, rate, random.Random(f"{name} {seed}")), key=lambda arrival: arrival.at)
