"""Builds Capsule's one file: environment, native wheel, freeze, weights; what is there and up to date is not made again.

    python3 build.py [--name model] [--model NAME] [--bare] [--run] [-- arguments for the program]

Knows the steps and the order, nothing of the server's insides. Standard library only until `enter` has returned.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from spec.environment import ROOT, digest, enter, install_wheel, main_guard, say, venv_directory

if TYPE_CHECKING:
    from spec.freeze import Runtime

DIST = ROOT / "dist"


def main() -> int:
    options = _parse(sys.argv[1:])
    enter("build")
    from models.cache import default_cache_dir
    from models.fetch import catalog, fetch
    from spec import native
    from spec.freeze import freeze
    from spec.smoke import smoke

    wheel = native.wheel()
    install_wheel(venv_directory(), wheel)
    weights = fetch(options.model, default_cache_dir(), say=say)
    runtime = freeze(wheel)
    output = DIST / f"{options.name}.exe"
    stamp = ROOT / "build" / f"{options.name}.stamp"
    alias = catalog()[options.model].title
    wanted = digest([runtime.stamp, str(weights), output.name, str(options.bare), alias])
    if stamp.exists() and stamp.read_text() == _mark(wanted, output):
        say(f"{_shown(output)} is up to date")
    else:
        _bundle(output, runtime, None if options.bare else weights, alias=alias)
        smoke(output, *(["-m", str(weights)] if options.bare else []))
        stamp.write_text(_mark(wanted, output))
        _announce(output)
    if options.run:
        return _start(output, options.arguments)
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    cut = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(prog="build.py", description="Build dist/model.exe: the server and a model in one file.")
    parser.add_argument("--name", default="model", help="name of the result, without .exe (default: model)")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="model of models/catalog.toml to lay into it")
    parser.add_argument("--bare", action="store_true", help="without weights: to be given them by -m, `bundle` or a model.gguf beside it")
    parser.add_argument("--run", action="store_true", help="start it afterwards, with the arguments behind --")
    options = parser.parse_args(argv[:cut])
    if not options.name or Path(options.name).name != options.name or options.name.endswith(".exe"):
        parser.error("--name is the plain name of a file, without directory and .exe")
    options.arguments = argv[cut + 1 :]
    return options


def _bundle(output: Path, runtime: Runtime, weights: Path | None, *, alias: str) -> None:
    """Lay the weights (None: none) between the two parts of the runtime; beside it a second name for desktops that take .exe for DOS.

    `alias` goes in as an embedded argument: the name that clients see.
    """
    import PyInstaller

    from server import __version__, macho
    from server.bundle import PayloadSource, write_bundle
    from spec import native

    output.parent.mkdir(exist_ok=True)
    say(f"writing {_shown(output)} with {weights.name if weights else 'no weights'}")
    write_bundle(
        output,
        head=runtime.head,
        archive=runtime.archive,
        payloads=[
            PayloadSource(weights.name, "model", weights),
            PayloadSource("args.txt", "args", f"--alias {shlex.quote(alias)}".encode()),
        ]
        if weights
        else [],
        meta={
            "capsule": __version__,
            "versions": {
                "llama-cpp-python": native.VERSION,
                "python": ".".join(str(n) for n in sys.version_info[:3]),
                "pyinstaller": PyInstaller.__version__,
            },
        },
        finish=macho.sign if sys.platform == "darwin" else None,
    )
    if sys.platform != "win32":
        plain = output.with_suffix("")
        plain.unlink(missing_ok=True)
        os.link(output, plain)


def _mark(wanted: str, output: Path) -> str:
    """What the stamp says of a file that is still the one we wrote and tried."""
    if not output.exists() or (sys.platform != "win32" and not output.with_suffix("").exists()):
        return ""
    about = output.stat()
    return f"{wanted} {about.st_size} {about.st_mtime_ns}"


def _announce(output: Path) -> None:
    with output.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    say(f"{_shown(output)}: {output.stat().st_size / 2**20:.1f} MiB, sha256 {sha256}")


def _start(output: Path, arguments: list[str]) -> int:
    say(f"starting {_shown(output)} {' '.join(arguments)}".rstrip())
    if sys.platform == "win32":
        return subprocess.call([str(output), *arguments])
    os.execv(output, [str(output), *arguments])


def _shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


if __name__ == "__main__":
    raise SystemExit(main_guard(main))
