"""A loaded native library and real models for tests: the CPU library is chosen and loaded once per test process."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from server.engine.ports import Row
from server.llama import backends
from server.llama.context import Context
from server.llama.cpu import CpuChoice, choose_cpu
from server.llama.library import native
from server.llama.model import Model

ROOT = Path(__file__).resolve().parent.parent
_CACHE = "CAPSULE_TESTS_CPU_CACHE"
NEAR = 0.5
"""Largest distance of a greedy token's logit from that step's maximum when the text is replayed alone."""
TALE = "Once upon a time there was a village by the sea. The people of the village built boats, sang songs and told stories. "


@cache
def loaded() -> Any:
    """The bindings, with a working CPU library loaded."""
    path = cpu_choice().path
    if path is not None:
        backends.load(path)
    return native()


@cache
def cpu_choice() -> CpuChoice:
    """What this machine's CPU library turns out to be; found afresh for every run, shared with the processes it starts."""
    if _CACHE not in os.environ:
        directory = tempfile.mkdtemp(prefix="capsule-tests-")
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        os.environ[_CACHE] = directory
    return choose_cpu(os.environ[_CACHE], None)


@contextmanager
def context(model: Model, **options: Any) -> Iterator[Context]:
    """A small context that is freed at the end: 2 slots of 256 cells unless told otherwise."""
    made = Context(model, **({"n_ctx": 512, "n_slots": 2, "n_threads": 1} | options))
    try:
        yield made
    finally:
        made.close()


def rows(slot: int, tokens: Sequence[int], start: int = 0, *, last: bool = True) -> list[Row]:
    """A batch of one sequence; `last`: the last row wants logits."""
    end = len(tokens) - 1
    return [Row(slot, start + i, token, last and i == end) for i, token in enumerate(tokens)]


def logits(decoder: Context, row: int) -> list[float]:
    """A copy of one row of logits."""
    values: list[float] = decoder.logits(row)[: decoder.model.vocab.n_vocab]
    return values


def greedy_distances(model: Model, prompt: list[int], tokens: list[int]) -> list[float]:
    """Replay alone, teacher-forced: how far each token's logit lies below its step's maximum."""
    with context(model, n_ctx=len(prompt) + len(tokens), n_slots=1) as decoder:
        last = len(prompt) - 1
        decoder.decode([Row(0, i, token, i >= last) for i, token in enumerate((prompt + tokens)[: last + len(tokens)])])
        steps = [logits(decoder, last + i) for i in range(len(tokens))]
    return [max(values) - values[token] for values, token in zip(steps, tokens, strict=True)]


def run_python(code: str, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter with the project importable; for what kills or pollutes a process."""
    with tempfile.TemporaryDirectory() as directory:
        script = Path(directory) / "script.py"
        script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n" + code)
        return subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, timeout=timeout)
