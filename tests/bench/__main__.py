"""Runs benchmarks one after the other, each in a process of its own: `python -m tests.bench all`, or their names.

Measure on a machine that does nothing else; every table says how many rounds its medians come from, and the load at its end.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from itertools import dropwhile
from pathlib import Path

from tests.bench.common import ROOT

ORDER = (
    "bench_single",
    "bench_streams",
    "bench_workloads",
    "bench_speculation",
    "step_overhead",
    "bench_sampling",
    "bench_threads",
    "bench_tiny",
    "bench_start",
    "simulate",
)


def main() -> int:
    here = Path(__file__).parent
    names = [name for name in ORDER if (here / f"{name}.py").exists()]
    short = {name.removeprefix("bench_"): name for name in names}
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="+", metavar="NAME", help=f"all, or of {', '.join(short)}; after one of them: its own arguments")
    parser.add_argument("--rounds", type=int, help="rounds of each (default: each benchmark's own)")
    # What is not known here belongs to the benchmark that is run alone.
    options, rest = parser.parse_known_args()
    own = list(dropwhile(lambda name: name == "all" or name in short, options.names))
    names = options.names[: len(options.names) - len(own)]
    chosen, rest = list(short) if "all" in names else names, own + rest
    if rest and len(chosen) != 1:
        parser.error(f"{' '.join(rest)}: no such benchmark, or arguments of one only; there are all, {', '.join(short)}")
    failed = []
    for name in chosen:
        rounds = ["--rounds", str(options.rounds)] if options.rounds and name in short and short[name].startswith("bench_") else []
        print(f"\n# {name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"tests.bench.{short[name]}", *rounds, *rest], cwd=ROOT, check=False).returncode:
            failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
