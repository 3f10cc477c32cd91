"""What the program prints and logs: any terminal, any encoding, no terminal at all. Colours are not used, so NO_COLOR holds.

Lines for people go to standard output through `say`; the log goes to standard error and, where asked, to a file.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    import logging

LOG_BYTES = 8 * 1024 * 1024
LOG_FILES = 3
_ERROR_LOG_BYTES = 256 * 1024


def prepare() -> None:
    """Make standard output and error safe to write to: they may be absent (pythonw), closed, or unable to encode a letter."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        elif isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError, ValueError):
                stream.reconfigure(errors="replace", line_buffering=True)


def say(text: str = "", *, file: TextIO | None = None, end: str = "\n") -> None:
    """Print for a person. A terminal that was closed is no error."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=file or sys.stdout, end=end, flush=True)


def escaped(text: str) -> str:
    """`text` with control and bidirectional characters written out, so that foreign text cannot steer a terminal; newlines, tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" or not _steers(c) else c.encode("unicode_escape").decode("ascii") for c in text)


def _steers(c: str) -> bool:
    code = ord(c)
    return code < 0x20 or 0x7F <= code < 0xA0 or 0x2028 <= code <= 0x202E or 0x2066 <= code <= 0x2069 or 0xD800 <= code < 0xE000


def is_terminal(*streams: TextIO | None) -> bool:
    """Whether any of these is a terminal; without arguments: standard input, output and error."""
    for stream in streams or (sys.stdin, sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            if stream is not None and stream.isatty():
                return True
    return False


def set_up_log(*, verbose: bool, file: str | None, quiet: bool = False) -> logging.Logger:
    """Configure the loggers once; returns ours. `quiet` keeps everything below a warning off the terminal.

    Raises:
        OperatorError: the log file cannot be written.
    """
    import logging

    logging.raiseExceptions = False  # a closed terminal must not break a request
    root = logging.getLogger()
    root.setLevel(logging.WARNING)
    log = logging.getLogger("capsule")
    log.setLevel(logging.DEBUG if verbose else logging.INFO)

    class OneLine(logging.Formatter):
        """Time, level if it matters, message; control characters written out."""

        def format(self, record: logging.LogRecord) -> str:
            return escaped(super().format(record))

    short = OneLine("%(asctime)s %(message)s", "%H:%M:%S")
    terminal = logging.StreamHandler(sys.stderr)
    terminal.setFormatter(short)
    terminal.setLevel(logging.WARNING if quiet and not verbose else logging.DEBUG)
    root.addHandler(terminal)
    if file is not None:
        from logging.handlers import RotatingFileHandler

        from server.errors import OperatorError

        try:
            os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
            to_file = RotatingFileHandler(file, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise OperatorError(f"--log-file: {file!r} cannot be written: {(error.strerror or str(error)).lower()}") from None
        to_file.setFormatter(OneLine("%(asctime)s %(levelname)s %(name)s %(message)s"))
        root.addHandler(to_file)
    return log


def record_error(text: str) -> Path | None:
    """Append a fatal error to our error log (0600, bounded) and return its path; None where nothing can be written."""
    with contextlib.suppress(Exception):
        from models.cache import default_cache_dir

        path = default_cache_dir() / "errors.log"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        if path.is_file() and path.stat().st_size > _ERROR_LOG_BYTES:
            flags |= os.O_TRUNC
        with open(os.open(path, flags, 0o600), "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text.rstrip()}\n")
        return path
    return None
