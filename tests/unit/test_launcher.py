"""The entry point: words pick commands, quick questions load nothing heavy, and whatever fails is one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import launcher
from server import __version__
from server.errors import ClientError, OperatorError

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"llama_cpp", "aiohttp", "asyncio", "ctypes", "numpy", "ssl", "jinja2", "huggingface_hub", "multiprocessing"}


def _start(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "launcher.py"), *argv],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "CI": "true", **environment},
    )


@pytest.mark.parametrize(
    "argv", [["--version"], ["--help"], ["-h"], ["--licenses"], ["serve", "--help"], ["chat", "--version"], ["chat", "--help"]]
)
def test_quick_questions_load_neither_native_code_nor_the_server(argv: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", str(ROOT / "launcher.py"), *argv], capture_output=True, text=True, timeout=120, check=True
    )
    loaded = {line.rsplit("|", 1)[-1].strip().partition(".")[0] for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "server" in loaded and not loaded & HEAVY, loaded & HEAVY
    assert done.stdout.strip()


def test_what_the_quick_questions_say() -> None:
    assert _start("--version").stdout == f"capsule {__version__}\n"
    assert "--ctx-size" in _start("--help").stdout
    assert "[4096, from CAPSULE_CTX_SIZE]" in " ".join(_start("--help", CAPSULE_CTX_SIZE="4096").stdout.split())
    chat = _start("chat", "--help").stdout
    assert "Ctrl-C stops an answer" in chat and "--temp" in chat and "--port" not in chat and "bundle" not in chat
    assert "Apache License" in _start("--licenses").stdout


def test_the_runner_can_be_started_before_the_server_is_imported() -> None:
    """Loading the model overlaps with importing aiohttp only if nothing on the way to `launch` imports it."""
    program = "import sys, launcher, server.commands.serve, server.runners.process; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & (HEAVY | {"email", "http", "zipfile", "argparse", "concurrent"}), loaded


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--prot", "80"], ["--prot", "--port"]),
        (["--port", "x"], ["--port", "'x'"]),
        (["chat", "--parallel", "0"], ["--parallel", "0"]),
        (["-m", "/nowhere/x.gguf"], ["x.gguf"]),
        (["--host", "0.0.0.0"], ["0.0.0.0", "--api-key"]),
        (["serv"], ["'serv'"]),
        (["bundle"], ["bundle"]),
        (["inspect", "/nowhere/x.exe"], ["x.exe"]),
    ],
)
def test_mistakes_end_with_a_sentence_and_code_2(argv: list[str], words: list[str], tmp_path: Path) -> None:
    done = _start(*argv, CAPSULE_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 2 and not done.stdout, done
    assert done.stderr.startswith("error: ") and "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    log = tmp_path / "cache" / "errors.log"
    if argv[0] in ("bundle", "inspect"):
        assert not log.exists()
    else:
        assert str(log) in done.stderr and words[0] in log.read_text()


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (OperatorError("it cannot be", hint="do that"), 2, ["error: it cannot be\ndo that"]),
        (OperatorError("a \x1b[31mred\x1b[0m name"), 2, ["\\x1b[31mred"]),
        (ClientError("no"), 1, ["error: no"]),
        (ZeroDivisionError("by zero"), 1, ["inside the program", "ZeroDivisionError: by zero", "errors.log"]),
        (RecursionError(), 1, ["RecursionError"]),
    ],
)
def test_any_exception_is_told_in_words(
    error: Exception,
    code: int,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    def fail(command: str, argv: list[str]) -> int:
        raise error

    monkeypatch.setenv("CAPSULE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(launcher, "_run", fail)
    assert launcher.main([]) == code
    text = capsys.readouterr().err
    assert all(word in text for word in words) and "Traceback" not in text
    if code == 1 and not isinstance(error, ClientError):
        assert "Traceback" in (tmp_path / "cache" / "errors.log").read_text()


def test_words_pick_commands_and_serve_is_what_happens_without(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, list[str]]] = []

    def run(command: str, argv: list[str]) -> int:
        seen.append((command, argv))
        return 0

    monkeypatch.setattr(launcher, "_run", run)
    for argv in (
        [],
        ["--port", "1"],
        ["serve", "--port", "1"],
        ["chat"],
        ["bundle", "--help"],
        ["runner"],
        ["probe", "x"],
        ["render", "1", "2"],
    ):
        assert launcher.main(argv) == 0
    assert seen == [
        ("serve", []),
        ("serve", ["--port", "1"]),
        ("serve", ["--port", "1"]),
        ("chat", []),
        ("bundle", ["--help"]),
        ("runner", []),
        ("probe", ["x"]),
        ("render", ["1", "2"]),
    ]


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX pipe")
def test_a_reader_that_went_away_is_no_error() -> None:
    done = subprocess.run(
        f"'{sys.executable}' '{ROOT / 'launcher.py'}' --licenses | true", shell=True, capture_output=True, text=True, check=False
    )
    assert not done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX permissions and names")
def test_odd_surroundings(tmp_path: Path) -> None:
    """No HOME, a directory that cannot be written, an ASCII terminal, no standard output at all."""
    odd = tmp_path / "größe 模型"
    odd.mkdir()
    odd.chmod(0o555)
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "TMPDIR": str(tmp_path)}
    argv = [sys.executable, str(ROOT / "launcher.py"), "-m", "größe.gguf"]
    done = subprocess.run(argv, capture_output=True, cwd=odd, env=environment, check=False)
    assert done.returncode == 2 and b"Traceback" not in done.stderr, done.stderr
    closed = subprocess.run(["/bin/sh", "-c", f"'{sys.executable}' '{ROOT / 'launcher.py'}' --version >&- 2>&-"], check=False)
    assert closed.returncode in (0, 1)
