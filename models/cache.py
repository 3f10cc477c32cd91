"""The cache directory: where it is, that it is ours alone, and locks between processes in it. Knows nothing of what is kept there."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from server.errors import OperatorError
from server.locks import try_lock

_HINT = "set CAPSULE_CACHE_DIR to a directory that only you can write to"


def default_cache_dir() -> Path:
    """The directory for downloads and remembered verdicts; it exists, is ours, and nobody else can write to it.

    $CAPSULE_CACHE_DIR, else the platform's cache directory + `capsule`, else (no home, or one that cannot be written)
    `capsule-<user>` in the temporary directory.

    Raises:
        OperatorError: the directory asked for cannot be made or is not ours alone.
    """
    asked = os.environ.get("CAPSULE_CACHE_DIR")
    if asked:
        return private_directory(Path(asked).expanduser().absolute())
    base = _platform_cache()
    if base is not None:
        try:
            return private_directory(base / "capsule")
        except OSError:
            pass  # a home that is not there or not writable: not a mistake, the temporary directory will do
    return private_directory(Path(tempfile.gettempdir()) / f"capsule-{_user()}")


def private_directory(path: Path) -> Path:
    """Make `path` (mode 0700) if it is missing, and see that it belongs to us and only we can write to it.

    Raises:
        OperatorError: it is a link or a file, someone else's, or writable by others.
        PermissionError, OSError: it cannot be made or written.
    """
    asked = os.environ.get("CAPSULE_CACHE_DIR")
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        raise OperatorError(f"{path} is in the way of a cache directory", hint=_HINT) from None
    except OSError as error:
        if asked:
            raise OperatorError(f"the cache directory {path} cannot be made: {error.strerror or error}", hint=_HINT) from None
        raise
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode):
        raise OperatorError(f"{path} is in the way of a cache directory", hint=_HINT)
    if sys.platform != "win32":  # below the user's profile, Windows gives a directory its owner's access list
        if found.st_uid != os.geteuid():
            raise OperatorError(f"the cache directory {path} belongs to another user", hint=_HINT)
        if stat.S_IMODE(found.st_mode) & 0o022:
            raise OperatorError(f"the cache directory {path} can be written to by other users", hint=f"chmod 700 it, or {_HINT}")
    if not os.access(path, os.W_OK | os.X_OK):
        if asked:
            raise OperatorError(f"the cache directory {path} cannot be written to", hint=_HINT)
        raise PermissionError(f"{path} cannot be written to")
    return path


@contextlib.contextmanager
def locked(path: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold an exclusive lock on the file `path` among processes; it ends with its process, however that ends.

    `waiting` is called once if somebody else holds it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        told = False
        while not try_lock(descriptor):
            if not told:
                waiting()
                told = True
            time.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


def _platform_cache() -> Path | None:
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return Path(local) if local and os.path.isabs(local) else None
    if sys.platform != "darwin":
        xdg = os.environ.get("XDG_CACHE_HOME")
        if xdg and os.path.isabs(xdg):
            return Path(xdg)
    home = os.environ.get("HOME")
    if not home or not os.path.isabs(home) or not os.path.isdir(home):
        return None
    return Path(home) / ("Library/Caches" if sys.platform == "darwin" else ".cache")


def _user() -> str:
    if sys.platform == "win32":
        return "".join(c for c in os.environ.get("USERNAME", "user") if c.isalnum()) or "user"
    return str(os.geteuid())
