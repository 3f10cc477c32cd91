"""The scheduler without a model: what a policy does with a load, in seconds of a simulated machine, and what it costs in our own.

Usage: python -m tests.bench simulate [--workload NAME | --trace FILE] [--policy NAME] [--requests N] [--rate R] [--slots N] [--pool CELLS]
`tests/bench/traces.py` describes the format of traces.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence as Seq
from pathlib import Path

from server.engine.policy import POLICIES
from tests.bench.common import percentile, table
from tests.bench.simulation import CostModel, Outcome, Simulation
from tests.bench.traces import WORKLOADS, Arrival, read_trace, workload

SIZES = (1, 10, 100, 1_000, 10_000)
GROWTH_STEPS = 2_000
"""Steps from which the cost of one is taken."""


def main(arguments: Seq[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    arrivals = read_trace(options.trace) if options.trace else workload(options.workload, options.requests, options.rate, options.seed)
    name = options.trace.name if options.trace else options.workload
    policies = options.policy or ["fair"]
    step, row, chunk, prompt = options.cost
    for policy in policies:
        outcome = Simulation(
            arrivals,
            policy=policy,
            n_slots=options.slots,
            n_ctx_slot=options.ctx,
            n_ctx_pool=options.pool,
            itl_target=options.itl_target / 1000,
            cost=CostModel(step=step, row=row, chunk=chunk, prompt=prompt),
        ).run()
        print(f"\n## {name}: {len(arrivals)} requests, {options.slots} slots, {policy}\n")
        print(_summary(outcome))
        print()
        print(_by_key(outcome))
    if not options.no_growth:
        print(f"\n## What the scheduler costs as requests become more, {policies[0]}\n")
        print(growth(policies[0], options.slots))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench simulate", description=(__doc__ or "").split("\n")[0])
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--trace", type=Path, help="JSON lines, one request each")
    source.add_argument("--workload", choices=sorted(WORKLOADS), default="chat", help="a synthetic load (default: chat)")
    parser.add_argument("--policy", choices=sorted(POLICIES), action="append", help="several times: one after the other (default: fair)")
    parser.add_argument("--requests", type=int, default=1000, help="of a synthetic load")
    parser.add_argument("--rate", type=float, default=0.8, help="requests a second of a synthetic load")
    parser.add_argument("--seed", type=int, default=1, help="of a synthetic load")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--ctx", type=int, default=4096, help="cells of a slot")
    parser.add_argument("--pool", type=int, help="cells that all slots share, instead of cells of their own")
    parser.add_argument("--itl-target", type=float, default=150.0, help="milliseconds")
    parser.add_argument("--no-growth", action="store_true", help="leave out the table of costs from 1 to 10,000 requests")
    model = CostModel()
    parser.add_argument(
        "--cost", type=float, nargs=4, metavar=("STEP", "ROW", "CHUNK", "PROMPT"),
        default=(model.step, model.row, model.chunk, model.prompt), help="seconds: a step, a row of a stream, a chunk, a prompt token",
    )  # fmt: skip
    return parser


def _summary(outcome: Outcome) -> str:
    seconds, steps = max(outcome.seconds, 1e-9), max(outcome.n_steps, 1)
    pace = f"{60 * steps / max(outcome.cpu, 1e-9) / 1e6:.2f} million steps a minute"
    ttft = [value for values in outcome.ttft.values() for value in values] or [0.0]
    rows = [
        ("finished, refused, expired", f"{outcome.n_finished}, {outcome.n_refused}, {outcome.n_expired}"),
        ("simulated time", f"{seconds:.1f} s, {outcome.n_steps} steps"),
        ("generated", f"{outcome.n_output / seconds:.1f} tokens/s"),
        ("prompt tokens computed; cached; computed again", f"{outcome.n_prompt}; {outcome.n_cached}; {outcome.n_recomputed}"),
        ("TTFT p50, p95, worst", f"{percentile(ttft, 0.5):.2f}, {percentile(ttft, 0.95):.2f}, {max(ttft):.2f} s"),
        ("gap p50, p99, longest", f"{outcome.gap(0.5):.3f}, {outcome.gap(0.99):.3f}, {outcome.gap(1.0):.3f} s"),
        ("preemptions", str(outcome.n_preemptions)),
        ("CPU time of the scheduler", f"{outcome.cpu / steps * 1e6:.0f} µs/step of {outcome.n_rows / steps:.1f} rows: {pace}"),
    ]
    return table(("what", "measured"), rows)


def _by_key(outcome: Outcome) -> str:
    """The 20 keys that said most."""
    served = {share.key: share.served for share in outcome.shares}
    rows = []
    names = sorted(outcome.ttft, key=lambda name: (-outcome.output_of[name[0]], name))
    for key, priority in names[:20]:
        ttft = outcome.ttft[key, priority]
        service = f"{served[key]:.0f}" if key in served else ""
        figures = [f"{percentile(ttft, 0.5):.2f}", f"{percentile(ttft, 0.95):.2f}", str(outcome.output_of[key]), service]
        rows.append([key or "(none)", priority, str(len(ttft)), *figures])
    return table(("key", "class", "finished", "TTFT p50, s", "TTFT p95, s", "tokens of the key", "served (weighted)"), rows)


def growth(policy: str, n_slots: int, sizes: Seq[int] = SIZES, n_steps: int = GROWTH_STEPS) -> str:
    """CPU time of a submit and of a step while so many requests are there, most of them waiting."""
    rows = []
    for size in sizes:
        arrivals = [
            Arrival(at=0.0, n_prompt=64, n_output=64, key=f"key {i % 50}", priority=("normal", "batch")[i % 2]) for i in range(size)
        ]
        outcome = Simulation(arrivals, policy=policy, n_slots=n_slots).run(n_steps)
        step, submit = outcome.cpu / outcome.n_steps, outcome.submit_cpu / size
        figures = [f"{submit * 1e6:.1f}", f"{outcome.n_rows / outcome.n_steps:.1f}", f"{step * 1e6:.0f}", f"{1 / step:.0f}"]
        rows.append([f"{size:,}", *figures])
    return table(("requests", "µs a submit", "rows a step", "µs a step", "steps/s"), rows)


if __name__ == "__main__":
    sys.exit(main())
