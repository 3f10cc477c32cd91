"""Program files are told apart by their first bytes, and a stretched macOS program covers the whole file and can be stretched again."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server import macho
from server.errors import OperatorError
from server.executable import find_archive, identify
from tests import capsule_kit as kit


@pytest.mark.parametrize(
    ("head", "platform"),
    [
        (kit.ELF_HEAD, "linux-x86_64"),
        (b"\x7fELF\x02\x01" + bytes(12) + b"\xb7\x00", "linux-aarch64"),
        (b"\x7fELF\x02\x02" + bytes(12) + b"\x00\x16", "linux-s390x"),
        (b"\x7fELF\x02\x01" + bytes(12) + b"\xff\xff", "linux-other"),
        (kit.PE_HEAD, "windows-x86_64"),
        (b"MZ" + bytes(58) + struct.pack("<I", 64) + b"PE\0\0\x64\xaa", "windows-arm64"),
        (b"\xcf\xfa\xed\xfe\x0c\x00\x00\x01", "macos-arm64"),
        (b"\xcf\xfa\xed\xfe\x07\x00\x00\x01", "macos-x86_64"),
        (b"\xca\xfe\xba\xbe\x00\x00\x00\x02", "macos-universal"),
        (b"\xca\xfe\xba\xbe\x00\x00\x00\x34", "unknown"),  # Java
        (b"MZ", "unknown"),
        (b"MZ" + bytes(58) + b"\xff\xff\xff\xff" + bytes(100), "unknown"),
        (b"GGUF" + bytes(100), "unknown"),
        (b"", "unknown"),
    ],
)
def test_programs_are_told_apart(head: bytes, platform: str) -> None:
    assert identify(head).platform == platform
    assert (identify(head).size_limit is not None) == platform.startswith(("windows", "macos"))


def test_the_running_interpreter() -> None:
    with open(sys.executable, "rb") as file:
        assert identify(file.read(4096)).platform.startswith({"linux": "linux", "win32": "windows", "darwin": "macos"}[sys.platform])


@given(st.binary(max_size=200))
def test_no_bytes_give_a_traceback(data: bytes) -> None:
    for content in (data, kit.ELF_HEAD[:4] + data, b"MZ" + data, b"\xcf\xfa\xed\xfe" + data, kit.COOKIE_MAGIC + data):
        identify(content)
        assert find_archive(io.BytesIO(content), len(content)) is None


def test_the_last_of_two_archives_counts() -> None:
    first, second = kit.archive(b"a" * 10, python=310), kit.archive(b"b" * 20, python=312)
    content = b"head" + first + second
    found = find_archive(io.BytesIO(content), len(content))
    assert found is not None and (found.offset, found.end, found.python) == (4 + len(first), len(content), "3.12")


# ---- macOS -----------------------------------------------------------------------------------------------------------


def _segment(name: bytes, offset: int, size: int) -> bytes:
    return struct.pack("<2I16s4Q4I", 0x19, 72, name, 0x100000000 + offset, 0x4000, offset, size, 1, 1, 0, 0)


def _program(*, signed: bool, cpu: int = 0x0100000C, commands: list[bytes] | None = None) -> bytes:
    """A minimal program: 4 KiB of code, then __LINKEDIT with its string table, then perhaps a signature."""
    if commands is None:
        symbols = struct.pack("<6I", 2, 24, 0x1000, 2, 0x1100, 0x100)
        commands = [_segment(b"__TEXT", 0, 0x1000), _segment(b"__LINKEDIT", 0x1000, 0x200), symbols]
        if signed:
            commands.append(struct.pack("<4I", 0x1D, 16, 0x1200, 0x80))
        commands.append(struct.pack("<2I", 0x1B, 24) + b"uuid" * 4)
    joined = b"".join(commands)
    header = struct.pack("<8I", 0xFEEDFACF, cpu, 0, 2, len(commands), len(joined), 0x85, 0)
    return (header + joined).ljust(0x1200, b"\x5a") + bytes(0x80 if signed else 0)


def _commands(content: bytes) -> dict[int | bytes, bytes]:
    n, size = struct.unpack_from("<2I", content, 16)
    found: dict[int | bytes, bytes] = {}
    at = 32
    for _ in range(n):
        command, length = struct.unpack_from("<2I", content, at)
        data = content[at : at + length]
        found[data[8:24].rstrip(b"\0") if command == 0x19 else command] = data
        at += length
    assert at == 32 + size
    return found


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize(("cpu", "page"), [(0x0100000C, 16384), (0x01000007, 4096)])
def test_the_last_segment_covers_the_file_and_the_signature_is_gone(tmp_path: Path, signed: bool, cpu: int, page: int) -> None:
    before = _program(signed=signed, cpu=cpu)
    path = kit.write(tmp_path / "program", before + b"weights" * 10_000)
    macho.cover_whole_file(path)
    after = path.read_bytes()
    size = len(after)
    commands = _commands(after)
    assert 0x1D not in commands and 0x1B in commands and len(commands) == 4
    vm_size, offset, length = struct.unpack_from("<3Q", commands[b"__LINKEDIT"], 32)
    assert offset + length == size and vm_size >= length and vm_size % page == 0 and vm_size - length < page
    string_offset, string_size = struct.unpack_from("<2I", commands[2], 16)
    assert string_offset + string_size == size
    assert commands[b"__TEXT"] == _commands(before)[b"__TEXT"]
    first_change_ends = 32 + struct.unpack_from("<I", before, 20)[0]
    assert after[first_change_ends:] == (before + b"weights" * 10_000)[first_change_ends:]
    macho.cover_whole_file(path)
    assert path.read_bytes() == after


@pytest.mark.parametrize(
    "content",
    [
        b"",
        kit.ELF_HEAD,
        b"\xca\xfe\xba\xbe\x00\x00\x00\x02" + bytes(100),
        _program(signed=False, commands=[_segment(b"__TEXT", 0, 0x1000)]),
        _program(signed=False, commands=[struct.pack("<2I", 0x19, 0)]),
        _program(signed=False, commands=[struct.pack("<2I", 0x19, 2**31)]),
        _program(signed=False)[:60],
        struct.pack("<8I", 0xFEEDFACF, 0x0100000C, 0, 2, 5, 2**31, 0, 0),
    ],
)
def test_other_files_are_left_as_they_are(tmp_path: Path, content: bytes) -> None:
    path = kit.write(tmp_path / "program", content)
    with pytest.raises(OperatorError, match="cannot carry weights"):
        macho.cover_whole_file(path)
    assert path.read_bytes() == content


def test_what_codesign_says_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kit.write(tmp_path / "program", _program(signed=True))
    commands: list[list[str]] = []

    def missing(command: list[str], **options: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    def answering(code: int) -> object:
        def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
            commands.append(command)
            return subprocess.CompletedProcess(command, code, "", "invalid or\nunsupported format")

        return run

    monkeypatch.setattr(subprocess, "run", missing)
    with pytest.raises(OperatorError, match="codesign cannot be run"):
        macho.sign(path)
    monkeypatch.setattr(subprocess, "run", answering(1))
    with pytest.raises(OperatorError, match="invalid or unsupported format"):
        macho.sign(path)
    monkeypatch.setattr(subprocess, "run", answering(0))
    macho.sign(path)
    assert commands[-1][0].endswith("codesign") and commands[-1][-1] == str(path)
