"""Only directories that are provably ours and provably left behind are removed; everything else in the temporary directory stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from server.lifecycle import extraction
from server.lifecycle.extraction import MARKER, sweep
from server.locks import lock

ROOT = Path(__file__).resolve().parents[3]


def _directory(parent: Path, name: str, *, marker: bool = True) -> Path:
    directory = parent / name
    (directory / "deep" / "down").mkdir(parents=True)
    (directory / "deep" / "down" / "library.so").write_bytes(b"x" * 100)
    if marker:
        (directory / MARKER).touch()
    return directory


def test_a_left_behind_directory_goes(tmp_path: Path) -> None:
    stale = _directory(tmp_path, "_MEIabc")
    assert sweep(tmp_path) == [stale]
    assert not stale.exists()


def test_a_directory_in_use_stays(tmp_path: Path) -> None:
    """The front or one of its children holds a shared lock; two may at once."""
    used = _directory(tmp_path, "_MEIused")
    front, runner = lock(used / MARKER, shared=True), lock(used / MARKER, shared=True)
    assert front is not None and runner is not None
    assert sweep(tmp_path) == [] and used.exists()
    os.close(front)
    assert sweep(tmp_path) == [], "a runner still runs from there"
    os.close(runner)
    assert sweep(tmp_path) == [used]


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    outside = _directory(tmp_path / "elsewhere", "_MEIreal")
    foreign = _directory(tmp_path, "_MEIforeign", marker=False)
    other_name = _directory(tmp_path, "MEI")
    linked = tmp_path / "_MEIlink"
    linked.symlink_to(outside)
    inner = _directory(tmp_path, "_MEIinner", marker=False)
    (inner / MARKER).symlink_to(outside / MARKER)
    folder = _directory(tmp_path, "_MEIfolder", marker=False)
    (folder / MARKER).mkdir()
    (tmp_path / "_MEIfile").write_text("x")
    assert sweep(tmp_path) == []
    for kept in (outside, foreign, other_name, linked, inner, folder, tmp_path / "_MEIfile"):
        assert kept.exists(), kept


def test_links_inside_a_stale_directory_are_not_followed(tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (treasure / "gold").write_text("mine")
    stale = _directory(tmp_path, "_MEIabc")
    (stale / "way").symlink_to(treasure)
    assert sweep(tmp_path) == [stale]
    assert (treasure / "gold").read_text() == "mine"


@pytest.mark.skipif(sys.platform == "win32", reason="owners are a POSIX matter")
def test_another_users_directory_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = _directory(tmp_path, "_MEIabc")
    monkeypatch.setattr("server.lifecycle.extraction.os.geteuid", lambda: theirs.stat().st_uid + 1)
    assert sweep(tmp_path) == [] and theirs.exists()


def test_a_missing_parent_is_no_error(tmp_path: Path) -> None:
    assert sweep(tmp_path / "nowhere") == []


def test_a_killed_process_leaves_a_directory_that_can_be_swept(tmp_path: Path) -> None:
    directory = _directory(tmp_path, "_MEIowned", marker=False)
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); sys.frozen = True; sys._MEIPASS = sys.argv[2]\n"
        "from server.lifecycle import extraction\n"
        "extraction.hold(); print('held', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(ROOT), str(directory)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as pipe:
        assert pipe.readline().strip() == b"held"
        assert [path.name for path in directory.iterdir() if path.name.startswith(MARKER)] == [MARKER]
        assert sweep(tmp_path) == []
        process.kill()
        process.wait()
    assert sweep(tmp_path) == [directory]


def test_the_last_step_removes_our_own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = _directory(tmp_path, "_MEIown", marker=False), _directory(tmp_path, "_MEIother")
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "_MEIPASS", str(own), raising=False)
    monkeypatch.setattr(extraction, "_held", None)
    extraction.hold()
    assert sweep(tmp_path, keep=own) == [other]
    extraction.remove_own()
    assert not own.exists()


def test_from_sources_there_is_nothing_to_hold_or_remove() -> None:
    assert extraction.own_directory() is None
    extraction.hold()
    extraction.remove_own()
    assert extraction._held is None
