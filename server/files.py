"""Files that a person names: opening them with one plain sentence when it cannot be done, ranges of them, showing their contents safely.

Knows no format.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from server.errors import OperatorError

READ_CHUNK = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileRange:
    """`size` bytes of a file from `offset` on."""

    path: Path
    offset: int
    size: int


def open_input(path: Path) -> BinaryIO:
    """Open a regular file for reading (a device or pipe could block for ever, so those are refused unopened).

    Raises:
        OperatorError: it is not there, not a file, or not readable.
    """
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise OperatorError(f"{shown(path)} is a directory, not a file")
        if not stat.S_ISREG(mode):
            raise OperatorError(f"{shown(path)} is not a regular file")
        return open(path, "rb")
    except FileNotFoundError:
        raise OperatorError(f"{shown(path)} does not exist") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL inside the name
        raise OperatorError(f"{shown(path)} cannot be opened: {reason(error)}") from None


def reason(error: Exception) -> str:
    """What went wrong, without the path (which the sentence around it names)."""
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()


def read_range(file: BinaryIO, part: FileRange) -> Iterator[bytes]:
    """The bytes of a range of an open file, piece by piece; ends early where the file does.

    Raises:
        OperatorError: the file cannot be read.
    """
    file.seek(part.offset)
    left = part.size
    while left:
        try:
            data = file.read(min(left, READ_CHUNK))
        except OSError as error:
            raise OperatorError(f"{shown(part.path)} cannot be read: {reason(error)}") from None
        if not data:
            return
        left -= len(data)
        yield data


def shown(value: object) -> str:
    """Text that came from a file or a name, made safe for a terminal and a log: control and format characters escaped."""
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text)


def shown_size(size: int) -> str:
    """Bytes for people: 812 B, 94 MiB, 4.1 GiB."""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if value < 1024 or unit == "TiB":
            break
    return f"{value:.0f} {unit}" if value >= 10 and unit != "GiB" else f"{value:.1f} {unit}"
