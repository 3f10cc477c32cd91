"""The choice of the CPU library: best score first, the first that proves itself in a probe child; remembered per CPU and build.

A CPU may advertise what it cannot do (AMX without tile support in the hypervisor is one), so CPUID alone decides nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.errors import OperatorError
from server.llama import probe
from server.llama.backends import BackendLibrary, libraries, no_such_variant
from server.llama.library import ggml, library_directory
from server.llama.probe import Findings

log = logging.getLogger(__name__)

_FORMAT = 1
_CPUINFO_KEYS = ("vendor_id", "cpu family", "model", "model name", "stepping", "microcode", "flags",
                 "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision", "Features", "isa", "uarch")  # fmt: skip


@dataclass(frozen=True, slots=True)
class CpuChoice:
    """`path` None = compiled into libllama. `passed_over`: (name, why) of better-scored libraries that failed."""

    name: str
    path: Path | None
    reason: str
    passed_over: tuple[tuple[str, str], ...] = ()


def choose_cpu(
    cache_dir: str | os.PathLike[str] | None,
    requested: str | None,
    *,
    directory: Path | None = None,
    program: Sequence[str] | None = None,
) -> CpuChoice:
    """Choose (not load) the CPU library. `cache_dir` None = remember nothing.

    Raises:
        OperatorError: no such variant, or none (or the requested one) works.
    """
    directory = directory or library_directory()
    candidates = {library.name: library for library in libraries(directory) if library.is_cpu}
    if not candidates:
        return _built_in()
    if requested is not None and requested not in candidates:
        raise no_such_variant(requested, list(candidates))
    cache = _cache_file(cache_dir, candidates.values()) if cache_dir is not None else None
    findings = _read(cache, candidates)
    choice = _decide(findings, candidates, requested)
    remembered = choice is not None
    if choice is None:
        wanted = [candidates[requested]] if requested else list(candidates.values())
        fresh = probe.survey(directory, [library.path for library in wanted], find_best=True, program=program)
        findings = _merge(findings, fresh)
        if cache is not None:
            _write(cache, findings, candidates)
        choice = _decide(findings, candidates, requested)
    if choice is None:
        raise _no_choice(findings, candidates, requested)
    passed = "".join(f"; passed over {name}: {why}" for name, why in choice.passed_over)
    log.info("CPU library %s (%s%s)%s", choice.name, choice.reason, ", remembered" if remembered else "", passed)
    return choice


def _decide(findings: Findings, candidates: dict[str, BackendLibrary], requested: str | None) -> CpuChoice | None:
    """The choice as far as the findings go; None = something must be tried first."""
    passed_over: list[tuple[str, str]] = []
    if requested is not None:
        path = str(candidates[requested].path)
        if findings.verdicts.get(path) != "":
            return None
        return CpuChoice(requested, candidates[requested].path, "asked for with --cpu-variant; passed its probe")
    scores = {name: findings.scores.get(str(library.path)) for name, library in candidates.items()}
    for name, library in candidates.items():
        if scores[name] is None:
            if not findings.verdicts.get(str(library.path)):
                return None
            passed_over.append((name, findings.verdicts[str(library.path)]))  # it could not even be rated
    rated = sorted(((score, name) for name, score in scores.items() if score), key=lambda pair: (-pair[0], pair[1]))
    for score, name in rated:
        verdict = findings.verdicts.get(str(candidates[name].path))
        if verdict is None:
            return None
        if verdict == "":
            return CpuChoice(name, candidates[name].path, f"best score ({score}) that passed its probe", tuple(passed_over))
        passed_over.append((name, verdict))
    return None


def _no_choice(findings: Findings, candidates: dict[str, BackendLibrary], requested: str | None) -> OperatorError:
    if requested is not None:
        path = str(candidates[requested].path)
        why = findings.verdicts.get(path) or "it is not made for this CPU"
        return OperatorError(f'the CPU library "{requested}" does not work here: {why}', hint="leave --cpu-variant out to have one chosen")
    tried = [f"{name}: {findings.verdicts[str(lib.path)]}" for name, lib in candidates.items() if findings.verdicts.get(str(lib.path))]
    return OperatorError("none of the CPU libraries works on this machine" + "".join(f"; {line}" for line in tried))


def _built_in() -> CpuChoice:
    if ggml().function("ggml_backend_reg_by_name", ctypes.c_void_p, ctypes.c_char_p)(b"CPU"):
        return CpuChoice("built-in", None, "compiled into the native library")
    raise OperatorError(f"no CPU library lies beside the native library in {library_directory()}")


# ---- what is remembered --------------------------------------------------------------------------------------------


def cpu_identity() -> str:
    """All that distinguishes this CPU as software sees it: model, features, microcode, kernel."""
    facts: list[str] = [platform.system(), platform.machine(), platform.release(), platform.processor()]
    try:
        block = Path("/proc/cpuinfo").read_text("utf-8", "replace").split("\n\n")[0]
        pairs = (line.partition(":") for line in block.splitlines())
        facts += [f"{key.strip()}={value.strip()}" for key, _, value in pairs if key.strip() in _CPUINFO_KEYS]
    except OSError:
        facts += [os.environ.get(name, "") for name in ("PROCESSOR_IDENTIFIER", "PROCESSOR_REVISION")]
    if sys.platform == "darwin":
        facts.append(_sysctl(b"machdep.cpu.brand_string"))
    return "\n".join(facts)


def _sysctl(name: bytes) -> str:
    """A string of the macOS kernel (unverified: written without a Mac at hand)."""
    size = ctypes.c_size_t(256)
    text = ctypes.create_string_buffer(size.value)
    failed = ctypes.CDLL(None).sysctlbyname(name, text, ctypes.byref(size), None, ctypes.c_size_t(0))
    return "" if failed else text.value.decode("utf-8", "replace")


def _cache_file(cache_dir: str | os.PathLike[str], candidates: Any) -> Path:
    build = [f"{library.path.name} {library.path.stat().st_size}" for library in candidates]
    build += [ggml().function(name, ctypes.c_char_p)().decode() for name in ("ggml_version", "ggml_commit", "llama_version")]
    key = hashlib.sha256("\n".join([str(_FORMAT), cpu_identity(), *build]).encode()).hexdigest()[:16]
    return Path(cache_dir) / f"cpu-{key}.json"


def _read(cache: Path | None, candidates: dict[str, BackendLibrary]) -> Findings:
    """What was found earlier; empty when there is nothing or it cannot be made sense of."""
    findings = Findings()
    if cache is None:
        return findings
    try:
        stored = json.loads(cache.read_bytes())
        if set(stored["scores"]) | set(stored["verdicts"]) <= set(candidates):
            scores = {str(candidates[name].path): int(score) for name, score in stored["scores"].items()}
            verdicts = {str(candidates[name].path): str(verdict) for name, verdict in stored["verdicts"].items()}
            findings.scores, findings.verdicts = scores, verdicts
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("the remembered CPU probe in %s is unreadable (%s); probing again", cache, error)
    return findings


def _merge(old: Findings, new: Findings) -> Findings:
    return Findings(old.scores | new.scores, old.verdicts | new.verdicts, old.timed_out | new.timed_out)


def _write(cache: Path, findings: Findings, candidates: dict[str, BackendLibrary]) -> None:
    """Remember by library name, atomically and for us alone. A time-out is not remembered: the machine may just be busy."""
    names = {str(library.path): name for name, library in candidates.items()}
    verdicts = {names[path]: verdict for path, verdict in findings.verdicts.items() if path not in findings.timed_out}
    content = {"scores": {names[path]: score for path, score in findings.scores.items()}, "verdicts": verdicts}
    try:
        cache.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=cache.parent, prefix=cache.name)  # mode 0600
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
        os.replace(temporary, cache)
    except OSError as error:
        log.warning("the CPU probe cannot be remembered (%s)", error)
