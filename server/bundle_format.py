"""The format of a capsule file: payloads and their table between bootloader and archive; reading and verifying (spec/file-format.md).

    [bootloader][pad to 64 KiB][payload 0][pad][payload 1]…[payload table, JSON][footer, 64 bytes][PyInstaller archive + cookie]

Knows what a payload is called and where it lies, never what it means. Writing is `bundle.py`'s.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from server import executable
from server.errors import OperatorError
from server.executable import Archive, Program
from server.files import FileRange, open_input, read_range, shown

FORMAT_VERSION = 1
ALIGNMENT = 64 * 1024
MAX_TABLE_BYTES = 1024 * 1024
MAX_PAYLOADS = 256
MAX_ARGS_BYTES = 64 * 1024
MAX_TEMPLATE_BYTES = 1024 * 1024

# magic, format version, crc of the table, place and length of the table, length of the archive, zeros, crc of the 60 bytes before.
FOOTER = struct.Struct("<8sIIQQQ20sI")
MAGIC = b"CAPSULE\x1a"
_SHA256 = re.compile(r"[0-9a-f]{64}")

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""

# These belong to one model and go with it; any other kind belongs to the program and is carried along when weights are exchanged.
MODEL_KINDS = frozenset({"model", "draft", "mmproj", "lora", "args", "chat_template"})


@dataclass(frozen=True, slots=True)
class Payload:
    """One part: `offset` and `size` in bytes of the capsule file. Kinds: model, draft, mmproj, lora, args, chat_template …"""

    name: str
    kind: str
    offset: int
    size: int
    sha256: str


class TableRow(msgspec.Struct, kw_only=True):
    name: str
    kind: str
    offset: int
    size: int
    sha256: str


class Table(msgspec.Struct, kw_only=True):
    """The JSON between the last payload and the footer; unknown members are ignored."""

    format: int
    head_size: int
    """Bytes of the bootloader, without the padding behind it."""
    archive_sha256: str
    payloads: list[TableRow]
    meta: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Bundle:
    """An open-and-shut view of one capsule file: everything was checked against the file when it was read."""

    path: Path
    size: int
    program: Program
    head_size: int
    archive: Archive
    archive_sha256: str
    payloads: tuple[Payload, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)
    """What the writer told of itself: `capsule` (its version), `created_by`, `platform`, `versions` …; nothing depends on it."""

    @classmethod
    def open(cls, path: Path) -> Bundle | None:
        """Read the payload table. None: the file is no capsule (no frozen program, or one without a table).

        A runtime made to take weights has a table without a model payload; `payloads` may be empty.

        Raises:
            OperatorError: the file cannot be read, or it is a capsule that is damaged, cut short, or of a newer format.
        """
        with open_input(path) as file:
            size = file.seek(0, 2)
            archive = executable.find_archive(file, size)
            if archive is None or archive.offset < FOOTER.size:
                return None
            table = _read_table(file, path, archive)
            if table is None:
                return None
            file.seek(0)
            program = executable.identify(file.read(4096))
        payloads = tuple(Payload(row.name, row.kind, row.offset, row.size, row.sha256) for row in table.payloads)
        return cls(path, size, program, table.head_size, archive, table.archive_sha256, payloads, table.meta)

    def payload(self, kind: str) -> Payload | None:
        """The first payload of this kind."""
        return next((p for p in self.payloads if p.kind == kind), None)

    def range(self, payload: Payload) -> FileRange:
        return FileRange(self.path, payload.offset, payload.size)

    @property
    def head(self) -> FileRange:
        """The bootloader, to be the start of another capsule."""
        return FileRange(self.path, 0, self.head_size)

    @property
    def archive_range(self) -> FileRange:
        """PyInstaller's archive with its cookie, without a signature behind it."""
        return FileRange(self.path, self.archive.offset, self.archive.size)

    def read(self, kind: str, limit: int) -> bytes:
        """The content of a small payload, checked against its sha256; b"" if there is none of this kind.

        Raises:
            OperatorError: it is larger than `limit` bytes, or damaged.
        """
        payload = self.payload(kind)
        if payload is None:
            return b""
        if payload.size > limit:
            raise OperatorError(f"the {shown(kind)} inside {shown(self.path)} has {payload.size} bytes; at most {limit} are allowed")
        with open_input(self.path) as file:
            file.seek(payload.offset)
            data = file.read(payload.size)
        if hashlib.sha256(data).hexdigest() != payload.sha256:
            raise OperatorError(f"the {shown(kind)} inside {shown(self.path)} is damaged (its sha256 is another)")
        return data

    def read_text(self, kind: str, limit: int) -> str | None:
        """The same as text; None if there is none of this kind."""
        if self.payload(kind) is None:
            return None
        try:
            return self.read(kind, limit).decode("utf-8")
        except UnicodeDecodeError:
            raise OperatorError(f"the {shown(kind)} inside {shown(self.path)} is not UTF-8 text") from None

    def verify(self, progress: Progress | None = None) -> list[str]:
        """Compare the sha256 of every payload and of the archive; one sentence for each that differs.

        Raises:
            OperatorError: the file cannot be read.
        """
        parts = [(f"{p.kind} {p.name}", FileRange(self.path, p.offset, p.size), p.sha256) for p in self.payloads]
        parts.append(("the program's archive", self.archive_range, self.archive_sha256))
        total = sum(part.size for _, part, _ in parts)
        problems: list[str] = []
        done = 0
        with open_input(self.path) as file:
            for what, part, expected in parts:
                digest = hashlib.sha256()
                left = part.size
                for data in read_range(file, part):
                    digest.update(data)
                    left -= len(data)
                    done += len(data)
                    if progress is not None:
                        progress(done, total)
                if left or digest.hexdigest() != expected:
                    problems.append(f"{shown(what)} is damaged: its sha256 is {digest.hexdigest()} instead of {expected}")
        return problems


