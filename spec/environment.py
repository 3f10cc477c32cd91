"""The build's Python environment: checks what the machine must have and installs the hash-locked packages. Standard library only.

It runs before anything is installed, so of the program it knows the error tree alone, and its syntax is one an old Python can still read.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from server.errors import OperatorError

ROOT = Path(__file__).resolve().parent.parent
LOCKS = ROOT / "spec" / "lock"
OLDEST, TOO_NEW = (3, 11), (3, 14)
# What each name brings along: a group is installed from its lock file, all of them fit together (`make lock`).
GROUPS = {"build": ("runtime", "build"), "dev": ("runtime", "build", "dev"), "native": ("native",)}


class BuildError(OperatorError):
    """The build cannot go on; the message is one sentence that says what to do."""


def say(message: str) -> None:
    print(f"[build] {message}", flush=True)


def main_guard(main: Callable[[], int]) -> int:
    """Run a build script's main function; a BuildError becomes one line and exit code 2, Ctrl-C exit code 130."""
    try:
        return main()
    except OperatorError as error:
        print(f"[build] error: {error}" + (f"\n[build] {error.hint}" if error.hint else ""), file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt:
        print("[build] interrupted", file=sys.stderr, flush=True)
        return 130


def check_python() -> None:
    if not OLDEST <= sys.version_info[:2] < TOO_NEW:
        wanted = f"{OLDEST[0]}.{OLDEST[1]} to {TOO_NEW[0]}.{TOO_NEW[1] - 1}"
        found = ".".join(str(n) for n in sys.version_info[:3])
        raise BuildError(f"Python {wanted} is needed, but {sys.executable} is {found}; name another one with PYTHON=/path/to/python3")


def compiler() -> str:
    """The C++ compiler's own first line of `--version`, part of the key of what it compiles; empty on Windows, where CMake finds MSVC.

    Raises:
        BuildError: there is none.
    """
    if sys.platform == "win32":
        return ""
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and (path := shutil.which(name.split()[0])):
            output = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
            return output.splitlines()[0] if output else path
    how = "xcode-select --install" if sys.platform == "darwin" else "apt install g++ (Debian, Ubuntu) or dnf install gcc-c++ (Fedora)"
    raise BuildError(f"a C++ compiler is needed and none was found: {how}")


def venv_directory() -> Path:
    return ROOT / os.environ.get("VENV", ".venv")


def venv_python(venv: Path) -> Path:
    return venv / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def digest(parts: Iterable[str | bytes]) -> str:
    """A hash of all parts and their borders, 16 hex digits."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()[:16]


def run(command: Sequence[object], *, what: str, log: Path | None = None, **options: object) -> None:
    """Run a command quietly; if it fails, show the end of what it said.

    Raises:
        BuildError: it failed.
    """
    result = subprocess.run(  # type: ignore[call-overload]
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **options
    )
    if log:
        log.write_text(result.stdout, encoding="utf-8")
    if result.returncode:
        print("\n".join(result.stdout.splitlines()[-30:]), file=sys.stderr)
        raise BuildError(f"{what} failed (exit code {result.returncode})" + (f", all of its output is in {log}" if log else ""))


def install(venv: Path, group: str) -> Path:
    """Make `venv` if it is missing and install a group of GROUPS into it, hashes checked. Returns its Python.

    Does nothing when the lock files are those of the last time.
    """
    python = venv_python(venv)
    if not python.exists():
        say(f"making a virtual environment in {venv}")
        # Debian ships venv without ensurepip unless python3-venv is there.
        run([sys.executable, "-m", "venv", venv], what="python3 -m venv (on Debian and Ubuntu it needs: apt install python3-venv)")
    for name in GROUPS[group]:
        lock = LOCKS / f"{name}.txt"
        stamp, wanted = venv / f".capsule-{name}", digest([lock.read_bytes()])
        if stamp.exists() and stamp.read_text() == wanted:
            continue
        started = time.monotonic()
        say(f"installing the {name} packages of spec/lock/{name}.txt")
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--require-hashes", "-r", lock]
        run(pip, what=f"installing the {name} packages")
        stamp.write_text(wanted)
        say(f"installed in {time.monotonic() - started:.0f} s")
    return python


def install_wheel(venv: Path, wheel: Path) -> None:
    """Install the compiled llama-cpp-python, alone: what it would bring along (numpy, diskcache) is not used."""
    stamp, wanted = venv / ".capsule-native", digest([wheel.read_bytes()])
    if stamp.exists() and stamp.read_text() == wanted:
        return
    pip = [venv_python(venv), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--force-reinstall", wheel]
    run(pip, what="installing the native wheel")
    stamp.write_text(wanted)


def enter(group: str) -> None:
    """Go on inside the build's environment: returns there, having started this script again if it ran outside."""
    check_python()
    compiler()
    venv = venv_directory()
    python = install(venv, group)
    if Path(sys.prefix).resolve() == venv.resolve():
        return
    again = [str(python), *sys.orig_argv[1:]]
    if sys.platform == "win32":
        raise SystemExit(subprocess.call(again))
    os.execv(again[0], again)


def main() -> int:
    """`python3 -m spec.environment dev`: everything the checks and tests need, the native wheel included."""
    check_python()
    compiler()
    from spec import native  # imports this module

    venv = venv_directory()
    install(venv, sys.argv[1] if len(sys.argv) > 1 else "dev")
    install_wheel(venv, native.wheel())
    return 0


if __name__ == "__main__":
    raise SystemExit(main_guard(main))
