"""The terminal chat: Ctrl-C stops the answer and not the program, a pipe gets the answer and nothing else, errors end no chat."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are a POSIX matter", allow_module_level=True)

import pty

SCRIPTED = str(Path(__file__).with_name("scripted.py"))


class Terminal:
    """`chat` at a pseudo-terminal."""

    def __init__(self, home: Path, mode: str = "ok", *flags: str) -> None:
        self._master, slave = pty.openpty()
        argv = [sys.executable, SCRIPTED, mode, str(home), "chat", *flags]
        environment = {**os.environ, "CAPSULE_CACHE_DIR": str(home / "cache")}
        self.process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, env=environment, preexec_fn=_own_terminal)
        os.close(slave)
        self._seen = ""

    def expect(self, pattern: str, timeout: float = 60) -> str:
        """Everything up to the end of the first match, which is then forgotten."""
        deadline = time.monotonic() + timeout
        while (found := re.search(pattern, self._seen)) is None:
            ready, _, _ = select.select([self._master], [], [], 0.1)
            if ready:
                try:
                    self._seen += os.read(self._master, 4096).decode().replace("\r\n", "\n")
                    continue
                except OSError:
                    raise AssertionError(f"the chat ended before {pattern!r}: {self._seen!r}") from None
            assert time.monotonic() < deadline, f"no {pattern!r} in {self._seen!r}"
        before, self._seen = self._seen[: found.end()], self._seen[found.end() :]
        return before

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def ended(self) -> int:
        try:
            while os.read(self._master, 4096):
                pass
        except OSError:
            pass  # Linux: the other end is closed
        return self.process.wait(30)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._master)


def _own_terminal() -> None:
    """In the child: a session of its own whose Ctrl-C comes from the pseudo-terminal."""
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    one = Terminal(tmp_path)
    yield one
    one.close()


def test_answers_stream_and_the_end_of_input_ends_the_chat(terminal: Terminal) -> None:
    terminal.expect("> ")
    terminal.type("count 3\n")
    assert "\n0 1 2 \n" in terminal.expect(r"2 \n> ")
    terminal.type("\x04")
    assert terminal.ended() == 0


def test_control_c_stops_the_answer_and_not_the_program(terminal: Terminal) -> None:
    terminal.expect("> ")
    terminal.type("flood 100000\n")
    terminal.expect("0000000100")
    terminal.type("\x03")
    terminal.expect(r"\(stopped\)\n> ")
    terminal.type("hold\n")  # says nothing at all
    terminal.expect("hold\n")
    time.sleep(1.0)
    terminal.type("\x03")
    terminal.expect(r"\(stopped\)\n> ")
    time.sleep(0.6)
    terminal.type("\x03")
    terminal.expect("/exit ends the chat.\n> ")
    terminal.type("count 2\n")
    terminal.expect("0 1 \n> ")
    terminal.type("/exit\n")
    assert terminal.ended() == 0


def test_failures_are_told_and_the_chat_goes_on(terminal: Terminal) -> None:
    terminal.expect("> ")
    for prompt, words in (("fail invalid", "error: no"), ("fail context", "/clear starts anew"), ("die", "error: ")):
        terminal.type(f"{prompt}\n")
        terminal.expect(re.escape(words))
        terminal.expect("> ")
    terminal.type("count 2\n")  # a new process has taken over
    terminal.expect("0 1 \n> ")


def test_commands_and_texts_of_several_lines(terminal: Terminal) -> None:
    terminal.expect("> ")
    terminal.type("/nonsense\n")
    terminal.expect("no /nonsense.*\n> ")
    terminal.type("/help\n")
    terminal.expect("/system TEXT")
    terminal.expect("> ")
    terminal.type("/clear\n")
    terminal.expect("anew.\n> ")
    terminal.type('"""count\n 3"""\n')  # "count" and its number on two lines: one turn, whose verb is not known
    terminal.expect("… ")
    time.sleep(0.5)
    terminal.type("\x03")
    terminal.expect(r"\(stopped\)")
    terminal.expect("> ")
    terminal.type("\n\ncount 1\n")
    terminal.expect("0 \n> ")


def test_a_model_that_cannot_be_loaded_ends_the_chat(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "fatal")
    try:
        text = terminal.expect("errors.log")
        assert "error: the file is broken" in text and "use another" in text and "Traceback" not in text
        assert terminal.ended() == 2
    finally:
        terminal.close()


def _piped(home: Path, text: str, *flags: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, SCRIPTED, "ok", str(home), "chat", *flags]
    environment = {**os.environ, "CAPSULE_CACHE_DIR": str(home / "cache")}
    return subprocess.run(argv, input=text, capture_output=True, text=True, timeout=120, env=environment, check=False)


def test_a_pipe_is_one_turn_and_gets_the_answer_only(tmp_path: Path) -> None:
    done = _piped(tmp_path, "count 3\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 1 2 \n", "")
    verbose = _piped(tmp_path, "count 3", "--verbose")
    assert verbose.stdout == "0 1 2 \n" and "cached" in verbose.stderr


def test_a_pipe_without_an_answer_is_an_error(tmp_path: Path) -> None:
    empty = _piped(tmp_path, " \n")
    assert empty.returncode == 2 and "empty" in empty.stderr and not empty.stdout
    failed = _piped(tmp_path, "fail invalid")
    assert failed.returncode == 1 and "error: no" in failed.stderr and "Traceback" not in failed.stderr
