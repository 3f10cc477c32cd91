"""How threads should wait for each other, and how many there should be, alone and beside a busy neighbour: decoded tokens per second.

Usage: python -m tests.bench.bench_threads [--rounds 5] [--seconds 1.5] [--streams 1 8] [--spins 0 300 default] [--busy 0 1] [--pin]

A process for each waiting policy (libgomp reads it when it is loaded), all idle but the one that is measured; no server, no sampling.
"default" with all threads is how llama.cpp's own programs run. "governed" starts each burst where the last one ended. A burst during
which processes that do not belong here took more than 5 % of a core is measured again, so that it also works on a machine that is shared.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from statistics import median

import msgspec
import psutil

from tests.bench.common import RATIO_HEAD, ROOT, alternate, default_model, ratio, spread, table, usable_cpus

GOVERNED = 0
"""Stands for a thread count."""
OURS, GNU_DEFAULT = "300", "300000"
IDLE_TARGET, BUSY_TARGET, SPIN_TARGET = 0.97, 1.5, 0.97
FOREIGN_SHARE, MOST_TRIES = 0.05, 100
_START = 64
_CELLS = 512


class Burst(msgspec.Struct):
    """What a child shall measure."""

    n_threads: int
    n_streams: int
    seconds: float


class Result(msgspec.Struct):
    """`n_threads` as they were at the end, `mean_threads` over all steps."""

    n_tokens: int
    seconds: float
    n_threads: int
    mean_threads: float


# ---- the child: one waiting policy ----


def child(model: Path, n_streams: int, n_threads: int) -> None:
    """Answer bursts from standard input, one a line, until it ends."""
    from server.engine.governor import ThreadGovernor
    from server.llama.model import load_model
    from tests import native

    native.loaded()
    loaded = load_model(str(model))
    governors: dict[int, ThreadGovernor] = defaultdict(lambda: ThreadGovernor(n_threads))
    with native.context(loaded, n_ctx=n_streams * _CELLS, n_slots=n_streams, n_threads=n_threads) as decoder:
        for slot in range(n_streams):
            decoder.decode(native.rows(slot, [1000 + slot + i for i in range(_START)]))
        print("ready", flush=True)
        for line in sys.stdin:
            burst = msgspec.json.decode(line, type=Burst)
            governor = None if burst.n_threads else governors[burst.n_streams]
            decoder.n_threads = governor.n_threads if governor else burst.n_threads
            ended = time.perf_counter() + burst.seconds
            tokens = steps = threads = 0
            began = now = time.perf_counter()
            while now < ended:
                position = _START + steps % (_CELLS - _START)
                if position == _START:
                    for slot in range(n_streams):
                        decoder.truncate(slot, _START)
                decoder.decode([row for slot in range(burst.n_streams) for row in native.rows(slot, [2000 + slot], position)])
                decoder.logits(burst.n_streams - 1)
                step, now = now, time.perf_counter()
                threads += decoder.n_threads
                if governor:
                    decoder.n_threads = governor.observe(burst.n_streams, 0, now - step)
                steps, tokens = steps + 1, tokens + burst.n_streams
            result = Result(tokens, now - began, decoder.n_threads, threads / steps)
            print(msgspec.json.encode(result).decode(), flush=True)


class Child:
    """A process with its own `GOMP_SPINCOUNT`; "default" = what libgomp does by itself."""

    def __init__(self, spins: str, model: Path, n_streams: int, n_threads: int) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}

        environment["GOMP_SPINCOUNT"] = GNU_DEFAULT if spins == "default" else spins
        argv = [sys.executable, "-m", "tests.bench.bench_threads", "--child", str(model), str(n_streams), str(n_threads)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
        self._read()

    @property
    def pid(self) -> int:
        return self._process.pid

    def measure(self, burst: Burst) -> Result:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(burst).decode() + "\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._read(), type=Result)

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the measuring process ended with code {self._process.wait()}")
        return line

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


# ---- the neighbour ----


@contextmanager
def neighbours(n: int, *, pinned: bool) -> Iterator[list[int]]:
    """Ids of `n` processes that want a core each; `pinned` to the first cores, or wherever the system puts them."""
    processes = []
    for cpu in range(n):
        processes.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
        if pinned and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(processes[-1].pid, {cpu})
    try:
        if processes:
            time.sleep(0.3)
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def undisturbed(child: Child, burst: Burst, others: list[int]) -> Result:
    """A burst during which nobody but the child and the `others` had much of a processor; after many tries, the last one."""
    ours = [psutil.Process(pid) for pid in [child.pid, *others]]
    for _ in range(MOST_TRIES):
        _wait_for_quiet(ours)
        before = _foreign_seconds(ours)
        result = child.measure(burst)
        if _foreign_seconds(ours) - before <= FOREIGN_SHARE * result.seconds:
            break
    return result


def _wait_for_quiet(ours: list[psutil.Process]) -> None:
    for _ in range(MOST_TRIES):
        before = _foreign_seconds(ours)
        time.sleep(0.5)
        if _foreign_seconds(ours) - before <= FOREIGN_SHARE:
            return


def _foreign_seconds(ours: list[psutil.Process]) -> float:
    """Processor time since the machine started that was not ours."""
    machine = psutil.cpu_times()
    own = [process.cpu_times() for process in ours]
    busy: float = sum(machine) - machine.idle - getattr(machine, "iowait", 0.0) - sum(t.user + t.system for t in own)
    return busy


# ---- tables ----

Found = dict[tuple[str, int, int, int], list[float]]
"""Tokens/s by (spins, threads, streams, neighbours)."""


def report(found: Found, threads: dict[tuple[str, int, int, int], list[float]], options: argparse.Namespace, most: int) -> None:
    head = ["spins", "threads", *(f"{n} stream{'s' * (n > 1)}, {_beside(busy)}" for n in options.streams for busy in options.busy)]
    counts = [*range(most, 0, -1), GOVERNED]
    rows = []
    for spins in options.spins:
        for count in counts:
            keys = [(spins, count, n, busy) for n in options.streams for busy in options.busy]
            cells = [spread(found[key]) + (f" [{median(threads[key]):.2f}]" if count == GOVERNED else "") for key in keys]
            rows.append([spins, str(count) if count else "governed", *cells])
    print(table(head, rows), "\n")
    print(table(RATIO_HEAD, list(_ratios(found, options, most))))


def _beside(busy: int) -> str:
    return f"{busy} busy" if busy else "idle"


def _ratios(found: Found, options: argparse.Namespace, most: int) -> Iterator[list[str]]:
    if OURS not in options.spins:
        return
    for n in options.streams:
        for busy in options.busy:
            ours = median(found[OURS, GOVERNED, n, busy])
            best = max(median(found[OURS, count, n, busy]) for count in range(1, most + 1))
            yield ratio(f"{n} streams, {_beside(busy)}: governed ÷ best fixed count", ours, best, IDLE_TARGET)
            if "default" in options.spins:
                theirs = median(found["default", most, n, busy])
                yield ratio(
                    f"{n} streams, {_beside(busy)}: governed ÷ libgomp's default", ours, theirs, BUSY_TARGET if busy else IDLE_TARGET
                )
                all_threads = median(found[OURS, most, n, busy])
                yield ratio(f"{n} streams, {_beside(busy)}: {OURS} spins ÷ default, all threads", all_threads, theirs, SPIN_TARGET)


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        child(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
        return 0
    made = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    made.add_argument("--model", type=Path, help="GGUF to measure with (default: the catalog's default model)")
    made.add_argument("--threads", type=int, default=usable_cpus(), help="most threads")
    made.add_argument("--rounds", type=int, default=5, help="bursts of each setting, alternating; the medians are shown")
    made.add_argument("--seconds", type=float, default=1.5, help="length of a burst")
    made.add_argument("--settle", type=float, default=8.0, help="seconds that the governor gets when neighbours come or go")
    made.add_argument("--streams", type=int, nargs="+", default=[1, 8, 16])
    made.add_argument("--spins", nargs="+", default=["0", OURS, "default"], help="values of GOMP_SPINCOUNT")
    made.add_argument("--busy", type=int, nargs="+", default=[0, 1], help="busy neighbours")
    made.add_argument("--pin", action="store_true", help="each neighbour stays on one core")
    options = made.parse_args()
    model = options.model or default_model()
    found: Found = defaultdict(list)
    threads: dict[tuple[str, int, int, int], list[float]] = defaultdict(list)
    with ExitStack() as stack:
        children = {}
        for spins in options.spins:
            children[spins] = Child(spins, model, max(options.streams), options.threads)
            stack.callback(children[spins].close)

        def measure(side: str, n: int) -> None:
            spins, count, streams, busy = side.split()
            key = (spins, int(count), int(streams), int(busy))
            result = undisturbed(children[spins], Burst(key[1], key[2], options.seconds), pids)
            found[key].append(result.n_tokens / result.seconds)
            threads[key].append(result.mean_threads)
            print(f"    {found[key][-1]:.1f} tokens/s with {result.mean_threads:.2f} threads", flush=True)

        for busy in options.busy:
            with neighbours(busy, pinned=options.pin) as pids:
                for spins, streams in product(options.spins, options.streams):
                    undisturbed(children[spins], Burst(GOVERNED, streams, options.settle), pids)
                counts = [*range(options.threads, 0, -1), GOVERNED]
                sides = [f"{s} {c} {n} {busy}" for n in options.streams for s in options.spins for c in counts]
                alternate(sides, options.rounds, measure)
    load = f", load average {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    print(f"\n## Threads and their waiting\n\n{model.name}; medians of {options.rounds} bursts of {options.seconds:g} s, tokens/s{load}\n")
    report(found, threads, options, options.threads)
    return 0


if __name__ == "__main__":
    sys.exit(main())
