"""What a person types is cut into turns: a line, lines that were pasted together, or what stands between quotation marks."""

from __future__ import annotations

import os
import sys

import pytest

if sys.platform == "win32":
    pytest.skip("pseudo-terminals are a POSIX matter", allow_module_level=True)

import pty
import termios

from server.commands.keyboard import Keyboard


def _turns(*typed: str) -> list[str | None]:
    """The turn that each of these texts amounts to, typed at a terminal one after the other."""
    master, slave = pty.openpty()
    attributes = termios.tcgetattr(slave)
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    turns: list[str | None] = []
    with open(slave, encoding="utf-8") as stream:
        keyboard = Keyboard(stream, prompt="")
        for text in typed:
            os.write(master, text.encode())
            turns.append(keyboard.read())
    os.close(master)
    return turns


def test_a_line_is_a_turn_and_the_end_of_input_is_told() -> None:
    assert _turns("one\n", "two\n", "\x04") == ["one", "two", None]


def test_lines_pasted_together_are_one_turn() -> None:
    assert _turns("one\n", "def f():\n    return 1\n\nf()\n", "end\n") == ["one", "def f():\n    return 1\n\nf()", "end"]


def test_triple_quotation_marks_hold_lines_together() -> None:
    assert _turns('"""\na\n\nb\n"""\n', "end\n") == ["a\n\nb", "end"]
    assert _turns('"""a b"""\n', "end\n") == ["a b", "end"]
