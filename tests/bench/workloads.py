"""The workloads that tell schedulers apart: what is sent, with which flags, what is read off, and the target. Knows no table.

Both sides get the same number of slots, cells and threads. Numbers are seconds, tokens a second or plain counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.request import Request, urlopen

from tests.bench.common import percentile
from tests.bench.load import Shot, fire, words
from tests.bench.servers import LLAMA_SERVER, LLAMA_SERVER_STREAMS, Running

OURS = "capsule"
OURS_UNIFIED = "capsule, unified"
Numbers = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Target:
    """`of` one side's number ÷ another's (or ÷ a second number of the same side) compared with `limit`."""

    name: str
    number: str
    against: tuple[str, str]
    """(side, number); the side "" = our own."""
    limit: float
    at_most: bool = False
    side: str = OURS


@dataclass(frozen=True, kw_only=True)
class Workload:
    name: str
    title: str
    slots: int
    ctx_per_slot: int
    run: Callable[[Running, int], Numbers]
    """(server, round) -> what was measured."""
    targets: tuple[Target, ...]
    sides: tuple[str, ...] = (OURS, LLAMA_SERVER, LLAMA_SERVER_STREAMS)
    ours: tuple[str, ...] = ()
    """Further flags of our side."""
    both: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Slots and cells of each, where a side needs others: a request has to fit a slot."""
    governed: bool = False
    """Our side is not told how many threads to use."""


def _shared(server: Running, n: int) -> Numbers:
    system = words(1000, "system", n)
    shots = [Shot(prompt=f"{system} {words(20, n, i)}", n_predict=64) for i in range(16)]
    volley = fire(server, shots)
    return {
        "requests/s": 16 / volley.seconds,
        "TTFT p95": percentile([hit.ttft for hit in volley.hits], 0.95),
        "cached tokens": sum(hit.n_cached for hit in volley.hits),
    }


def _independent(server: Running, n: int) -> Numbers:
    volley = fire(server, [Shot(prompt=words(115, n, i), n_predict=64, body={"cache_prompt": False}) for i in range(16)])
    return {
        "tokens/s": volley.n_tokens / volley.seconds,
        "TTFT p50": percentile([hit.ttft for hit in volley.hits], 0.5),
        "longest gap": max(max(hit.gaps) for hit in volley.hits),
    }


def _interference(server: Running, n: int) -> Numbers:
    shots = [Shot(prompt=words(20, n, i), n_predict=200, label="stream", body={"cache_prompt": False}) for i in range(4)]
    shots.append(Shot(prompt=words(6000, n), n_predict=8, after=40, label="long", body={"cache_prompt": False}))
    volley = fire(server, shots)
    gaps = [gap for hit in volley.labelled("stream") for gap in hit.gaps]
    return {
        "p99 gap": percentile(gaps, 0.99),
        "longest gap": max(gaps),
        "long TTFT": volley.labelled("long")[0].ttft,
        "target": ITL_TARGET,
    }


def _flood(server: Running, n: int) -> Numbers:
    shots = [Shot(prompt=words(200, n, i), n_predict=64, key="heavy", label="heavy", body={"cache_prompt": False}) for i in range(24)]
    shots.append(Shot(prompt=words(10, n, "light"), n_predict=16, at=3.0, key="light", label="light", body={"cache_prompt": False}))
    volley = fire(server, shots)
    light = volley.labelled("light")[0]
    return {"light TTFT": light.ttft, "light end": light.end - light.sent, "all": volley.seconds}


def _priority(server: Running, n: int) -> Numbers:
    short = words(10, n, "idle")
    idle = fire(server, [Shot(prompt=short, n_predict=4, body={"cache_prompt": False})]).hits[0].ttft
    crowd = [
        Shot(prompt=words(30, n, i), n_predict=100, label="batch", body={"cache_prompt": False, "priority": "batch"}) for i in range(20)
    ]
    body = {"cache_prompt": False, "priority": "interactive"}
    urgent = Shot(prompt=words(10, n, "now"), n_predict=4, after=16 * 30, label="urgent", body=body)
    volley = fire(server, [*crowd, urgent])
    step = percentile([gap for hit in volley.labelled("batch") for gap in hit.gaps], 0.5)
    return {"urgent TTFT": volley.labelled("urgent")[0].ttft, "idle TTFT + 3 steps": idle + 3 * step, "step": step, "idle TTFT": idle}


def _pressure(server: Running, n: int) -> Numbers:
    """16 requests of 500 + 260 tokens where there are 4,096 cells for all."""
    shots = [Shot(prompt=words(500, n, i), n_predict=260, body={"cache_prompt": False}) for i in range(16)]
    volley = fire(server, shots, strict=False)
    whole = sum(not hit.error and hit.n_tokens == 260 for hit in volley.hits)
    return {"finished": whole, "asked": len(shots), "seconds": volley.seconds}


