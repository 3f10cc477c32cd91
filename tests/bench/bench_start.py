"""From exec to a healthy answer with the page cache warm; the size of the runtime; and that the runner maps the weights, not copies them.

Needs dist/model.exe. Usage: python -m tests.bench.bench_start [--rounds 5]
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from server.bundle import Bundle
from tests.bench.common import DIST, alternate, heading, parser, setup_from, spread, table, verdict
from tests.bench.servers import LLAMA_SERVER_STREAMS, Running, free_port, serving, start

OURS = "dist/model.exe, as a user starts it"
START_TARGET_S, RUNTIME_TARGET_MB = 2.0, 60.0
MB = 1e6


@dataclass(frozen=True)
class Mapping:
    """One range of a process's memory that comes from a file; sizes in bytes."""

    path: str
    offset: int
    size: int
    rss: int
    anonymous: int
    text: str


@contextmanager
def as_a_user() -> Iterator[Running]:
    port = free_port()
    with start(OURS, [str(DIST), "--no-browser", "--port", str(port)], f"http://127.0.0.1:{port}", "/health") as running:
        yield running


def runner_of(pid: int) -> int:
    """The process below `pid` that holds the model: the one that was started with our hidden command."""
    for process in psutil.Process(pid).children(recursive=True):
        if "runner" in process.cmdline()[1:3]:
            return int(process.pid)
    raise SystemExit("no runner process was found")


def status_bytes(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/{pid}/status has no {name}")


def mappings(pid: int) -> list[Mapping]:
    """All of /proc/PID/smaps that is backed by a file."""
    found: list[Mapping] = []
    blocks: list[list[str]] = []
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if line.split(" ", 1)[0].endswith(":"):
            blocks[-1].append(line)
        else:
            blocks.append([line])
    for head, *rest in blocks:
        fields = head.split(maxsplit=5)
        if len(fields) < 6 or not fields[5].startswith("/"):
            continue
        numbers = {name: int(rest_.split()[0]) * 1024 for name, rest_ in (line.split(":", 1) for line in rest) if rest_.split()[-1] == "kB"}
        text = "\n".join([head, *(line for line in rest if line.split(":")[0] in _SHOWN)])
        found.append(Mapping(fields[5], int(fields[2], 16), numbers["Size"], numbers["Rss"], numbers["Anonymous"], text))
    return found


_SHOWN = ("Size", "Rss", "Pss", "Shared_Clean", "Private_Clean", "Private_Dirty", "Anonymous")


def main() -> int:
    options = parser(__doc__, streams=4, n_prompt=64, n_predict=64, rounds=5).parse_args()
    setup = setup_from(options)
    bundle = Bundle.open(DIST) if DIST.exists() else None
    if bundle is None:
        raise SystemExit("dist/model.exe is missing: run `make build` first")
    weights = next(payload for payload in bundle.payloads if payload.kind == "model")
    runtime_mb = (DIST.stat().st_size - sum(payload.size for payload in bundle.payloads)) / MB
    seconds: dict[str, list[float]] = defaultdict(list)
    memory: list[tuple[int, int]] = []
    shown = ""
    mapped = copied = 0

    def measure(side: str, n: int) -> None:
        nonlocal shown, mapped, copied
        if side != OURS:
            with serving(side, setup) as server:
                seconds[side].append(server.seconds)
            return
        with as_a_user() as server:
            seconds[side].append(server.seconds)
            runner = runner_of(server.pid)
            memory.append((status_bytes(runner, "RssAnon"), status_bytes(runner, "RssFile")))
            parts = [m for m in mappings(runner) if m.path == str(DIST) and m.offset + m.size > weights.offset]
            mapped, copied = sum(m.rss for m in parts), sum(m.anonymous for m in parts)
            shown = "\n".join(m.text for m in parts)

    sides = [OURS, LLAMA_SERVER_STREAMS]
    for side in sides:  # fills the page cache; not counted
        measure(side, -1)
    seconds.clear()
    memory.clear()
    alternate(sides, setup.rounds, measure)

    print(heading("Start", setup))
    print(table(("server", "exec to healthy, s"), [[side, spread(seconds[side], 2)] for side in sides]))
    print()
    start_s, anon, file = median(seconds[OURS]), median(a for a, _ in memory), median(f for _, f in memory)
    rows = [
        ["exec to /health, s", f"{start_s:.2f}", *verdict(start_s, START_TARGET_S, at_most=True)],
        ["runtime part of the file, MB", f"{runtime_mb:.1f}", *verdict(runtime_mb, RUNTIME_TARGET_MB, at_most=True)],
        ["weights resident as a mapping of the file, MB", f"{mapped / MB:.1f}", f"of {weights.size / MB:.1f}", ""],
        ["of that mapping private copies, MB", f"{copied / MB:.1f}", *verdict(copied / MB, 0, at_most=True)],
        ["runner RssFile, MB", f"{file / MB:.1f}", "", ""],
        ["runner RssAnon (cache, buffers, Python), MB", f"{anon / MB:.1f}", "", ""],
    ]
    print(table(("measure", "median", "target", ""), rows))
    print(f"\nThe mapping of the weights in the runner's smaps:\n\n{shown or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
