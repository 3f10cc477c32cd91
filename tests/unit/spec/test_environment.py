"""The build's first steps say in one sentence what is missing, install only what the locks name, and install it once."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from spec import environment
from spec.environment import GROUPS, LOCKS, BuildError
from spec.peer import instruction_sets


def _pins(name: str) -> dict[str, set[str]]:
    pins: dict[str, set[str]] = {}
    for package, version in re.findall(r"^([\w.-]+)==([\w.+]+)", (LOCKS / f"{name}.txt").read_text(), re.MULTILINE):
        pins.setdefault(package, set()).add(version)
    return pins


def test_every_locked_package_has_a_hash() -> None:
    for lock in LOCKS.glob("*.txt"):
        for entry in re.split(r"\n(?=\w)", lock.read_text().partition("\n\n")[2] or lock.read_text()):
            assert not re.match(r"[\w.-]+==", entry) or "--hash=sha256:" in entry, f"{lock.name}: {entry[:60]}"


def test_groups_that_are_installed_together_agree() -> None:
    for names in GROUPS.values():
        all_pins = [_pins(name) for name in names]
        for pins in all_pins:
            for other in all_pins:
                assert all(other[package] == versions for package, versions in pins.items() if package in other)


def test_what_is_frozen_locks_no_numpy() -> None:
    assert "aiohttp" in _pins("runtime") and "numpy" not in _pins("runtime")


def test_the_locks_hold_what_pyproject_pins() -> None:
    wanted = re.findall(r'"([\w.-]+)==([\w.]+)"', (environment.ROOT / "pyproject.toml").read_text())
    locked = {(package, version) for lock in LOCKS.glob("*.txt") for package, versions in _pins(lock.stem).items() for version in versions}
    assert len(wanted) > 10 and set(wanted) <= locked


def test_an_unfit_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    environment.check_python()
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    with pytest.raises(BuildError, match=r"3\.11 to 3\.13 is needed.*3\.9\.2"):
        environment.check_python()


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert environment.compiler()
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match="C\\+\\+ compiler"):
        environment.compiler()


def test_installing_happens_once_for_one_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locks, venv = tmp_path / "lock", tmp_path / "venv"
    locks.mkdir()
    (locks / "native.txt").write_text("a==1\n")
    python = environment.venv_python(venv)
    python.parent.mkdir(parents=True)
    python.touch()
    commands: list[list[str]] = []
    monkeypatch.setattr(environment, "LOCKS", locks)
    monkeypatch.setattr(environment, "run", lambda command, **_: commands.append([str(part) for part in command]))
    environment.install(venv, "native")
    environment.install(venv, "native")
    assert len(commands) == 1 and "--require-hashes" in commands[0]
    (locks / "native.txt").write_text("a==2\n")
    environment.install(venv, "native")
    assert len(commands) == 2


def test_a_build_error_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise BuildError("there is no thing; install it", hint="apt install thing")

    assert environment.main_guard(fail) == 2
    assert capsys.readouterr().err == "[build] error: there is no thing; install it\n[build] apt install thing\n"


def test_the_digest_sees_the_borders_of_its_parts() -> None:
    assert environment.digest(["ab", "c"]) != environment.digest(["a", "bc"])
    assert environment.digest(["a", b"b"]) == environment.digest(["a", "b"])


CMAKE = """
    ggml_add_cpu_backend_variant(x64)
    ggml_add_cpu_backend_variant(haswell            SSE42 AVX F16C FMA AVX2 BMI2)
    ggml_add_cpu_backend_variant(zen4 SSE42 AVX F16C FMA AVX2 BMI2 AVX512 AVX512_BF16)
    ggml_add_cpu_backend_variant(sapphirerapids SSE42 AVX AVX512 AMX_TILE AMX_INT8)
    ggml_add_cpu_backend_variant(armv8.2_1    DOTPROD)
"""


def test_the_peers_get_the_instruction_sets_of_the_chosen_library() -> None:
    zen4 = instruction_sets(CMAKE, "zen4")
    assert zen4["AVX512_BF16"] and zen4["SSE42"] and zen4["AMX_TILE"] is False and "DOTPROD" not in zen4
    assert not any(instruction_sets(CMAKE, "x64").values())
    with pytest.raises(BuildError, match="zen9.*haswell"):
        instruction_sets(CMAKE, "zen9")
