"""A capsule file gives back what was laid into it, is written whole or not at all, and damaged is one sentence, never a traceback."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time
import zlib
from collections import namedtuple
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PyInstaller.archive.readers import CArchiveReader
from PyInstaller.archive.writers import CArchiveWriter

from server.bundle import Bundle, FileRange, PayloadSource, copy_file, not_a_capsule, planned_size, write_bundle
from server.bundle_format import ALIGNMENT, FOOTER, MAGIC, MAX_TABLE_BYTES, MODEL_KINDS
from server.errors import OperatorError
from tests import capsule_kit as kit

ROOT = Path(__file__).resolve().parents[2]
PAYLOADS = [
    PayloadSource("weights.gguf", "model", kit.gguf()),
    PayloadSource("args.txt", "args", b"--top-k 3"),
    PayloadSource("chat_template.jinja", "chat_template", "{{ ünï }}".encode()),
]


@pytest.fixture
def capsule(tmp_path: Path) -> Path:
    return kit.capsule(tmp_path / "model.exe", PAYLOADS)


def _opened(path: Path) -> Bundle:
    bundle = Bundle.open(path)
    assert bundle is not None
    return bundle


def _rewritten(path: Path, table: bytes, **fields: int) -> Path:
    """The capsule with another table and a footer whose checksums are right."""
    bundle = _opened(path)
    content = path.read_bytes()
    start = bundle.archive.offset - FOOTER.size
    magic, version, _, offset, _, archive_size, zeros, _ = FOOTER.unpack(content[start : start + FOOTER.size])
    values = {"version": version, "crc": zlib.crc32(table), "offset": offset, "size": len(table), "archive": archive_size} | fields
    front = FOOTER.pack(magic, *values.values(), zeros, 0)[:-4]
    footer = front + struct.pack("<I", zlib.crc32(front))
    return kit.write(path.with_name("changed.exe"), content[:offset] + table + footer + content[start + FOOTER.size :])


def test_gives_back_what_was_laid_in(capsule: Path) -> None:
    bundle = _opened(capsule)
    content = capsule.read_bytes()
    assert content.startswith(kit.ELF_HEAD) and content.endswith(kit.archive())
    assert [(p.name, p.kind) for p in bundle.payloads] == [(p.name, p.kind) for p in PAYLOADS]
    for payload, source in zip(bundle.payloads, PAYLOADS, strict=True):
        assert payload.offset % ALIGNMENT == 0
        assert content[payload.offset : payload.offset + payload.size] == source.source
        assert payload.sha256 == hashlib.sha256(content[payload.offset : payload.offset + payload.size]).hexdigest()
    assert bundle.read("args", 100) == b"--top-k 3" and bundle.read("draft", 100) == b""
    assert bundle.read_text("chat_template", 100) == "{{ ünï }}" and bundle.read_text("draft", 100) is None
    assert (bundle.program.platform, bundle.archive.python, bundle.meta["capsule"]) == ("linux-x86_64", "3.11", "0.0.1")
    assert bundle.verify() == []
    assert not list(capsule.parent.glob(".capsule-*"))


def test_real_weights(smollm2: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    head, archive = kit.write(tmp_path / "head", kit.ELF_HEAD), kit.write(tmp_path / "archive", kit.archive())
    payloads = [PayloadSource("m", "model", smollm2)]
    write_bundle(tmp_path / "out", head=head, archive=archive, payloads=payloads, progress=lambda *now: told.append(now))
    bundle = _opened(tmp_path / "out")
    assert bundle.verify() == [] and bundle.payloads[0].size == smollm2.stat().st_size
    size = (tmp_path / "out").stat().st_size
    assert planned_size(head=head, archive=archive, payloads=payloads) == size
    assert told == sorted(told) and told[-1] == (size, size) and len(told) > 5


def test_pyinstaller_reads_the_archive_of_a_capsule(tmp_path: Path) -> None:
    source = kit.write(tmp_path / "data.txt", b"content")
    CArchiveWriter(str(tmp_path / "pkg"), [("data.txt", str(source), True, "x")], "libpython3.11.so.1.0")
    path = kit.capsule(tmp_path / "model.exe", PAYLOADS, code=(tmp_path / "pkg").read_bytes())
    assert CArchiveReader(str(path)).extract("data.txt") == b"content"
    assert _opened(path).archive.size == (tmp_path / "pkg").stat().st_size


def test_a_capsule_made_from_a_capsule_is_the_same(capsule: Path, tmp_path: Path) -> None:
    first = _opened(capsule)
    again = tmp_path / "again.exe"
    payloads = [PayloadSource(p.name, p.kind, first.range(p)) for p in first.payloads]
    write_bundle(again, head=first.head, archive=first.archive_range, payloads=payloads, meta=first.meta)
    assert again.read_bytes() == capsule.read_bytes()


def test_a_runtime_has_a_table_and_no_payloads(tmp_path: Path) -> None:
    bundle = _opened(kit.capsule(tmp_path / "runtime.exe"))
    assert bundle.payloads == () and bundle.payload("model") is None and bundle.verify() == []


@pytest.mark.parametrize("tail", [12_000, 500_000])
def test_a_signature_behind_the_cookie_is_tolerated(capsule: Path, tail: int) -> None:
    signed = kit.write(capsule.with_name("signed.exe"), capsule.read_bytes() + os.urandom(tail))
    bundle = _opened(signed)
    assert bundle.read("args", 100) == b"--top-k 3" and bundle.verify() == []
    assert bundle.archive_range.size == len(kit.archive())


@pytest.mark.parametrize("where", range(0, 20, 3))
def test_the_cookie_is_found_across_the_edges_of_chunks(capsule: Path, where: int) -> None:
    tail = 65536 - 88 + where
    assert _opened(kit.write(capsule.with_name("x"), capsule.read_bytes() + bytes(tail))).payloads


def test_files_that_are_no_capsules(tmp_path: Path) -> None:
    plain_program = kit.write(tmp_path / "plain.exe", kit.PE_HEAD + kit.archive())
    contents = {"a": b"", "b": b"MEI", "c": kit.archive(), "d": kit.gguf(), "e": kit.COOKIE_MAGIC * 1000}
    for path in (Path("/bin/ls"), plain_program, *(kit.write(tmp_path / name, content) for name, content in contents.items())):
        assert Bundle.open(path) is None
    assert "is a program for windows-x86_64, but not a capsule" in not_a_capsule(plain_program).message
    assert "neither a GGUF file nor a capsule" in not_a_capsule(tmp_path / "a").message
    with pytest.raises(OperatorError, match="does not exist"):
        Bundle.open(tmp_path / "missing")


def test_one_flipped_byte_anywhere_is_noticed(capsule: Path) -> None:
    """Every byte but the bootloader, the padding and the magics (a file without them is no capsule) is under some checksum."""
    bundle = _opened(capsule)
    content = capsule.read_bytes()
    table_end = bundle.archive.offset
    places = [p.offset + p.size // 2 for p in bundle.payloads] + [bundle.archive.offset + 5]
    places += range(table_end - FOOTER.size + len(MAGIC), table_end, 3)
    places += range(table_end - FOOTER.size - 40, table_end - FOOTER.size, 7)
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 0x10
        path = kit.write(capsule.with_name("damaged.exe"), bytes(damaged))
        try:
            assert _opened(path).verify(), place
        except OperatorError as error:
            assert "damaged capsule" in error.message or "format" in error.message


def test_verify_names_what_is_damaged(capsule: Path) -> None:
    bundle = _opened(capsule)
    with open(capsule, "r+b") as file:
        file.seek(bundle.payloads[1].offset)
        file.write(b"#")
    problems = bundle.verify()
    assert len(problems) == 1 and "args args.txt is damaged" in problems[0]
    with pytest.raises(OperatorError, match="args inside .* is damaged"):
        bundle.read("args", 100)
    with pytest.raises(OperatorError, match="at most 5 are allowed"):
        bundle.read("args", 5)


def test_footers_that_lie(capsule: Path) -> None:
    table = b'{"format":1,"head_size":10,"archive_sha256":"' + b"0" * 64 + b'","payloads":[]}'
    assert _opened(_rewritten(capsule, table)).payloads == ()
    for fields in ({"offset": 2**63}, {"size": 2**63}, {"size": 0}, {"offset": 0}, {"size": MAX_TABLE_BYTES + 1}, {"archive": 5}):
        with pytest.raises(OperatorError, match="does not fit the file"):
            Bundle.open(_rewritten(capsule, table, **fields))
    with pytest.raises(OperatorError, match="format 2 of the capsule file"):
        Bundle.open(_rewritten(capsule, table, version=2))
    with pytest.raises(OperatorError, match="table's checksum"):
        Bundle.open(_rewritten(capsule, table, crc=1))


def _row(**changes: object) -> str:
    row = {"name": "a", "kind": "model", "offset": ALIGNMENT, "size": 100, "sha256": "0" * 64} | changes
    return "{" + ",".join(f'"{key}":"{value}"' if isinstance(value, str) else f'"{key}":{value}' for key, value in row.items()) + "}"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (_row(offset=ALIGNMENT + 1), "where it cannot"),
        (_row(offset=-ALIGNMENT), "where it cannot"),
        (_row(offset=0), "where it cannot"),
        (_row(offset=2**62), "where it cannot"),
        (_row(size=2**62), "where it cannot"),
        (_row(size=-1), "where it cannot"),
        (_row(size=ALIGNMENT + 1) + "," + _row(name="b", kind="x", offset=2 * ALIGNMENT), "where it cannot"),
        (_row(offset=2**70), "where it cannot"),
        (_row(size=1.5), "cannot be read"),
        (_row(sha256="z" * 64), "malformed"),
        (_row(name=""), "name of its own"),
        (_row() + "," + _row(offset=2 * ALIGNMENT), "name of its own"),
        (_row() + "," + _row(name="b", offset=2 * ALIGNMENT), "more than one model"),
        (",".join(_row(name=f"{i}", kind="x", size=0) for i in range(300)), "more than 256"),
        ("[" * 400_000, "cannot be read"),
        ("\x00", "cannot be read"),
    ],
)
def test_tables_that_lie(capsule: Path, rows: str, words: str) -> None:
    table = f'{{"format":1,"head_size":2000,"archive_sha256":"{"0" * 64}","payloads":[{rows}]}}'.encode()
    with pytest.raises(OperatorError, match=words):
        Bundle.open(_rewritten(capsule, table))


def test_unknown_members_of_the_table_are_ignored(capsule: Path) -> None:
    table = f'{{"format":1,"head_size":2000,"archive_sha256":"{"0" * 64}","new":{{}},"payloads":[{_row(new=1)}]}}'.encode()
    assert _opened(_rewritten(capsule, table)).payloads[0].name == "a"


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_gives_a_traceback(capsule: Path, data: st.DataObject) -> None:
    bundle = _opened(capsule)
    content = bytearray(capsule.read_bytes())
    first = bundle.payloads[-1].offset
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(first, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, 200)) if data.draw(st.booleans()) else 0
    path = kit.write(capsule.with_name("damaged.exe"), bytes(content[: len(content) - end]))
    try:
        damaged = Bundle.open(path)
        if damaged is not None:
            damaged.verify()
            damaged.read("args", 1000)
    except OperatorError as error:
        assert "\n" not in error.message and str(path) in error.message


def test_every_truncation_is_noticed(capsule: Path) -> None:
    content = capsule.read_bytes()
    for size in [*range(len(content) - 1, len(content) - 120, -1), len(content) // 2, 100, 1]:
        path = kit.write(capsule.with_name("short.exe"), content[:size])
        assert Bundle.open(path) is None
    assert "cut short" in not_a_capsule(kit.write(capsule.with_name("short.exe"), content[:-1])).message


def test_the_specification_says_the_same() -> None:
    text = (ROOT / "spec" / "file-format.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if re.match(r"\| \d+ \| \d+ \|", line)]
    offset = 0
    for row in rows:
        assert int(row[0]) == offset
        offset += int(row[1])
    assert offset == FOOTER.size and len(rows) == len(FOOTER.unpack(bytes(FOOTER.size)))
    assert MAGIC.hex(" ") in text and f"{ALIGNMENT:,}" in text and f"{MAX_TABLE_BYTES:,}" in text
    for kind in MODEL_KINDS:
        assert f"`{kind}`" in text


# ---- writing ---------------------------------------------------------------------------------------------------------


def test_the_execute_bit_follows_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        path = kit.capsule(tmp_path / "model.exe", PAYLOADS)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o750


def test_an_old_program_is_replaced_and_nothing_else(capsule: Path, tmp_path: Path) -> None:
    kit.capsule(capsule)
    assert _opened(capsule).payloads == ()
    weights = kit.write(tmp_path / "precious.gguf", kit.gguf())
    with pytest.raises(OperatorError, match="is there already"):
        kit.capsule(weights)
    assert weights.read_bytes() == kit.gguf()
    with pytest.raises(OperatorError, match="not a regular file"):
        kit.capsule(kit.write(tmp_path / "folder" / "x", b"").parent)
    with pytest.raises(OperatorError, match="no directory"):
        write_bundle(tmp_path / "none" / "x", head=capsule, archive=capsule, payloads=[])


def test_failures_leave_no_trace(capsule: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def attempt(words: str, **changes: object) -> None:
        before = sorted(tmp_path.rglob("*"))
        arguments: dict[str, object] = {"head": _opened(capsule).head, "archive": _opened(capsule).archive_range, "payloads": PAYLOADS}
        with pytest.raises(OperatorError, match=words):
            write_bundle(tmp_path / "out.exe", **(arguments | changes))  # type: ignore[arg-type]
        assert sorted(tmp_path.rglob("*")) == before

    attempt("became shorter", payloads=[PayloadSource("a", "model", FileRange(capsule, 0, 10 * capsule.stat().st_size))])
    attempt("does not exist", payloads=[PayloadSource("a", "model", tmp_path / "missing")])
    attempt("archive made by PyInstaller", archive=FileRange(capsule, 0, 1000))

    def full(descriptor: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        attempt("disk became full")
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 10**12, 5000))
        attempt("needs .* KiB, and .* has 4.9 KiB free")


def test_a_table_that_could_not_be_read_is_not_written(capsule: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="more than one model"):
        kit.capsule(tmp_path / "x.exe", [PayloadSource("a", "model", b"1"), PayloadSource("b", "model", b"2")])
    with pytest.raises(ValueError, match="too large"):
        kit.capsule(tmp_path / "x.exe", [], meta={"a": "x" * 2 * MAX_TABLE_BYTES})


@pytest.mark.parametrize("head", [kit.PE_HEAD, b"\xcf\xfa\xed\xfe\x0c\0\0\1" + bytes(2000)])
def test_programs_of_4_gib_are_refused_where_they_would_not_start(tmp_path: Path, head: bytes) -> None:
    huge = tmp_path / "huge"
    with open(huge, "wb") as file:
        file.truncate(2**32)  # sparse
    with pytest.raises(OperatorError, match="starts no program of 4 GiB or more"):
        kit.capsule(tmp_path / "x.exe", [PayloadSource("a", "model", huge)], head=head)


def test_places_beyond_4_gib(tmp_path: Path) -> None:
    """64-bit places all the way: written by hand as a sparse file, since copying 5 GiB would prove nothing more."""
    small = kit.capsule(tmp_path / "small.exe", [PayloadSource("a", "model", b"weights")])
    bundle = _opened(small)
    shift = 5 * 2**30
    offset = bundle.payloads[0].offset + shift
    row = _row(offset=offset, size=7, sha256=hashlib.sha256(b"weights").hexdigest())
    code = kit.archive()
    table = f'{{"format":1,"head_size":2000,"archive_sha256":"{hashlib.sha256(code).hexdigest()}","payloads":[{row}]}}'.encode()
    front = FOOTER.pack(MAGIC, 1, zlib.crc32(table), offset + 8, len(table), len(code), b"", 0)[:-4]
    with open(tmp_path / "large.exe", "wb") as file:
        file.write(kit.ELF_HEAD)
        file.seek(offset)
        file.write(b"weights\0" + table + front + struct.pack("<I", zlib.crc32(front)) + code)
    large = _opened(tmp_path / "large.exe")
    assert large.read("model", 100) == b"weights" and large.payloads[0].offset > 2**32 and large.verify() == []


def test_without_the_kernels_copying_the_result_is_the_same(capsule: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*arguments: object) -> int:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", unsupported, raising=False)
    assert kit.capsule(tmp_path / "other.exe", PAYLOADS).read_bytes() == capsule.read_bytes()


def test_ctrl_c_leaves_no_trace(tmp_path: Path, smollm2: Path) -> None:
    code = f"""
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from server.bundle import PayloadSource, write_bundle
from tests import capsule_kit as kit
here = Path(sys.argv[1])
def slowly(done, total):
    print(done, flush=True)
    time.sleep(0.2)
write_bundle(here / "out.exe", head=kit.write(here / "head", kit.ELF_HEAD), archive=kit.write(here / "archive", kit.archive()),
             payloads=[PayloadSource("m", "model", Path(sys.argv[2]))], progress=slowly)
"""
    command = [sys.executable, "-c", code, str(tmp_path), str(smollm2)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(".capsule-*")) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert list(tmp_path.glob(".capsule-*"))
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=60)
    assert b"KeyboardInterrupt" in errors
    assert sorted(p.name for p in tmp_path.iterdir()) == ["archive", "head"]


def test_copies_of_files(capsule: Path, tmp_path: Path) -> None:
    copy_file(FileRange(capsule, 10, 1000), tmp_path / "part")
    assert (tmp_path / "part").read_bytes() == capsule.read_bytes()[10:1010]
    assert not os.access(tmp_path / "part", os.X_OK) or sys.platform == "win32"
    copy_file(FileRange(capsule, 0, capsule.stat().st_size), tmp_path / "again.exe", program=True)
    assert os.access(tmp_path / "again.exe", os.X_OK)
    with pytest.raises(OperatorError, match="is there already"):
        copy_file(FileRange(capsule, 10, 1000), tmp_path / "again.exe")