def not_a_capsule(path: Path) -> OperatorError:
    """The sentence for a file of which `Bundle.open` said None.

    Raises:
        OperatorError: the file cannot be read.
    """
    with open_input(path) as file:
        program = executable.identify(file.read(4096))
    if program.format:
        return OperatorError(f"{shown(path)} is a program for {program.platform}, but not a capsule, or one that is cut short")
    return OperatorError(f"{shown(path)} is neither a GGUF file nor a capsule")


def _read_table(file: BinaryIO, path: Path, archive: Archive) -> Table | None:
    """The table in front of the archive, checked; None if there is no footer at all."""

    def bad(problem: str) -> OperatorError:
        return OperatorError(f"{shown(path)} is a damaged capsule: {problem}", hint="get the file again; its size or sha256 will differ")

    start = archive.offset - FOOTER.size
    file.seek(start)
    raw = file.read(FOOTER.size).ljust(FOOTER.size, b"\0")
    magic, version, table_crc, table_offset, table_size, archive_size, _, footer_crc = FOOTER.unpack(raw)
    if magic != MAGIC:
        return None
    if zlib.crc32(raw[:-4]) != footer_crc:
        raise bad("its footer's checksum is wrong")
    if version != FORMAT_VERSION:
        raise _newer(path, version)
    if archive_size != archive.size or not 0 < table_size <= MAX_TABLE_BYTES or table_offset + table_size != start:
        raise bad("its footer does not fit the file")
    file.seek(table_offset)
    data = file.read(table_size)
    if zlib.crc32(data) != table_crc:
        raise bad("its payload table's checksum is wrong")
    try:
        table = msgspec.json.decode(data, type=Table)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise bad("its payload table cannot be read") from None
    if table.format != FORMAT_VERSION:
        raise _newer(path, table.format)
    problem = table_problem(table, table_offset)
    if problem:
        raise bad(problem)
    return table


def _newer(path: Path, version: int) -> OperatorError:
    return OperatorError(
        f"{shown(path)} has format {version} of the capsule file; this program knows format {FORMAT_VERSION}",
        hint="open it with the program it came from",
    )


def table_problem(table: Table, end: int) -> str:
    """What is wrong with a table whose payloads must lie before `end`; "" if nothing."""
    if not 0 < table.head_size <= end:
        return "its program part has an impossible size"
    if len(table.payloads) > MAX_PAYLOADS:
        return f"it has more than {MAX_PAYLOADS} payloads"
    if not _SHA256.fullmatch(table.archive_sha256):
        return "the sha256 of its archive is malformed"
    free = table.head_size
    seen: set[tuple[str, str]] = set()
    for row in table.payloads:
        if not row.kind or not row.name or (row.kind, row.name) in seen:
            return f"a payload has no name of its own ({row.kind} {row.name!r})"
        seen.add((row.kind, row.name))
        if row.offset % ALIGNMENT or row.offset < free or row.size < 0 or row.offset + row.size > end:
            return f"the payload {row.name!r} lies where it cannot"
        if not _SHA256.fullmatch(row.sha256):
            return f"the sha256 of the payload {row.name!r} is malformed"
        free = row.offset + row.size
    if sum(row.kind == "model" for row in table.payloads) > 1:
        return "it has more than one model"
    return ""
