"""API keys: read from --api-key and --api-key-file, compared in constant time, read again when the file changes. Knows no HTTP.

A line of the file is `key [name weight max-class admin] [running=N] [queued=N] [tpm=N]`; `#` starts a comment line. Keys of one name
are one account: they share its limits, its weight and its cache. Key text never enters a message or a log.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import os
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from server.errors import OperatorError
from server.requests import CLASSES, RANKS, Priority

log = logging.getLogger("capsule.http")

LIMITS = {"running": 1, "queued": 0, "tpm": 1}
"""Limit of a key -> its least value."""
_LINE = "key [name weight max-class admin] [running=N] [queued=N] [tpm=N]"
CHECK_SECONDS = 1.0
"""The file's time stamp is looked at no more often than this."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    digest: bytes
    name: str
    weight: float = 1.0
    max_class: str = "interactive"
    admin: bool = False
    running: int | None = None
    """Requests that may run at once; more of them wait. None = any number, here and below."""
    queued: int | None = None
    """Requests that may wait; more are refused."""
    tpm: int | None = None
    """Tokens a minute, of prompts and answers; over it requests are refused."""

    @property
    def account(self) -> tuple[object, ...]:
        """What keys of the same name have in common."""
        return self.weight, self.max_class, self.running, self.queued, self.tpm

    def allows(self, priority: Priority) -> bool:
        return RANKS[priority] >= RANKS[self.max_class]


def digest(secret: str) -> bytes:
    """Digests are compared, so that the time tells nothing of a key's length either."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


class KeyRing:
    def __init__(self, fixed: tuple[ApiKey, ...] = (), path: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises:
        OperatorError: the key file cannot be read, is open to others, or is malformed.
        """
        self._fixed = fixed
        self._path = path
        self._clock = clock
        self._stamp = _stamp(path) if path is not None else None
        self._from_file = read_key_file(path) if path is not None else ()
        self._checked_at = clock()

    @classmethod
    def of(cls, api_key: str | None, api_key_file: str | None) -> KeyRing:
        """From the settings; raises OperatorError as above, or if a key is given but empty."""
        fixed: tuple[ApiKey, ...] = ()
        if api_key is not None:
            secrets = [part.strip() for part in api_key.split(",")]
            if not all(secrets):
                raise OperatorError("--api-key holds an empty key", hint="give one key, or several separated by commas")
            fixed = tuple(ApiKey(digest(s), f"key {i}") for i, s in enumerate(secrets, 1))
        return cls(fixed, Path(api_key_file) if api_key_file else None)

    @property
    def required(self) -> bool:
        """Whether requests must bring a key."""
        return bool(self._fixed) or self._path is not None

    @property
    def n_accounts(self) -> int:
        """Different names among the keys."""
        return len({key.name for key in (*self._fixed, *self._from_file)})

    def find(self, secret: str) -> ApiKey | None:
        self._reload()
        presented = digest(secret)
        found: ApiKey | None = None
        for key in (*self._fixed, *self._from_file):  # always through to the end
            if hmac.compare_digest(key.digest, presented):
                found = key
        return found

    def _reload(self) -> None:
        now = self._clock()
        if self._path is None or now - self._checked_at < CHECK_SECONDS:
            return
        self._checked_at = now
        stamp = _stamp(self._path)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._from_file = read_key_file(self._path)
            log.info("the key file was read again: %d keys", len(self._from_file))
        except OperatorError as error:
            log.error("the key file has changed but the keys of before stay: %s", error.message)


def read_key_file(path: Path) -> tuple[ApiKey, ...]:
    """Raises:
    OperatorError: it cannot be read, is open to others, or is malformed (the line is named, never quoted).
    """
    try:
        with path.open("rb") as file:
            _check_permissions(path, os.fstat(file.fileno()))
            text = file.read(1_000_000).decode("utf-8-sig")
    except OSError as error:
        raise OperatorError(f"the key file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise OperatorError(f"the key file {path} is not UTF-8 text") from None
    keys = [_parse_line(path, number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and line.lstrip()[0] != "#"]
    if not keys:
        raise OperatorError(f"the key file {path} holds no key", hint=f"write one key a line: {_LINE}")
    if len({key.digest for key in keys}) != len(keys):
        raise OperatorError(f"the key file {path} holds the same key twice")
    accounts: dict[str, ApiKey] = {}
    for key in keys:
        if accounts.setdefault(key.name, key).account != key.account:
            raise OperatorError(
                f"the key file {path} gives the name {key.name} to keys with different weights, classes or limits",
                hint="keys of one name are one account; give them the same values, or other names",
            )
    return tuple(keys)


def _parse_line(path: Path, number: int, line: str) -> ApiKey:
    secret, *words = line.split()
    rest = [word for word in words if "=" not in word]
    name, weight, max_class, admin = [*rest, *("-",) * 4][:4]
    try:
        limits = _parse_limits(words[len(rest) :])
        factor = 1.0 if weight == "-" else float(weight)
    except ValueError:
        limits, factor = {}, math.nan
    if len(rest) > 4 or not 0 < factor < math.inf or max_class not in ("-", *CLASSES) or admin not in ("-", "admin"):
        raise OperatorError(
            f"line {number} of the key file {path} is malformed", hint=f"a line is: {_LINE}, max-class one of " + ", ".join(CLASSES)
        )
    return ApiKey(
        digest(secret),
        name if name != "-" else f"line {number}",
        factor,
        max_class if max_class != "-" else "interactive",
        admin == "admin",
        **limits,
    )


def _parse_limits(words: list[str]) -> dict[str, int]:
    """Raises:
    ValueError: a word is no limit, or comes twice.
    """
    limits: dict[str, int] = {}
    for word in words:
        name, _, number = word.partition("=")
        if name not in LIMITS or name in limits or not (number.isascii() and number.isdigit()) or int(number) < LIMITS[name]:
            raise ValueError
        limits[name] = int(number)
    return limits


def _check_permissions(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OperatorError(f"the key file {path} is not a regular file")
    if sys.platform != "win32" and status.st_mode & 0o077:
        raise OperatorError(f"the key file {path} can be read or written by other users", hint=f"chmod 600 {path}")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
