"""A library that is broken in any way is passed over with a reason, and only its probe child dies of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from server.llama import probe
from server.llama.cpu import choose_cpu
from server.llama.library import library_directory
from server.llama.probe import survey
from tests.native import ROOT, cpu_choice

PROBE = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); from server.commands.probe import main; main(sys.argv[2:])"]
SCORE = "int ggml_backend_score(void) { return 99999; }\n"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """libggml, libggml-base and the one CPU library that works here."""
    target = tmp_path / "lib"
    target.mkdir()
    working = cpu_choice().path
    assert working is not None
    for path in [p for p in library_directory().iterdir() if p.name.split(".")[0] in ("libggml", "libggml-base", "ggml", "ggml-base")] + [
        working
    ]:
        os.symlink(path, target / path.name)
    return target


@pytest.fixture
def plant(directory: Path) -> Callable[[str, str], Path]:
    """Compile a shared library that calls itself a CPU backend."""

    def build(name: str, source: str) -> Path:
        compiler = shutil.which("cc") or shutil.which("gcc")
        assert compiler is not None, "a C compiler is needed, as it is for the native build"
        target = directory / f"libggml-cpu-{name}.so"
        (directory / f"{name}.c").write_text(source)
        subprocess.run([compiler, "-shared", "-fPIC", "-o", str(target), str(directory / f"{name}.c")], check=True)
        return target

    return build


BROKEN = {
    "aborts_on_load": ("#include <stdlib.h>\n__attribute__((constructor)) static void f(void) { abort(); }" + SCORE, "SIGABRT while being"),
    "illegal_score": ("int ggml_backend_score(void) { __builtin_trap(); }", "died of SIG"),
    "no_backend": (SCORE, "failed to find ggml_backend_init"),
    "null_backend": (SCORE + "void *ggml_backend_init(void) { return 0; }", "returned NULL"),
    "crashing_backend": (SCORE + "void *ggml_backend_init(void) { return *(void **) 8; }", "died of SIGSEGV while being loaded"),
    "leaves": ("#include <stdlib.h>\n" + SCORE + "void *ggml_backend_init(void) { exit(3); }", "died of exit code 3"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_library_is_passed_over(name: str, directory: Path, plant: Callable[[str, str], Path]) -> None:
    source, why = BROKEN[name]
    plant(name, source)
    choice = choose_cpu(None, None, directory=directory, program=PROBE)
    assert choice.name == cpu_choice().name
    assert name in dict(choice.passed_over) and why in dict(choice.passed_over)[name]


def test_garbage_is_passed_over(directory: Path) -> None:
    (directory / "libggml-cpu-garbage.so").write_bytes(b"\x7fELF but not really" * 50)
    choice = choose_cpu(None, None, directory=directory, program=PROBE)
    assert choice.name == cpu_choice().name and "cannot be loaded" in dict(choice.passed_over)["garbage"]


def test_a_library_that_hangs_is_passed_over_in_time(
    directory: Path, plant: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant("hangs", "#include <unistd.h>\n" + SCORE + "void *ggml_backend_init(void) { for (;;) sleep(1); }")
    monkeypatch.setattr(probe, "TIMEOUT", 4.0)
    choice = choose_cpu(tmp_path / "cache", None, directory=directory, program=PROBE)
    assert choice.name == cpu_choice().name
    assert dict(choice.passed_over)["hangs"] == "did not finish within 4 s while being loaded"
    (cache,) = (tmp_path / "cache").iterdir()
    assert "hangs" not in json.loads(cache.read_text())["verdicts"], "the machine may just have been busy"


def test_every_way_of_failing_at_once(directory: Path, plant: Callable[[str, str], Path]) -> None:
    for name, (source, _) in BROKEN.items():
        plant(name, source)
    choice = choose_cpu(None, None, directory=directory, program=PROBE)
    assert choice.name == cpu_choice().name and set(dict(choice.passed_over)) == set(BROKEN)


def test_a_child_that_cannot_start_ends_the_survey(tmp_path: Path) -> None:
    started = time.monotonic()
    findings = survey(tmp_path, [tmp_path / "libggml-cpu-x.so"], find_best=True, program=[sys.executable, "-c", "raise SystemExit(1)"])
    assert findings.scores == {} and findings.verdicts == {}
    assert time.monotonic() - started < probe.TIMEOUT


def test_what_a_library_prints_is_no_verdict(tmp_path: Path) -> None:
    talkative = f"print('hello'); print('[1]'); print('{{}}'); print({json.dumps(json.dumps({'library': 'x', 'score': 3}))})"
    findings = survey(tmp_path, [Path("x")], find_best=True, program=[sys.executable, "-c", talkative])
    assert findings.scores == {"x": 3} and findings.verdicts == {}
