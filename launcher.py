"""The executable's entry point: picks a command, nothing else. Whatever fails ends as one sentence, never as a traceback.

`--version`, `--help` and `--licenses` load neither native code nor the HTTP server. The hidden commands are our own children.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

COMMANDS = ("serve", "chat", "bundle", "inspect")
HIDDEN = ("runner", "render", "probe")
_SETTINGS = ("serve", "chat")


def main(argv: list[str]) -> int:
    """Run one command and return the exit code: 0, 2 for a mistake of whoever started it, 1 for one of ours."""
    from server.lifecycle import console, extraction

    extraction.hold()
    command, rest = (argv[0], argv[1:]) if argv and argv[0] in (*COMMANDS, *HIDDEN) else ("serve", argv)
    if command in HIDDEN:
        return _run(command, rest)
    console.prepare()
    try:
        if command in _SETTINGS and (text := _answer(command, rest)) is not None:
            sys.stdout.write(text)
            sys.stdout.flush()
            return 0
        return _run(command, rest)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # `--help | head`: the interpreter's last flush has to go somewhere
        return 1
    except Exception as error:
        from server.lifecycle.fatal import report

        return report(error, starting=command in _SETTINGS)


def _run(command: str, argv: list[str]) -> int:
    return int(importlib.import_module(f"server.commands.{command}").main(argv))


def _answer(command: str, argv: list[str]) -> str | None:
    """The text that `--version`, `--help` or `--licenses` asks for; None if none of them is there."""
    if "--version" in argv:
        from server import __version__

        return f"capsule {__version__}\n"
    if "--licenses" in argv or "--licences" in argv:
        from server.licenses import licenses

        return licenses()
    if "--help" in argv or "-h" in argv:
        from server import __version__
        from server.usage import help_text

        return help_text(Path(sys.argv[0]).name, __version__, os.environ, _embedded(), command=command)
    return None


def _embedded() -> list[str]:
    """The arguments inside this file; none if they cannot be read, since the help must be there for that case too."""
    from server.errors import OperatorError
    from server.spawn import is_frozen

    if not is_frozen():
        return []
    from models.resolve import own_arguments
    from server.bundle_format import Bundle

    try:
        own = Bundle.open(Path(sys.executable))
        return own_arguments(own) if own is not None else []
    except OperatorError:
        return []


def _flush() -> None:
    """The interpreter would turn a last write that fails (a full device) into exit code 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1 if stream is sys.stdout else 2)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    _flush()
    sys.exit(code)
