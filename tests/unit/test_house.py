"""The rules of the house hold: imports run downward, native code is behind one door, files stay short, every module stands alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ["launcher.py", "server", "models"]
EVERYTHING = [*PROGRAM, "build.py", "spec", "tests"]
MAX_LINES = 400

# Top to bottom, as in spec/architecture.md: a room imports from rooms below it. A module that lies directly in server/ is a leaf.
ROOMS = ["launcher", "commands", "app", "api", "http", "chat", "runners", "lifecycle", "engine", "llama", "models", "leaf"]
# The front speaks to the engine through pipes alone, and the engine to llama.cpp through engine/ports.py.
SEPARATE = {
    **{room: {"engine", "llama"} for room in ("app", "api", "http", "chat", "runners", "lifecycle")},
    "engine": {"llama"},
    "models": {"llama"},
}
PORTS = "server.engine.ports"
CTYPES = {"server/spawn.py"}  # one Windows call


def _files(*places: str) -> list[Path]:
    found = [ROOT / place for place in places if place.endswith(".py")]
    found += [file for place in places if not place.endswith(".py") for file in (ROOT / place).rglob("*.py")]
    return sorted(found)


def _module(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {_module(file) for file in _files(*PROGRAM)}


def _imports(file: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import statement, also those inside functions."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{file}:{node.lineno}: a relative import hides the room"
            submodules = [name for alias in node.names if (name := f"{node.module}.{alias.name}") in MODULES]
            yield from ((node.lineno, name) for name in submodules or [node.module])


def _room(module: str) -> str:
    top, _, rest = module.partition(".")
    if top != "server":
        return top
    first = rest.partition(".")[0]
    if first == "app":
        return "app"
    return first if (ROOT / "server" / first).is_dir() and first else "leaf"


def test_imports_run_downward_only() -> None:
    wrong = []
    for file in _files(*PROGRAM):
        room = _room(_module(file))
        assert room in ROOMS, f"{file}: {room} is no room yet; give it a place in ROOMS and in spec/architecture.md"
        for line, target in _imports(file):
            if target.partition(".")[0] not in ("server", "models", "launcher", "build", "spec", "tests"):
                continue
            there = _room(target)
            if target == PORTS or there == room:
                continue
            if there not in ROOMS or ROOMS.index(there) < ROOMS.index(room) or there in SEPARATE.get(room, ()):
                wrong.append(f"{file.relative_to(ROOT)}:{line}: {room} must not import {target}")
    assert not wrong, "\n".join(wrong)


def test_the_engine_reaches_the_ports_only_from_outside_of_llama() -> None:
    """engine/ports.py is a leaf: it may import leaves alone, since llama/ imports it from below."""
    assert all(_room(target) == "leaf" for _, target in _imports(ROOT / "server/engine/ports.py") if target.startswith("server"))


def test_native_code_is_behind_one_door() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{line}: {target}"
        for file in _files(*PROGRAM)
        for line, target in _imports(file)
        if target.partition(".")[0] in ("ctypes", "llama_cpp")
        and not file.is_relative_to(ROOT / "server" / "llama")
        and file.relative_to(ROOT).as_posix() not in CTYPES
    ]
    assert not wrong, "\n".join(wrong)


def test_what_is_frozen_needs_no_numpy() -> None:
    wrong = [file.name for file in _files(*PROGRAM) for _, target in _imports(file) if target.partition(".")[0] == "numpy"]
    assert not wrong


def test_files_are_short_and_say_what_they_are_for() -> None:
    long = {str(f.relative_to(ROOT)): n for f in _files(*EVERYTHING) if (n := len(f.read_text(encoding="utf-8").splitlines())) > MAX_LINES}
    assert not long, f"files over {MAX_LINES} lines: {long}"
    silent = [
        str(file.relative_to(ROOT))
        for file in _files(*EVERYTHING)
        if file.stat().st_size and not ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
    ]
    assert not silent, f"files whose first line does not say what they are for: {silent}"


# A process that has no module of ours yet forks for each one: other people's packages, loaded before, cost nothing then.
IMPORT_EACH = """
import os, sys
import aiohttp.web, jinja2.sandbox, msgspec, prometheus_client
failed = []
for module in sys.argv[1:]:
    if child := os.fork():
        if os.waitpid(child, 0)[1]:
            failed.append(module)
    else:
        __import__(module)
        os._exit(0)
sys.exit("cannot be imported first: " + ", ".join(failed) if failed else 0)
"""


def test_every_module_can_be_imported_first() -> None:
    """In an interpreter that knows none of the others, with every warning an error: no hidden order, no cycle, nothing that warns."""
    modules = sorted(MODULES | {"build", "spec.freeze", "spec.peer", "spec.smoke"})
    command = [sys.executable, "-W", "error", "-c", IMPORT_EACH, *modules]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("module", "room"),
    [
        ("server.engine.scheduler", "engine"),
        ("server.app", "app"),
        ("server.spawn", "leaf"),
        ("server", "leaf"),
        ("models.fetch", "models"),
    ],
)
def test_rooms_are_told_apart(module: str, room: str) -> None:
    assert _room(module) == room
