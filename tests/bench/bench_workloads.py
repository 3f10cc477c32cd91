"""Mixed and hostile loads against llama-server: shared prompts, long prompts beside streams, floods, priorities, too little memory.

Usage: python -m tests.bench.bench_workloads [NAME ...] [--rounds 3] [--plot FILE.svg] [--ours-only]
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import median

from tests.bench.common import RATIO_HEAD, Setup, alternate, default_model, heading, spread, table, usable_cpus, verdict
from tests.bench.load import Shot, fire, words
from tests.bench.plot import Bar, svg
from tests.bench.servers import LLAMA_SERVER, LLAMA_SERVER_STREAMS, ours, serving
from tests.bench.workloads import OURS, OURS_UNIFIED, WORKLOADS, Numbers, Target, Workload

Found = dict[str, list[Numbers]]


def main() -> int:
    names = [workload.name for workload in WORKLOADS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which (default: all): {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each side, alternating; the medians are compared")
    parser.add_argument("--model", type=Path, help="GGUF to measure with (default: the catalog's default model)")
    parser.add_argument("--threads", type=int, default=usable_cpus(), help="threads of each side")
    parser.add_argument("--plot", type=Path, help="write the ratios as a picture (SVG)")
    parser.add_argument("--ours-only", action="store_true", help="leave the other servers out")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"there is no workload called {', '.join(sorted(unknown))}")
    bars: list[Bar] = []
    for workload in WORKLOADS:
        if not options.names or workload.name in options.names:
            bars += _one(workload, options)
    if options.plot and bars:
        options.plot.write_text(svg("Capsule against llama-server of the same source, higher is better", bars), encoding="utf-8")
        print(f"\n{options.plot}")
    return 0


def _one(workload: Workload, options: argparse.Namespace) -> list[Bar]:
    setup = _setup(workload, options, OURS)
    print(f"\n### {workload.name}: {workload.title}", flush=True)
    found: Found = defaultdict(list)
    sides = [side for side in workload.sides if not options.ours_only or side in (OURS, OURS_UNIFIED)]

    def measure(side: str, n: int) -> None:
        setup = _setup(workload, options, side)
        if workload.governed and side in (OURS, OURS_UNIFIED):
            setup = replace(setup, threads=0)
        with serving(_program(side), setup, _flags(workload, side)) as server:
            fire(server, [Shot(prompt=words(8, "warm"), n_predict=4, key="heavy" if workload.both else "")])
            found[side].append(workload.run(server, n))

    alternate(sides, options.rounds, measure)
    print(heading(workload.title, setup))
    columns = list(found[sides[0]][0])
    print(table(("server", *columns), [[side, *(spread([row[c] for row in found[side]], 2) for c in columns)] for side in sides]))
    rows, bars = [], []
    for target in workload.targets:
        other = target.against[0] or target.side
        if other not in found or target.side not in found:
            continue
        value = _middle(found[target.side], target.number) / max(1e-9, _middle(found[other], target.against[1]))
        name = target.name if other == target.side else f"{target.name} ÷ {other}'s"
        rows.append([name, f"{value:.3f}", *verdict(value, target.limit, at_most=target.at_most)])
        if other != target.side:
            bars.append(_bar(workload, target, other, value))
    print()
    print(table(RATIO_HEAD, rows), flush=True)
    return bars


def _bar(workload: Workload, target: Target, other: str, value: float) -> Bar:
    label = f"{workload.name}: {target.name}" + (" (streams)" if other == LLAMA_SERVER_STREAMS else "")
    value = max(value, 1e-6)
    return Bar(label, 1 / value, 1 / target.limit) if target.at_most else Bar(label, value, target.limit)


def _middle(rows: list[Numbers], number: str) -> float:
    return median(row[number] for row in rows)


def _program(side: str) -> str:
    return side if side in (LLAMA_SERVER, LLAMA_SERVER_STREAMS) else ours()


def _flags(workload: Workload, side: str) -> list[str]:
    if side in (LLAMA_SERVER, LLAMA_SERVER_STREAMS):
        return [*workload.both]
    pool = ["--kv", "unified", "--kv-reserve", "0"] if side == OURS_UNIFIED else ["--kv", "streams"]
    return [*workload.both, *workload.ours, *pool]


def _setup(workload: Workload, options: argparse.Namespace, side: str) -> Setup:
    slots, cells = workload.shapes.get(side, (workload.slots, workload.ctx_per_slot))
    return Setup(
        model=options.model or default_model(), threads=options.threads, streams=slots, n_prompt=0, n_predict=0, rounds=options.rounds,
        slot_tokens=cells,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
