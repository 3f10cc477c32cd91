"""Shared by the benchmarks: their arguments, medians, and tables with ratios and targets. Knows no server.

The benchmarks are programs, not tests: they say what was measured and whether a target was met, and leave the judgement to the reader.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist" / "model.exe"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What both sides of a comparison have in common."""

    model: Path
    threads: int
    """0: the server's own choice."""
    streams: int
    n_prompt: int
    n_predict: int
    rounds: int
    slot_tokens: int | None = None
    """Cells of each slot; None: for prompt and answer, and some to spare, in steps of 256."""

    @property
    def ctx_per_slot(self) -> int:
        return self.slot_tokens or -(-(self.n_prompt + self.n_predict + 32) // 256) * 256


def usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parser(description: str | None, *, streams: int, n_prompt: int, n_predict: int, rounds: int = 3) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    made.add_argument("--model", type=Path, help="GGUF to measure with (default: the catalog's default model)")
    made.add_argument("--threads", type=int, default=usable_cpus(), help="threads of each side")
    made.add_argument("--streams", type=int, default=streams, help="requests at the same time")
    made.add_argument("--prompt", type=int, default=n_prompt, help="tokens of each prompt")
    made.add_argument("--tokens", type=int, default=n_predict, help="tokens of each answer")
    made.add_argument("--rounds", type=int, default=rounds, help="rounds of each side, alternating; the medians are shown")
    return made


def setup_from(options: argparse.Namespace) -> Setup:
    return Setup(
        model=options.model or default_model(),
        threads=options.threads,
        streams=options.streams,
        n_prompt=options.prompt,
        n_predict=options.tokens,
        rounds=options.rounds,
    )


def default_model() -> Path:
    from models.cache import default_cache_dir
    from models.fetch import default_entry, fetch

    return fetch(default_entry().name, default_cache_dir())


def alternate(sides: Sequence[str], rounds: int, measure: Callable[[str, int], None]) -> None:
    """Call `measure(side, round)` for all, in turns; every other round backwards, so that a drift of the machine hits all alike."""
    for n in range(rounds):
        for side in sides if n % 2 == 0 else reversed(sides):
            print(f"  round {n + 1}/{rounds}: {side}", flush=True)
            measure(side, n)


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank: the smallest value that at least `share` (0 to 1) of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Median and, of several values, the range."""
    middle = f"{statistics.median(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def ratio(name: str, ours: float, theirs: float, target: float, *, at_most: bool = False) -> list[str]:
    """A row of `RATIO_HEAD`: `ours` ÷ `theirs` against a target, both medians."""
    value = ours / theirs
    return [name, f"{value:.3f}", *verdict(value, target, at_most=at_most)]


RATIO_HEAD = ("ratio", "measured", "target", "")


def verdict(value: float, target: float, *, at_most: bool, unit: str = "") -> tuple[str, str]:
    met = value <= target if at_most else value >= target
    return f"{'≤' if at_most else '≥'} {target:g}{unit}", "met" if met else "MISSED"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown, padded so that it also reads well in a terminal."""
    lines = [list(head), *[list(row) for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines)


def heading(title: str, setup: Setup) -> str:
    load = f", load average {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    shape = (
        f"{setup.streams} slots of {setup.slot_tokens}"
        if setup.slot_tokens
        else f"{setup.streams} x ({setup.n_prompt} + {setup.n_predict})"
    )
    return (
        f"\n## {title}\n\n{setup.model.name}; {shape} tokens, {setup.threads} threads, "
        f"medians of {setup.rounds}; {platform.system()} {platform.machine()}, {usable_cpus()} CPUs{load}\n"
    )
