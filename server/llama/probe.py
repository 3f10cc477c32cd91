"""Trying backend libraries in a throw-away child: the child's work and the parent that reads what became of it.

The child announces every step before it takes it, one JSON object a line on stdout, so when it dies of SIGILL or hangs the
parent knows in what. A library that kills the child is left out of the next one. Knows nothing about caches or settings.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from server import spawn

log = logging.getLogger(__name__)

TIMEOUT = 20.0
"""Seconds one child may take in all; it needs about 0.15."""


@dataclass
class Findings:
    """`scores`: by library path, as the library rates itself (0 = not for this machine). `verdicts`: "" = works, else why not.
    `timed_out`: those whose verdict may only be a busy machine's."""

    scores: dict[str, int] = field(default_factory=dict)
    verdicts: dict[str, str] = field(default_factory=dict)
    timed_out: set[str] = field(default_factory=set)


# ---- the parent's side ---------------------------------------------------------------------------------------------


def survey(directory: Path, paths: Sequence[Path], *, find_best: bool, program: Sequence[str] | None = None) -> Findings:
    """Rate all `paths` and try them: in descending score until one works (`find_best`), or every one of them.

    `directory` holds libggml. `program` replaces the command line that starts this program (tests).
    """
    findings = Findings()
    command = [*(program if program is not None else spawn.program()), "probe", str(directory), "best" if find_best else "each"]
    for _ in range(2 * len(paths) + 1):  # each child settles at least one library
        pending = [str(p) for p in paths if str(p) not in findings.verdicts and findings.scores.get(str(p)) != 0]
        if not pending or (find_best and "" in findings.verdicts.values()):
            break
        ratings = [f"{path}={findings.scores[path]}" if path in findings.scores else path for path in pending]
        if not _run_child([*command, *ratings], findings):
            break
    return findings


def _run_child(command: Sequence[str], findings: Findings) -> bool:
    """Run one child to its end; False when nothing was learnt from it."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=spawn.child_environment(),
        **spawn.child_options(),
    )
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        child.kill()

    timer = threading.Timer(TIMEOUT, expire)
    timer.start()
    try:
        output, complaints = child.communicate()
    finally:
        timer.cancel()
    known = len(findings.scores) + len(findings.verdicts)
    current, step = "", ""
    for line in output.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # a library may print what it likes
        if not isinstance(event, dict):
            continue
        if "step" in event:
            current, step = str(event.get("library", "")), str(event["step"])
        if "score" in event:
            findings.scores[str(event["library"])] = int(event["score"])
        if "verdict" in event:
            findings.verdicts[str(event["library"])] = str(event["verdict"])
    if child.returncode and current and current not in findings.verdicts:
        how = f"did not finish within {TIMEOUT:g} s" if expired.is_set() else f"died of {_cause(child.returncode)}"
        findings.verdicts[current] = f"{how} while {step}"
        if expired.is_set():
            findings.timed_out.add(current)
        log.debug("probe child %s; its last words: %s", how, complaints[-500:].decode("utf-8", "replace"))
    elif child.returncode and not current:
        log.warning("the probe child failed to start (%s): %s", _cause(child.returncode), complaints[-500:].decode("utf-8", "replace"))
    return len(findings.scores) + len(findings.verdicts) > known


def _cause(returncode: int) -> str:
    if returncode < 0:
        try:
            return signal.Signals(-returncode).name
        except ValueError:
            return f"signal {-returncode}"
    windows = {0xC000001D: "an illegal instruction", 0xC0000005: "an access violation", 0xC0000409: "an abort"}
    return windows.get(returncode & 0xFFFFFFFF, f"exit code {returncode}")


# ---- the child's side ----------------------------------------------------------------------------------------------


def child_main(arguments: Sequence[str]) -> int:
    """`arguments`: directory, "best" or "each", then paths, each optionally with "=score"."""
    from server.llama.library import open_ggml

    if sys.platform != "win32":
        signal.alarm(int(TIMEOUT) + 5)  # the parent may be gone
    directory, mode, *ratings = arguments
    symbols = open_ggml(Path(directory))
    scores: dict[str, int] = {}
    for rating in ratings:
        path, has_score, score = rating.rpartition("=")
        if has_score and score.isdigit():
            scores[path] = int(score)
            continue
        _say(library=rating, step="being loaded")
        found = _rate(rating)
        if isinstance(found, str):
            _say(library=rating, verdict=found)
        else:
            scores[rating] = found
            _say(library=rating, score=found)
    for path in sorted(scores, key=lambda path: (-scores[path], path)):
        if scores[path] == 0:
            continue
        verdict = _try(symbols, path)
        _say(library=path, verdict=verdict)
        if mode == "best" and not verdict:
            break
    return 0


def _say(**event: Any) -> None:
    os.write(1, json.dumps(event).encode() + b"\n")


def _rate(path: str) -> int | str:
    """The library's own score, or why there is none. One without a score function rates itself 1."""
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        return f"cannot be loaded ({error})"
    try:
        return max(0, int(library.ggml_backend_score()))
    except AttributeError:
        return 1


def _try(symbols: Any, path: str) -> str:
    from server.errors import OperatorError
    from server.llama.backends import load
    from server.llama.products import P, WrongResult, verify

    count = symbols.function("ggml_backend_reg_dev_count", ctypes.c_size_t, P)
    get = symbols.function("ggml_backend_reg_dev_get", P, P, ctypes.c_size_t)
    _say(library=path, step="being loaded")
    try:
        registry = load(Path(path), symbols)
        if not count(registry):
            return "no device answers"
        for index in range(count(registry)):
            verify(symbols, get(registry, index), lambda step: _say(library=path, step=step))
    except OperatorError as error:
        return error.message
    except WrongResult as error:
        return str(error)
    return ""
