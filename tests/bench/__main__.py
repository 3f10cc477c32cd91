"""Runs benchmarks one after the other, each in a process of its own: `python -m tests.bench all`, or their names.

Measure on a machine that does nothing else; every table says how many rounds its medians come from, and the load at its end.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from tests.bench.common import ROOT

ORDER = (
    "bench_single",
    "bench_streams",
    "bench_workloads",
    "bench_speculation",
    "step_overhead",
    "bench_sampling",
    "bench_tiny",
    "bench_start",
    "simulate",
)


def main() -> int:
    here = Path(__file__).parent
    names = [name for name in ORDER if (here / f"{name}.py").exists()]
    short = {name.removeprefix("bench_"): name for name in names}
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="+", choices=["all", *short], help="which")
    parser.add_argument("--rounds", type=int, help="rounds of each (default: each benchmark's own)")
    # What is not known here belongs to the benchmark that is run alone.
    options, rest = parser.parse_known_args()
    chosen = list(short) if "all" in options.names else options.names
    if rest and len(chosen) > 1:
        parser.error(f"{' '.join(rest)}: give further flags to one benchmark only")
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
