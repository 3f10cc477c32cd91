"""The browser and the boxes appear only where somebody would see them, and never with our own libraries in their way."""

from __future__ import annotations

import os
import stat
import sys
import time
from pathlib import Path

import pytest

from server.lifecycle import desktop
from server.lifecycle.desktop import can_open_browser, is_double_click, open_browser, outside_environment, show_fatal


@pytest.mark.parametrize(
    ("environment", "platform", "expected"),
    [
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({}, "linux", False),
        ({"DISPLAY": ""}, "linux", False),
        ({"DISPLAY": ":0", "CI": "true"}, "linux", False),
        ({"DISPLAY": ":0", "CI": "false"}, "linux", True),
        ({"DISPLAY": "localhost:10.0", "SSH_CONNECTION": "1.2.3.4 5 6 7"}, "linux", False),
        ({}, "win32", True),
        ({"CI": "1"}, "win32", False),
        ({"SSH_TTY": "/dev/ttys0"}, "darwin", False),
        ({}, "darwin", True),
    ],
)
def test_when_a_browser_can_be_opened(environment: dict[str, str], platform: str, expected: bool) -> None:
    assert can_open_browser(environment, platform) is expected


def test_only_a_start_without_arguments_and_terminal_is_a_double_click(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desktop, "can_open_browser", lambda environment: True)
    monkeypatch.setattr(desktop, "is_terminal", lambda: False)
    assert is_double_click([])
    assert not is_double_click(["--port", "80"])
    monkeypatch.setattr(desktop, "is_terminal", lambda: True)
    assert not is_double_click([])
    monkeypatch.setattr(desktop, "owns_console", lambda: True)
    assert is_double_click([])
    monkeypatch.setattr(desktop, "can_open_browser", lambda environment: False)
    assert not is_double_click([])


def test_other_programs_get_the_environment_that_we_were_given() -> None:
    ours = {"PATH": "/bin", "_PYI_ARCHIVE_FILE": "x", "_PYI_APPLICATION_HOME_DIR": "/tmp/_MEIx", "LD_LIBRARY_PATH": "/tmp/_MEIx"}
    assert outside_environment(ours) == {"PATH": "/bin"}
    assert outside_environment({**ours, "LD_LIBRARY_PATH_ORIG": "/opt/lib"}) == {"PATH": "/bin", "LD_LIBRARY_PATH": "/opt/lib"}
    plain = {"PATH": "/bin", "LD_LIBRARY_PATH": "/opt/lib"}
    assert outside_environment(plain) == plain


def _program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def _wait_for(path: Path) -> str:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if path.exists() and path.read_text().endswith("\n"):
            return path.read_text().strip()
        time.sleep(0.02)
    raise AssertionError(f"{path} was not written")


@pytest.mark.skipif(sys.platform != "linux", reason="uses the Linux programs' names")
def test_the_next_browser_is_tried_when_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = tmp_path / "seen"
    _program(tmp_path / "xdg-open", "exit 3")
    _program(tmp_path / "sensible-browser", f'echo "$1" > {seen}')
    monkeypatch.setenv("PATH", str(tmp_path))
    open_browser("http://127.0.0.1:8080/#launch=abc")
    assert _wait_for(seen) == "http://127.0.0.1:8080/#launch=abc"


@pytest.mark.skipif(sys.platform != "linux", reason="uses the Linux programs' names")
def test_a_fatal_error_without_a_terminal_is_a_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = tmp_path / "seen"
    _program(tmp_path / "zenity", f'for a in "$@"; do echo "$a"; done > {seen}')
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(desktop, "is_terminal", lambda *streams: False)
    monkeypatch.setattr(desktop, "can_open_browser", lambda environment: True)
    show_fatal("it <b>broke</b>")
    assert "--text=it <b>broke</b>" in _wait_for(seen).splitlines()
    seen.unlink()
    monkeypatch.setattr(desktop, "is_terminal", lambda *streams: True)
    show_fatal("it broke")
    assert not seen.exists()


def test_no_browser_at_all_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    desktop._open_browser("http://127.0.0.1:1/")
    assert os.environ["PATH"] == str(tmp_path)
