"""Whatever standard output is, printing never fails, and foreign text never steers the terminal."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import OperatorError
from server.lifecycle.console import escaped, record_error, say, set_up_log

ROOT = Path(__file__).resolve().parents[3]
_RUN = "import sys; sys.path.insert(0, sys.argv[1]); from server.lifecycle.console import prepare, say; "


@given(st.text())
def test_no_control_character_survives(text: str) -> None:
    clean = escaped(text)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", clean)
    if not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", text):
        assert clean == text


def test_emoji_sequences_and_lines_stay() -> None:
    text = "a\tb\nfamily: \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \u0639\u0631\u0628\u064a"
    assert escaped(text) == text
    assert escaped("\x1b[2J\x9b31m\u202e") == "\\x1b[2J\\x9b31m\\u202e"


@pytest.mark.parametrize("end", ["closed", "none", "ascii"])
def test_any_standard_output(end: str) -> None:
    body = {
        "closed": "import os; os.close(1); prepare(); say('gr\\xfc\\xdfe')",
        "none": "sys.stdout = sys.stderr = None; prepare(); say('gr\\xfc\\xdfe'); print('x')",
        "ascii": "prepare(); say('gr\\xfc\\xdfe \\U0001f47e')",
    }[end]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", _RUN + body, str(ROOT)], capture_output=True, env=environment, check=False)
    assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr
    if end == "ascii":
        assert done.stdout.strip() == b"gr??e ?"


def test_say_to_a_broken_stream() -> None:
    stream = io.StringIO()
    stream.close()
    say("x", file=stream)


def test_the_log_is_one_line_a_record_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from server.lifecycle.console import set_up_log\n"
        "log = set_up_log(verbose=False, file=sys.argv[2])\n"
        "log.info('loaded %s', 'a\\x1b[31mb'); log.debug('too much')\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(ROOT), str(path)], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\d\d:\d\d:\d\d loaded a\\x1b\[31mb\n", done.stderr)
    assert "INFO capsule loaded a\\x1b[31mb" in path.read_text() and "too much" not in path.read_text()
    if sys.platform != "win32":
        assert path.stat().st_mode & 0o077 == 0


def test_an_unwritable_log_file_is_the_operators_mistake(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="--log-file"):
        set_up_log(verbose=False, file=str(tmp_path / "no" / "where.log"))


def test_fatal_errors_are_kept_in_a_bounded_private_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPSULE_CACHE_DIR", str(tmp_path / "cache"))
    path = record_error("first")
    assert path is not None and path.parent == tmp_path / "cache"
    assert record_error("second \udcff") == path
    assert [line.split(" ", 2)[2] for line in path.read_text().splitlines()] == ["first", "second \\udcff"]
    if sys.platform != "win32":
        assert path.stat().st_mode & 0o777 == 0o600
    path.write_text("x" * 1024 * 1024)
    record_error("last")
    assert path.read_text().endswith("last\n") and path.stat().st_size < 1024


def test_where_nothing_can_be_written_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CAPSULE_CACHE_DIR", str(tmp_path / "file"))
    assert record_error("x") is None
