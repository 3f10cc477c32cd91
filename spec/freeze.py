"""Freeze the program into a runtime: a bootloader (the head) and PyInstaller's archive. Knows no weights and not the final file.

Done again only when something that goes into it has changed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from server import executable
from server.bundle import FileRange
from spec.environment import ROOT, BuildError, digest, run, say

OUTPUT = ROOT / "build" / "runtime"
_ROOMS = ("server", "models", "spec/lock")
_FILES = ("launcher.py", "LICENSE", "spec/model.spec", "spec/frozen.py", "spec/notices.py", "spec/freeze.py")


@dataclass(frozen=True, slots=True)
class Runtime:
    """The two parts of a program without weights. `stamp` changes with its content."""

    head: FileRange
    archive: FileRange
    stamp: str


def freeze(wheel: Path) -> Runtime:
    """The runtime, frozen now unless nothing has changed since the last time.

    Raises:
        BuildError: this Python cannot be frozen, or PyInstaller failed.
    """
    wanted = digest(_inputs(wheel))
    stamp = OUTPUT / "stamp"
    if not (stamp.exists() and stamp.read_text() == wanted and _program().exists()):
        _check_python_library()
        _freeze()
        stamp.write_text(wanted)
    return _parts(wanted)


def _inputs(wheel: Path) -> Iterator[str | bytes]:
    yield from (sys.version, sys.base_prefix, sysconfig.get_platform(), str(wheel))
    files = [file for room in _ROOMS for file in sorted((ROOT / room).rglob("*")) if file.is_file()]
    for file in [*files, *(ROOT / name for name in _FILES)]:
        if "__pycache__" not in file.parts:
            yield str(file.relative_to(ROOT))
            yield file.read_bytes()


def _check_python_library() -> None:
    """PyInstaller puts libpython into the file; on Debian it is a package of its own."""
    code = "from PyInstaller.depend.bindepend import get_python_library_path as f; raise SystemExit(f() is None)"
    if subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode:
        name = f"libpython{sys.version_info[0]}.{sys.version_info[1]}"
        raise BuildError(f"this Python has no shared library to freeze ({name}); on Debian and Ubuntu: apt install {name}")


def _freeze() -> None:
    started = time.monotonic()
    say("freezing the program")
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    command = [sys.executable, "-m", "PyInstaller", ROOT / "spec" / "model.spec", "-y", "--log-level", "WARN"]
    command += ["--distpath", OUTPUT / "dist", "--workpath", OUTPUT / "work"]
    run(command, what="freezing the program", log=OUTPUT / "freeze.log")
    say(f"frozen in {time.monotonic() - started:.0f} s: {_program().stat().st_size / 2**20:.1f} MiB")


def _program() -> Path:
    return OUTPUT / "dist" / ("capsule.exe" if sys.platform == "win32" else "capsule")


def _parts(stamp: str) -> Runtime:
    """On Linux PyInstaller's program hides the archive in an ELF section, where no payload can precede it, so its parts are taken as
    they were before: the plain bootloader and the archive. Elsewhere the program is cut in two (unverified).
    """
    if sys.platform.startswith("linux"):
        import PyInstaller

        bootloader = Path(PyInstaller.__file__).parent / "bootloader" / PyInstaller.PLATFORM / "run"
        archive = OUTPUT / "work" / "model" / "capsule.pkg"
        return Runtime(_whole(bootloader), _whole(archive), stamp)
    with _program().open("rb") as file:
        found = executable.find_archive(file, file.seek(0, 2))
    if found is None:
        raise BuildError(f"{_program()} has no archive of PyInstaller's at its end")
    return Runtime(FileRange(_program(), 0, found.offset), FileRange(_program(), found.offset, found.size), stamp)


def _whole(path: Path) -> FileRange:
    return FileRange(path, 0, path.stat().st_size)
