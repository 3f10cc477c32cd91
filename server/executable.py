"""Looks at a program file from outside: which system it is for, and where PyInstaller's archive lies in it.

Knows nothing of payloads.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO, Literal

Format = Literal["elf", "pe", "macho", ""]

# PyInstaller's cookie, the last thing of a frozen program but for a signature: magic, length of the archive (cookie included),
# place and length of its table of contents, Python version (311), name of the Python library. Big-endian.
_COOKIE = struct.Struct("!8sIIII64s")
_COOKIE_MAGIC = b"MEI" + bytes((0o14, 0o13, 0o12, 0o13, 0o16))

_ELF_MACHINES = {0x03: "i386", 0x28: "armv7", 0x3E: "x86_64", 0xB7: "aarch64", 0xF3: "riscv64", 0x15: "ppc64le", 0x16: "s390x"}
_PE_MACHINES = {0x014C: "i386", 0x8664: "x86_64", 0xAA64: "arm64"}
_MACHO_CPUS = {0x01000007: "x86_64", 0x0100000C: "arm64"}

# From here on Windows does not start a program, and the 32-bit offsets of a Mach-O's symbol table and signature end.
_LIMIT = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Program:
    """`platform` is for people: linux-x86_64, windows-arm64, macos-universal …; "unknown" with an empty `format`."""

    format: Format
    platform: str

    @property
    def size_limit(self) -> int | None:
        """The file must be smaller than this many bytes; None: no limit."""
        return None if self.format in ("elf", "") else _LIMIT


@dataclass(frozen=True, slots=True)
class Archive:
    """PyInstaller's archive: where it starts in the file, its length with the cookie, and the Python it was made for ("3.11")."""

    offset: int
    size: int
    python: str

    @property
    def end(self) -> int:
        return self.offset + self.size


def identify(head: bytes) -> Program:
    """What kind of program starts with these bytes (4 KiB are enough)."""
    if head[:4] == b"\x7fELF" and len(head) >= 20:
        (machine,) = struct.unpack_from("<H" if head[5] == 1 else ">H", head, 18)
        return Program("elf", f"linux-{_ELF_MACHINES.get(machine, 'other')}")
    if head[:2] == b"MZ" and len(head) >= 64:
        (place,) = struct.unpack_from("<I", head, 60)
        if head[place : place + 4] == b"PE\0\0" and len(head) >= place + 6:
            (machine,) = struct.unpack_from("<H", head, place + 4)
            return Program("pe", f"windows-{_PE_MACHINES.get(machine, 'other')}")
    if head[:4] == b"\xcf\xfa\xed\xfe" and len(head) >= 8:
        (cpu,) = struct.unpack_from("<I", head, 4)
        return Program("macho", f"macos-{_MACHO_CPUS.get(cpu, 'other')}")
    if head[:4] in (b"\xca\xfe\xba\xbe", b"\xca\xfe\xba\xbf") and len(head) >= 8 and struct.unpack_from(">I", head, 4)[0] < 16:
        return Program("macho", "macos-universal")  # a Java class file has a version of 45 and more there
    return Program("", "unknown")


def find_archive(file: BinaryIO, size: int) -> Archive | None:
    """The archive of a frozen program in a file of `size` bytes; None if there is none.

    Behind the cookie there may be a signature: about 10 KiB on Windows; on macOS one hash for every page of the file.
    """
    bound = (1 << 20) + min(size // 64, 64 << 20)
    for place in _places_from_the_end(file, size, max(0, size - bound)):
        file.seek(place)
        cookie = file.read(_COOKIE.size)
        if len(cookie) < _COOKIE.size:
            continue
        _, length, toc, toc_length, python, _ = _COOKIE.unpack(cookie)
        end = place + _COOKIE.size
        if _COOKIE.size < length <= end and toc + toc_length + _COOKIE.size <= length:
            return Archive(end - length, length, f"{python // 100}.{python % 100}")
    return None


def _places_from_the_end(file: BinaryIO, size: int, first: int) -> list[int]:
    """Where the cookie's magic stands, last place first, not before `first`; the nearest chunk that has any is enough."""
    chunk, overlap = 1 << 16, len(_COOKIE_MAGIC) - 1
    end = size
    while end > first:
        start = max(first, end - chunk)
        file.seek(start)
        data = file.read(min(end + overlap, size) - start)
        found: list[int] = []
        at = data.rfind(_COOKIE_MAGIC)
        while at >= 0 and len(found) < 16:
            found.append(start + at)
            at = data.rfind(_COOKIE_MAGIC, 0, at + overlap)
        if found:
            return found
        end = start
    return []
