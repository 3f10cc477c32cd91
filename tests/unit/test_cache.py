"""The cache directory is ours alone, or it is not used; locks hold between processes and end with them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from models.cache import default_cache_dir, locked, private_directory
from server.errors import OperatorError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("CAPSULE_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fallback = tmp_path / "temporary" / f"capsule-{os.geteuid()}"
    assert default_cache_dir() == fallback and stat.S_IMODE(fallback.stat().st_mode) == 0o700
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    assert default_cache_dir() == fallback
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    assert default_cache_dir() == home / ".cache" / "capsule" and stat.S_IMODE((home / ".cache" / "capsule").stat().st_mode) == 0o700
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert default_cache_dir() == home / ".cache" / "capsule"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache_dir() == tmp_path / "xdg" / "capsule"
    monkeypatch.setenv("CAPSULE_CACHE_DIR", str(tmp_path / "größe 模型"))
    assert default_cache_dir() == tmp_path / "größe 模型"


def test_a_home_that_cannot_be_written_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/proc/self")  # a directory in which nobody, root included, can make one
    assert default_cache_dir().parent == tmp_path / "temporary"


def test_a_directory_of_others_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    directory = tmp_path / "cache"
    directory.mkdir()
    monkeypatch.setenv("CAPSULE_CACHE_DIR", str(directory))
    for mode in (0o777, 0o770, 0o702):
        directory.chmod(mode)
        with pytest.raises(OperatorError, match="written to by other users"):
            default_cache_dir()
    directory.chmod(0o755)
    assert default_cache_dir() == directory
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OperatorError, match="belongs to another user"):
        default_cache_dir()


def test_what_stands_in_the_way_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    planted = tmp_path / "temporary" / f"capsule-{os.geteuid()}"
    (tmp_path / "elsewhere").mkdir()
    planted.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OperatorError, match="in the way"):
        default_cache_dir()
    planted.unlink()
    planted.write_text("")
    with pytest.raises(OperatorError, match="in the way"):
        default_cache_dir()
    monkeypatch.setenv("CAPSULE_CACHE_DIR", "/proc/self/nothing")
    with pytest.raises(OperatorError, match="cannot be made"):
        default_cache_dir()
    with pytest.raises(OperatorError, match="cannot be made"):
        private_directory(planted / "below")


def test_locks_exclude_and_end_with_their_process(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    code = """
import sys
from pathlib import Path
from models.cache import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code, str(lock)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"held\n"
        waiting, entered = threading.Event(), threading.Event()

        def enter() -> None:
            with locked(lock, waiting.set):
                entered.set()

        thread = threading.Thread(target=enter)
        thread.start()
        assert waiting.wait(60) and not entered.wait(0.3)
        child.kill()
        assert entered.wait(60)
        thread.join()
