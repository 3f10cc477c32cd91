"""One running server per user and file that a second double-click can find: a lock held while it lives, and a 0600 state file.

The lock proves that the instance is alive and ours (it ends with its process); the nonce, echoed in /health, proves that the
port still belongs to it. Knows nothing of HTTP but that one question.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from server.locks import lock

_YOUNG_S = 60.0


@dataclass(frozen=True, slots=True)
class Running:
    """Where a running instance is reached. `launch` is the secret its browser gets, so this never leaves a 0600 file."""

    pid: int
    port: int
    nonce: str
    launch: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


def identity(executable: str | os.PathLike[str], model: str | None = None) -> str:
    """The same file with the same weights, whatever path it is reached by; another one as soon as it is replaced.

    Raises:
        OSError: the file is not there.
    """
    found = os.stat(executable)
    return hashlib.sha256(
        f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{model or ''}".encode("utf-8", "surrogateescape")
    ).hexdigest()[:24]


class Registration:
    """Our entry for one file. Only one process at a time has it; the others serve unregistered."""

    def __init__(self, directory: Path, name: str) -> None:
        self._state = directory / f"instance-{name}.json"
        self._lock = directory / f"instance-{name}.lock"
        self._held: int | None = None

    def claim(self) -> bool:
        """Become the instance that others find. False: another process is it (or nothing can be written)."""
        if self._held is None:
            with contextlib.suppress(OSError):
                self._held = _lock_in_place(self._lock)
            if self._held is not None:
                self._forget()
                _sweep(self._lock)
        return self._held is not None

    def publish(self, running: Running) -> None:
        """Say where we are reached. Does nothing unless claimed."""
        if self._held is None:
            return
        temporary = self._state.with_suffix(".tmp")
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
            with open(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
                json.dump(asdict(running), file)
            os.replace(temporary, self._state)

    def release(self) -> None:
        """Not to be found any more. May be called again."""
        if self._held is not None:
            self._forget()
            _remove(self._lock, self._held)
            self._held = None

    def find(self, wait_s: float = 10.0) -> Running | None:
        """The running instance, once its port answers with its nonce; one that is just starting is waited for."""
        deadline = time.monotonic() + wait_s
        while True:
            if not self._is_held():
                return None
            running = self._read()
            if running is not None and _answers(running):
                return running
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.1)

    def _is_held(self) -> bool:
        try:
            held = lock(self._lock, create=False)
        except OSError:
            return False
        if held is None:
            return True
        os.close(held)
        return False

    def _read(self) -> Running | None:
        try:
            with open(os.open(self._state, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), encoding="utf-8") as file:
                found = os.fstat(file.fileno())
                if sys.platform != "win32" and (found.st_uid != os.geteuid() or found.st_mode & 0o077):
                    return None
                state = json.load(file)
            return Running(pid=int(state["pid"]), port=int(state["port"]), nonce=str(state["nonce"]), launch=str(state["launch"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _forget(self) -> None:
        _unlink(self._state)


def _lock_in_place(path: Path, *, create: bool = True) -> int | None:
    """As `lock`, and what is locked is what others find at `path`: not a file that was removed between being opened and locked."""
    while (descriptor := lock(path, create=create)) is not None:
        if sys.platform == "win32":  # no file that is open can be removed there
            return descriptor
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        os.close(descriptor)
    return None


def _remove(path: Path, descriptor: int) -> None:
    """Remove a lock file that `_lock_in_place` has locked, and unlock it: nobody else can be relying on it."""
    if sys.platform == "win32":
        os.close(descriptor)
        _unlink(path)
    else:
        _unlink(path)
        os.close(descriptor)


def _sweep(own: Path) -> None:
    """Remove what killed instances of other files have left beside `own`. Young files stay: their owners may be about to lock them."""
    for path in own.parent.glob("instance-*.lock"):
        with contextlib.suppress(OSError):
            if path == own or time.time() - path.stat().st_mtime < _YOUNG_S:
                continue
            descriptor = _lock_in_place(path, create=False)
            if descriptor is not None:
                _unlink(path.with_suffix(".json"))
                _remove(path, descriptor)


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _answers(running: Running) -> bool:
    """Whether /health at its port, loading or not, carries its nonce."""
    request = f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{running.port}\r\nConnection: close\r\n\r\n"
    try:
        with socket.create_connection(("127.0.0.1", running.port), timeout=2) as connection:
            connection.settimeout(2)
            connection.sendall(request.encode("ascii"))
            reply = b""
            while len(reply) < 64 * 1024 and (part := connection.recv(4096)):
                reply += part
    except OSError:
        return False
    _, _, body = reply.partition(b"\r\n\r\n")
    try:
        return bool(json.loads(body)["nonce"] == running.nonce)
    except (ValueError, KeyError, TypeError):
        return False
