"""Capsule files: writing them, streaming, in place only when whole. Format and reading are `bundle_format.py`'s, also named here.

Knows the layout, never what a payload means.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from server import executable
from server.bundle_format import (
    ALIGNMENT,
    FOOTER,
    FORMAT_VERSION,
    MAGIC,
    MAX_ARGS_BYTES,
    MAX_TABLE_BYTES,
    MAX_TEMPLATE_BYTES,
    MODEL_KINDS,
    Bundle,
    Payload,
    Progress,
    Table,
    TableRow,
    not_a_capsule,
    table_problem,
)
from server.errors import OperatorError
from server.files import FileRange, open_input, read_range, reason, shown, shown_size

__all__ = [
    "MAX_ARGS_BYTES",
    "MAX_TEMPLATE_BYTES",
    "MODEL_KINDS",
    "Bundle",
    "FileRange",
    "Payload",
    "PayloadSource",
    "Progress",
    "check_output",
    "copy_file",
    "not_a_capsule",
    "planned_size",
    "write_bundle",
]

_SPARE_BYTES = 1024 * 1024
_FULL = {errno.ENOSPC, errno.EDQUOT}


@dataclass(frozen=True, slots=True)
class PayloadSource:
    """A payload to be: a whole file, a part of one, or the content itself."""

    name: str
    kind: str
    source: Path | FileRange | bytes

    @property
    def size(self) -> int:
        return len(self.source) if isinstance(self.source, bytes) else as_range(self.source).size


def as_range(source: Path | FileRange) -> FileRange:
    """A path as the range of its whole file.

    Raises:
        OperatorError: the file cannot be opened.
    """
    if isinstance(source, FileRange):
        return source
    with open_input(source) as file:
        return FileRange(source, 0, file.seek(0, 2))


def planned_size(
    *, head: Path | FileRange, archive: Path | FileRange, payloads: Sequence[PayloadSource], meta: Mapping[str, Any] | None = None
) -> int:
    """Exact size in bytes of the file that `write_bundle` would write.

    Raises:
        OperatorError: a source cannot be opened.
    """
    end, rows = _layout(as_range(head).size, payloads)
    return end + len(_encode(as_range(head).size, "0" * 64, rows, meta)) + FOOTER.size + as_range(archive).size


def write_bundle(
    output: Path,
    *,
    head: Path | FileRange,
    archive: Path | FileRange,
    payloads: Sequence[PayloadSource],
    meta: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    finish: Callable[[Path], None] | None = None,
) -> None:
    """Write a capsule: `head` is the bootloader, `archive` PyInstaller's archive up to the end of its cookie.

    `meta` becomes `Bundle.meta`. `finish` may still change the complete file (sign it) before it gets its name. The file appears
    under `output` only when it is whole and on the disk, with the execute bits that the umask allows.

    Raises:
        OperatorError: a source cannot be read or changed meanwhile, the result would be too large for its system, there is no
            room, or `output` cannot be written or must not be replaced.
    """
    head, archive = as_range(head), as_range(archive)
    payloads = [p if isinstance(p.source, bytes) else replace(p, source=as_range(p.source)) for p in payloads]
    with open_input(head.path) as file:
        file.seek(head.offset)
        program = executable.identify(file.read(min(4096, head.size)))
    total = planned_size(head=head, archive=archive, payloads=payloads, meta=meta)
    if program.size_limit is not None and total >= program.size_limit:
        raise OperatorError(
            f"{shown(output)} would have {shown_size(total)}, and {program.platform.partition('-')[0]} starts no program of 4 GiB or more",
            hint="leave the weights in a .gguf file beside the program",
        )
    check_output(output)
    _check_space(output, total)

    def complete(partial: Path) -> None:
        if finish is not None:
            finish(partial)
        if Bundle.open(partial) is None:
            raise OperatorError(f"{shown(archive.path)} does not end in an archive made by PyInstaller")

    with _placed(output, complete) as descriptor:
        out = _Output(descriptor, total, progress)
        out.copy(head)
        end, rows = _layout(head.size, payloads)
        for row, payload in zip(rows, payloads, strict=True):
            out.pad(row.offset)
            row.sha256 = out.copy(payload.source)
        out.pad(end)
        table = _encode(head.size, sha256_of(archive), rows, meta)
        out.write(table)
        fields = (MAGIC, FORMAT_VERSION, zlib.crc32(table), end, len(table), archive.size, b"")
        out.write(FOOTER.pack(*fields, zlib.crc32(FOOTER.pack(*fields, 0)[:-4])))
        out.copy(archive)


def copy_file(source: FileRange, output: Path, *, program: bool = False, progress: Progress | None = None) -> None:
    """Copy bytes into a file of their own (`program`: one that can be started), with the same care as `write_bundle`.

    Raises:
        OperatorError: as for `write_bundle`.
    """
    check_output(output, program=program)
    _check_space(output, source.size)
    with _placed(output, None, mode=0o777 if program else 0o666) as descriptor:
        _Output(descriptor, source.size, progress).copy(source)


def sha256_of(source: FileRange) -> str:
    """Hex digest of a range."""
    digest = hashlib.sha256()
    for data in _chunks(source):
        digest.update(data)
    return digest.hexdigest()


def check_output(output: Path, *, program: bool = True) -> None:
    """See that writing `output` destroys nothing of value: an old program may be replaced, anything else not.

    Raises:
        OperatorError: its directory is missing, or something is there that is neither empty nor (if `program`) a program, or it is
            the running program on Windows.
    """
    if not output.parent.is_dir():
        raise OperatorError(f"{shown(output)} cannot be written: there is no directory {shown(output.parent)}")
    if not os.path.lexists(output):
        return
    if not output.is_file():
        raise OperatorError(f"{shown(output)} cannot be written: it is there and not a regular file")
    if sys.platform == "win32" and os.path.samefile(output, sys.executable):
        raise OperatorError(f"{shown(output)} is running, and Windows lets no running program be replaced", hint="give another name")
    with open_input(output) as file:
        start = file.read(4096)
    if start and not (program and executable.identify(start).format):
        raise OperatorError(f"{shown(output)} is there already", hint="remove it, or give another name with -o")


def _layout(head_size: int, payloads: Sequence[PayloadSource]) -> tuple[int, list[TableRow]]:
    """Where the payloads will lie (their sha256 still zeros), and where the table begins."""
    end = head_size
    rows: list[TableRow] = []
    for payload in payloads:
        offset = -(-end // ALIGNMENT) * ALIGNMENT
        rows.append(TableRow(name=payload.name, kind=payload.kind, offset=offset, size=payload.size, sha256="0" * 64))
        end = offset + payload.size
    return -(-end // 8) * 8, rows


def _encode(head_size: int, archive_sha256: str, rows: list[TableRow], meta: Mapping[str, Any] | None) -> bytes:
    table = Table(format=FORMAT_VERSION, head_size=head_size, archive_sha256=archive_sha256, payloads=rows, meta=dict(meta or {}))
    data = msgspec.json.encode(table)
    problem = table_problem(table, 2**63) if len(data) <= MAX_TABLE_BYTES else "it is too large"
    if problem:
        raise ValueError(f"no capsule can have this payload table: {problem}")
    return data


def _check_space(output: Path, total: int) -> None:
    free = shutil.disk_usage(output.parent).free
    if free < total + _SPARE_BYTES:
        raise OperatorError(
            f"{shown(output)} needs {shown_size(total)}, and {shown(output.parent)} has {shown_size(free)} free",
            hint="free some space, or give a place on another disk with -o",
        )


@contextlib.contextmanager
def _placed(output: Path, finish: Callable[[Path], None] | None, mode: int = 0o777) -> Iterator[int]:
    """A descriptor of a new file beside `output` that takes its name at the end, or leaves no trace (also on Ctrl-C)."""
    partial = output.with_name(f".capsule-{os.urandom(6).hex()}.partial")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        descriptor = os.open(partial, flags, mode)  # the umask takes from the mode what it should
        try:
            yield descriptor
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if finish is not None:
            finish(partial)
        os.replace(partial, output)
        _sync_directory(output.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        if error.errno in _FULL:
            raise OperatorError(f"the disk became full while {shown(output)} was written", hint="free some space") from None
        if error.errno == errno.EFBIG:
            raise OperatorError(f"the file system of {shown(output)} holds no file that large", hint="FAT32 ends at 4 GiB") from None
        raise OperatorError(f"{shown(output)} cannot be written: {reason(error)}") from None


def _sync_directory(directory: Path) -> None:
    if sys.platform == "win32":
        return
    with contextlib.suppress(OSError):  # some file systems cannot; the file's own content is safe already
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _chunks(source: FileRange) -> Iterator[bytes]:
    left = source.size
    with open_input(source.path) as file:
        for data in read_range(file, source):
            left -= len(data)
            yield data
    if left:
        raise OperatorError(f"{shown(source.path)} became shorter while it was read")


class _Output:
    """The file being written: where it is, and how much of it there is to tell."""

    def __init__(self, descriptor: int, total: int, progress: Progress | None) -> None:
        self._descriptor = descriptor
        self._total = total
        self._progress = progress
        self._position = 0
        self._shares = hasattr(os, "copy_file_range")

    def write(self, data: bytes) -> None:
        os.lseek(self._descriptor, self._position, os.SEEK_SET)
        view = memoryview(data)
        while view:
            n = os.write(self._descriptor, view)
            view = view[n:]
            self._position += n

    def pad(self, position: int) -> None:
        self.write(bytes(position - self._position))

    def copy(self, source: Path | FileRange | bytes) -> str:
        """Append the source; its sha256 in hex."""
        digest = hashlib.sha256()
        if isinstance(source, bytes):
            digest.update(source)
            self.write(source)
            self._tell()
            return digest.hexdigest()
        part = as_range(source)
        with open_input(part.path) as file:
            offset = part.offset
            for data in _chunks(part):
                digest.update(data)
                shared = self._share(file.fileno(), offset, len(data))
                self.write(data[shared:])
                offset += len(data)
                self._tell()
        return digest.hexdigest()

    def _share(self, descriptor: int, offset: int, size: int) -> int:
        """Let the kernel copy: file systems that can then share the blocks instead of storing the weights twice. Bytes copied."""
        if sys.platform != "linux" or not self._shares:
            return 0
        try:
            n = os.copy_file_range(descriptor, self._descriptor, size, offset, self._position)
        except OSError as error:
            if error.errno in _FULL or error.errno == errno.EFBIG:
                raise
            n = 0
        self._shares = n > 0
        self._position += n
        return n

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._position, self._total)
