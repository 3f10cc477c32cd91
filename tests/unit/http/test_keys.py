"""Keys: where they come from, that a bad source is the operator's mistake, and that a changed file takes effect."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from server.errors import OperatorError
from server.http.keys import CHECK_SECONDS, KeyRing, read_key_file

FILE = """# who may use this
alpha
beta  team-b
gamma team-c 2.5 batch
  delta boss 1 interactive admin
eps - - - admin
"""


def write(path: Path, text: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


def test_the_lines_of_a_file(tmp_path: Path) -> None:
    keys = read_key_file(write(tmp_path / "keys", FILE))
    assert [(k.name, k.weight, k.max_class, k.admin) for k in keys] == [
        ("line 2", 1.0, "interactive", False),
        ("team-b", 1.0, "interactive", False),
        ("team-c", 2.5, "batch", False),
        ("boss", 1.0, "interactive", True),
        ("line 6", 1.0, "interactive", True),
    ]


def test_limits_follow_in_any_order(tmp_path: Path) -> None:
    text = "a== tpm=60000 running=8\nb team 2 batch - queued=0 running=1 tpm=1\nc\nd team 2 batch admin running=1 tpm=1 queued=0\n"
    keys = read_key_file(write(tmp_path / "keys", text))
    assert [(k.name, k.running, k.queued, k.tpm) for k in keys] == [
        ("line 1", 8, None, 60000),
        ("team", 1, 0, 1),
        ("line 3", None, None, None),
        ("team", 1, 0, 1),
    ]
    assert keys[3].admin and not keys[1].admin, "one account, but only one of its keys is an admin's"
    ring = KeyRing((), tmp_path / "keys")
    assert ring.n_accounts == 3 and ring.find("a==") == keys[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment\n",
        "k n x",
        "k n 0",
        "k n -1",
        "k n nan",
        "k n inf",
        "k n 1 urgent",
        "k n 1 batch root",
        "k n 1 batch admin x",
        "k running=0",
        "k queued=-1",
        "k tpm=0",
        "k tpm=1e3",
        "k tpm=\u0663",
        "k tpm=",
        "k tpm=1 tpm=1",
        "k tpm=1 name",
        "k name runing=1",
        "k team 1\nother team 2",
        "k team queued=1\nother team",
        "k\nk",
        b"\xff\xfe",
    ],
)
def test_malformed_files_never_quote_the_key(tmp_path: Path, text: str | bytes) -> None:
    secret = text if isinstance(text, bytes) else text.replace("k", "SECRETKEY")
    with pytest.raises(OperatorError) as refused:
        read_key_file(write(tmp_path / "keys", secret))
    assert "SECRETKEY" not in refused.value.message + refused.value.hint


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    if sys.platform != "win32":
        for mode in (0o644, 0o640, 0o602):
            with pytest.raises(OperatorError, match="other users"):
                read_key_file(write(tmp_path / "keys", "k", mode))
    with pytest.raises(OperatorError, match="cannot be read"):
        read_key_file(tmp_path / "missing")
    with pytest.raises(OperatorError):
        read_key_file(tmp_path)


def test_keys_on_the_command_line() -> None:
    ring = KeyRing.of(" one ,two", None)
    assert ring.required and ring.find("one") and ring.find("two") and not ring.find("") and not ring.find("one,two")
    found = ring.find("one")
    assert found and not found.admin
    assert not KeyRing.of(None, None).required
    for empty in ("", ",", "a,,b"):
        with pytest.raises(OperatorError, match="--api-key"):
            KeyRing.of(empty, None)


def test_a_changed_file_is_read_again_and_a_broken_one_keeps_the_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    path = write(tmp_path / "keys", "first")
    ring = KeyRing(path=path, clock=lambda: now)
    assert ring.find("first")

    def change(text: str, mode: int = 0o600) -> None:
        nonlocal now
        write(path, text, mode)
        os.utime(path, ns=(int(1e18) + int(now * 1e9), int(1e18) + int(now * 1e9)))
        now += CHECK_SECONDS

    change("second admin-key 1 normal admin")
    found = ring.find("second")
    assert found and found.admin and not ring.find("first")
    change("broken line of 9 words SECRETKEY x y")
    assert ring.find("second") and ring.required
    path.unlink()
    now += CHECK_SECONDS
    assert ring.find("second")
    change("third")
    assert ring.find("third") and not ring.find("second")
    assert "SECRETKEY" not in caplog.text and "stay" in caplog.text
