"""A lock on a file that lives as long as its process, however that ends. Knows nothing of what is locked."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def lock(path: Path, *, shared: bool = False, create: bool = True) -> int | None:
    """Lock the file `path` without waiting. Returns a descriptor to keep open as long as the lock is wanted, or None if it is
    held by somebody else. `shared` locks exclude exclusive ones only (Windows knows no such lock there: the open file itself
    keeps the directory around it from being renamed, which `extraction.py` makes use of).

    Raises:
        OSError: the file cannot be opened, is a link, or is not a regular file.
    """
    flags = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NOINHERIT", 0)
    descriptor = os.open(path, flags | (os.O_CREAT if create else 0), 0o600)
    if try_lock(descriptor, shared=shared):
        return descriptor
    os.close(descriptor)
    return None


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file without waiting; False if somebody else holds it. The lock ends when the descriptor is closed."""
    if sys.platform == "win32":
        import msvcrt

        if shared:
            return True
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
