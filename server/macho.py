"""Makes a macOS program whose file has changed startable again: lets its last segment cover the whole file and signs it ad hoc.

A Mac refuses to start what is not signed, and a signature must cover the file up to its end; so the __LINKEDIT segment and the string
table inside it are stretched over everything behind them, with the very bytes that PyInstaller's own tool writes. Signing is unverified:
it needs a Mac. Knows nothing of payloads.
"""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

from server.errors import OperatorError
from server.files import reason

_MAGIC_64 = 0xFEEDFACF
_LC_SYMTAB, _LC_SEGMENT_64, _LC_CODE_SIGNATURE = 0x02, 0x19, 0x1D
_HEADER = struct.Struct("<8I")
_COMMAND = struct.Struct("<2I")
_SYMTAB = struct.Struct("<6I")
_SEGMENT = struct.Struct("<2I16s4Q4I")
_CPU_ARM64 = 0x0100000C
_MAX_COMMANDS_BYTES = 64 * 1024


def sign(path: Path) -> None:
    """Stretch and sign the program in place. Runs `codesign`, so only on a Mac.

    Raises:
        OperatorError: it is no plain 64-bit program, or `codesign` refuses it.
    """
    cover_whole_file(path)
    try:
        done = subprocess.run(["/usr/bin/codesign", "--force", "--sign", "-", str(path)], capture_output=True, text=True, check=False)
    except OSError as error:
        raise OperatorError(f"codesign cannot be run: {reason(error)}", hint="xcode-select --install brings it") from None
    if done.returncode != 0:
        raise OperatorError(f"codesign refused the new program: {' '.join(done.stderr.split())}")


def cover_whole_file(path: Path) -> None:
    """Drop the old signature and let __LINKEDIT and its string table end where the file ends.

    Raises:
        OperatorError: the file is no 64-bit Mach-O for one processor, or one without these parts, or 4 GiB or more.
    """
    bad = OperatorError("this macOS program cannot carry weights: it is not built for one 64-bit processor in the usual way")
    with open(path, "r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            raise bad
        magic, cpu, subtype, kind, n_commands, n_bytes, flags, reserved = _HEADER.unpack(header)
        if magic != _MAGIC_64 or n_bytes > _MAX_COMMANDS_BYTES or size >= 2**32:
            raise bad
        commands = file.read(n_bytes)
        kept: list[bytes] = []
        symtab = linkedit = False
        at = 0
        for _ in range(n_commands):
            if at + _COMMAND.size > len(commands):
                raise bad
            command, length = _COMMAND.unpack_from(commands, at)
            data = commands[at : at + length]
            if length < _COMMAND.size or len(data) < length:
                raise bad
            at += length
            if command == _LC_CODE_SIGNATURE:
                continue
            if command == _LC_SYMTAB and length == _SYMTAB.size:
                fields = list(_SYMTAB.unpack(data))
                fields[5] = size - fields[4]  # strsize; stroff
                symtab = fields[5] > 0
                data = _SYMTAB.pack(*fields) if symtab else data
            elif command == _LC_SEGMENT_64 and length >= _SEGMENT.size and data[8:24].rstrip(b"\0") == b"__LINKEDIT":
                parts = list(_SEGMENT.unpack_from(data))
                parts[6] = size - parts[5]  # filesize; fileoff
                linkedit = parts[6] > 0
                if linkedit:
                    page = 16384 if cpu == _CPU_ARM64 else 4096
                    parts[4] = -(-parts[6] // page) * page  # vmsize
                    data = _SEGMENT.pack(*parts) + data[_SEGMENT.size :]
            kept.append(data)
        if not (symtab and linkedit):
            raise bad
        joined = b"".join(kept)
        file.seek(0)
        file.write(_HEADER.pack(magic, cpu, subtype, kind, len(kept), len(joined), flags, reserved))
        file.write(joined.ljust(n_bytes, b"\0"))
        file.flush()
        os.fsync(file.fileno())
