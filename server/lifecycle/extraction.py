"""The directory that the one-file bootloader unpacked us into: marked as ours, swept when its owners are gone.

Every process that runs from the directory holds a shared lock on the marker in it. A directory whose marker can be locked
exclusively therefore has no process left and may go. Anything without our marker, of another user, or reached by a link is
somebody else's and stays. Knows nothing of servers; works without a frozen program only on what it is given.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from server.locks import lock

MARKER = "capsule.lock"
_PREFIX = "_MEI"
_held: int | None = None


def own_directory() -> Path | None:
    """Where the bootloader unpacked this program; None when it runs from sources or from an unpacked folder."""
    found = getattr(sys, "_MEIPASS", None)
    if not getattr(sys, "frozen", False) or found is None:
        return None
    path = Path(found)
    return path if path.name.startswith(_PREFIX) else None


def hold() -> None:
    """Mark our directory and hold it for as long as this process lives. Never fails: without a marker it is only not swept."""
    global _held
    directory = own_directory()
    if directory is None or _held is not None:
        return
    marker = directory / MARKER
    try:
        if marker.exists():
            _held = lock(marker, shared=True, create=False)
            return
        # Locked first, named afterwards: no sweep ever sees the marker of a starting program unlocked.
        unnamed = directory / f"{MARKER}.{os.getpid()}"
        _held = lock(unnamed, shared=True)
        os.replace(unnamed, marker)
    except OSError:
        pass


def sweep_in_background() -> None:
    """Remove stale directories of ours beside our own, without costing the start any time."""
    directory = own_directory()
    if directory is not None:
        threading.Thread(target=sweep, args=(directory.parent,), kwargs={"keep": directory}, name="sweep", daemon=True).start()


def sweep(parent: Path, *, keep: Path | None = None) -> list[Path]:
    """Remove every stale extraction directory of ours in `parent` but `keep`; returns what was removed. Never fails."""
    removed = []
    try:
        with os.scandir(parent) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(_PREFIX)]
    except OSError:
        return []
    for name in sorted(names):
        directory = parent / name
        if directory != keep and _remove_if_stale(directory):
            removed.append(directory)
    return removed


def remove_own() -> None:
    """Remove the directory we run from: the last step of a process whose parent, which would have done it, was killed.

    Waits up to two seconds for our children to leave it; what stays is swept by the next start.
    """
    global _held
    directory = own_directory()
    if directory is None:
        return
    if _held is not None:
        os.close(_held)
        _held = None
    for _ in range(40):
        if _remove_if_stale(directory):
            return
        time.sleep(0.05)


def _remove_if_stale(directory: Path) -> bool:
    marker = directory / MARKER
    try:
        if not (_is_ours(directory, stat.S_ISDIR) and _is_ours(marker, stat.S_ISREG)):
            return False
        held = lock(marker, create=False)
    except OSError:
        return False
    if held is None:
        return False
    import shutil  # not at the top: every child passes through here on its way up

    try:
        if sys.platform == "win32":
            # No lock of ours shows who else is in there, but a directory with an open file in it cannot be renamed.
            os.close(held)
            held = None
            doomed = directory.with_name(directory.name + "-stale")
            os.rename(directory, doomed)
            directory = doomed
        shutil.rmtree(directory, ignore_errors=True)
    except OSError:
        return False
    finally:
        if held is not None:
            os.close(held)
    return not directory.exists()


def _is_ours(path: Path, kind: Callable[[int], bool]) -> bool:
    found = os.lstat(path)
    return kind(found.st_mode) and (sys.platform == "win32" or found.st_uid == os.geteuid())