def _long_decode(server: Running, n: int) -> Numbers:
    """Decoding alone: 16 prompts are computed first and asked for once more, so that all of them wait in the slots."""
    prompts = [words(1024, n, i) for i in range(16)]
    fire(server, [Shot(prompt=prompt, n_predict=1) for prompt in prompts])
    volley = fire(server, [Shot(prompt=prompt, n_predict=100) for prompt in prompts])
    begin = max(hit.arrivals[0] for hit in volley.hits)
    end = min(hit.end for hit in volley.hits)
    n_tokens = sum(sum(begin < moment <= end for moment in hit.arrivals) for hit in volley.hits)
    return {"decode tokens/s": n_tokens / (end - begin), "computed again": sum(hit.n_prompt - hit.n_cached for hit in volley.hits)}


def _busy(server: Running, n: int) -> Numbers:
    """One stream, then eight, while another process wants a core for itself; and the same without it."""
    found = {}
    for label, others in (("idle", 0), ("busy", 1)):
        with neighbours(others):
            for n_streams, n_predict in ((1, 200), (8, 64)):
                prompts = [words(20, n, label, n_streams, i) for i in range(n_streams)]
                volley = fire(server, [Shot(prompt=prompt, n_predict=n_predict, body={"cache_prompt": False}) for prompt in prompts])
                first, last = min(hit.arrivals[0] for hit in volley.hits), max(hit.end for hit in volley.hits)
                found[f"{label}, {n_streams}"] = (volley.n_tokens - n_streams) / (last - first)
    return found


@contextmanager
def neighbours(n: int) -> Iterator[None]:
    """`n` processes that want a core each."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        time.sleep(0.3 * n)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _turns(server: Running, n: int) -> Numbers:
    """8 turns of 8 conversations, interleaved, two at a time; what is new in a turn is what has to be computed."""
    chats = [f"{words(60, n, i)}." for i in range(8)]
    computed = new = 0
    seen = [0] * 8
    for turn in range(8):
        for first in range(0, 8, 2):
            pair = (first, first + 1)
            volley = fire(server, [Shot(prompt=chats[i], n_predict=16) for i in pair])
            for i, hit in zip(pair, volley.hits, strict=True):
                computed += hit.n_prompt - hit.n_cached
                new += hit.n_prompt - seen[i]
                seen[i] = hit.n_prompt + hit.n_tokens - 1  # the last token has been drawn, not computed
                chats[i] += hit.text + f" {words(12, n, i, turn)}."
    return {"computed": computed, "new": new}


def _staggered(server: Running, n: int) -> Numbers:
    lengths = [20 + (300 - 20) * i // 15 for i in range(16)]
    order = [lengths[(7 * i) % 16] for i in range(16)]

    def rate(name: str, sizes: Sequence[int]) -> float:
        shots = [
            Shot(prompt=words(20, n, name, i), n_predict=size, at=0.2 * i, body={"cache_prompt": False}) for i, size in enumerate(sizes)
        ]
        volley = fire(server, shots)
        return volley.n_tokens / volley.seconds

    staggered = rate("s", order)
    equal = rate("e", [sum(lengths) // 16] * 16)
    return {"staggered tokens/s": staggered, "equal tokens/s": equal, "moves": metric(server, "capsule_slot_moves_total")}


def metric(server: Running, name: str) -> float:
    """One number of /metrics; 0 if the server has none of that name."""
    try:
        with urlopen(Request(f"{server.url}/metrics"), timeout=10) as response:
            lines = response.read().decode().splitlines()
    except OSError:
        return 0.0
    return next((float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name} ")), 0.0)


def tokens_of(server: Running, text: str) -> list[int]:
    """A text's tokens, as the server counts them."""
    request = Request(f"{server.url}/tokenize", json.dumps({"content": text}).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=30) as response:
        return list(json.loads(response.read())["tokens"])


ITL_TARGET = 0.4

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        name="shared", title="16 streams at once, one 1,000-token beginning, 64 new tokens", slots=16, ctx_per_slot=1280, run=_shared,
        targets=(
            Target(name="requests/s", number="requests/s", against=(LLAMA_SERVER, "requests/s"), limit=5),
            Target(name="TTFT p95", number="TTFT p95", against=(LLAMA_SERVER, "TTFT p95"), limit=1 / 8, at_most=True),
            Target(name="requests/s", number="requests/s", against=(LLAMA_SERVER_STREAMS, "requests/s"), limit=5),
            Target(name="TTFT p95", number="TTFT p95", against=(LLAMA_SERVER_STREAMS, "TTFT p95"), limit=1 / 8, at_most=True),
        ),
    ),
    Workload(
        name="independent", title="16 independent streams, 115 + 64 tokens", slots=16, ctx_per_slot=256, run=_independent,
        targets=(
            Target(name="tokens/s", number="tokens/s", against=(LLAMA_SERVER, "tokens/s"), limit=1),
            Target(name="TTFT p50", number="TTFT p50", against=(LLAMA_SERVER, "TTFT p50"), limit=0.8, at_most=True),
            Target(name="tokens/s", number="tokens/s", against=(LLAMA_SERVER_STREAMS, "tokens/s"), limit=1),
            Target(name="TTFT p50", number="TTFT p50", against=(LLAMA_SERVER_STREAMS, "TTFT p50"), limit=0.8, at_most=True),
        ),
    ),
    Workload(
        name="interference", title="4 streams of 200 tokens, then a 6,000-token prompt; --itl-target 400", slots=5, ctx_per_slot=6400,
        run=_interference, ours=("--itl-target", "400"), sides=(OURS, LLAMA_SERVER),
        targets=(
            Target(name="p99 gap", number="p99 gap", against=(LLAMA_SERVER, "p99 gap"), limit=1 / 20, at_most=True),
            Target(name="p99 gap ÷ the target", number="p99 gap", against=("", "target"), limit=2, at_most=True),
            Target(name="long TTFT", number="long TTFT", against=(LLAMA_SERVER, "long TTFT"), limit=1.4, at_most=True),
        ),
    ),
    Workload(
        name="flood", title="24 requests of one key on 16 slots, then a short one of another", slots=16, ctx_per_slot=512, run=_flood,
        both=("--api-key", "heavy,light"), sides=(OURS, LLAMA_SERVER),
        targets=(Target(name="light TTFT", number="light TTFT", against=(LLAMA_SERVER, "light TTFT"), limit=1 / 20, at_most=True),),
    ),
    Workload(
        name="priority", title="an interactive request into a full house of batch ones", slots=16, ctx_per_slot=256, run=_priority,
        sides=(OURS,),
        targets=(
            Target(name="TTFT ÷ (idle + 3 steps)", number="urgent TTFT", against=("", "idle TTFT + 3 steps"), limit=1, at_most=True),
        ),
    ),
    Workload(
        name="pressure", title="3 x more KV cells wanted than there are (4,096)", slots=16, ctx_per_slot=256, run=_pressure,
        sides=(OURS_UNIFIED, OURS, LLAMA_SERVER), shapes={OURS: (5, 768)},
        targets=(
            Target(name="finished, streams", number="finished", against=("", "asked"), limit=1),
            Target(name="finished, unified", number="finished", against=("", "asked"), limit=1, side=OURS_UNIFIED),
        ),
    ),
    Workload(
        name="long-decode", title="16 sequences of 1,024 tokens, decode", slots=16, ctx_per_slot=1280, run=_long_decode,
        targets=(
            Target(name="decode tokens/s", number="decode tokens/s", against=(LLAMA_SERVER, "decode tokens/s"), limit=1.5),
            Target(name="decode tokens/s", number="decode tokens/s", against=(LLAMA_SERVER_STREAMS, "decode tokens/s"), limit=0.97),
        ),
    ),
    Workload(
        name="busy", title="another process takes a core: tokens/s of 1 and of 8 streams, --spec off", slots=8, ctx_per_slot=256, run=_busy,
        ours=("--spec", "off"), governed=True,
        targets=tuple(
            Target(name=name, number=name, against=(side, name), limit=limit)
            for side in (LLAMA_SERVER, LLAMA_SERVER_STREAMS)
            for name, limit in (("busy, 1", 1.5), ("busy, 8", 1.5), ("idle, 1", 0.97), ("idle, 8", 0.97))
        ),
    ),
    Workload(
        name="turns", title="64 turns of 8 conversations interleaved on 4 slots", slots=4, ctx_per_slot=1024, run=_turns,
        sides=(OURS, LLAMA_SERVER),
        targets=(Target(name="computed ÷ new tokens", number="computed", against=("", "new"), limit=1.1, at_most=True),),
    ),
    Workload(
        name="staggered", title="16 streams of 20 to 300 tokens, staggered arrivals", slots=16, ctx_per_slot=512, run=_staggered,
        sides=(OURS, LLAMA_SERVER_STREAMS),
        targets=(
            Target(name="÷ equal lengths", number="staggered tokens/s", against=("", "equal tokens/s"), limit=0.95),
            Target(name="tokens/s", number="staggered tokens/s", against=(LLAMA_SERVER_STREAMS, "staggered tokens/s"), limit=1),
        ),
    ),
)  # fmt: skip
