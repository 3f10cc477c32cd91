"""What a person types in the terminal chat: single lines, lines pasted together, text between triple quotation marks."""

from __future__ import annotations

import sys
from typing import TextIO

_QUOTES = '"""'


class Keyboard:
    """Reads one turn at a time from a terminal in its line mode."""

    def __init__(self, stream: TextIO | None = None, prompt: str = "> ") -> None:
        self._stream = stream or sys.stdin
        self._prompt = prompt

    def read(self) -> str | None:
        """The next turn, None at the end of the input.

        Raises:
            KeyboardInterrupt: Ctrl-C; what was typed of this turn is dropped.
        """
        line = self._line(self._prompt)
        if line is None:
            return None
        if line.strip().startswith(_QUOTES):
            return self._quoted(line.strip().removeprefix(_QUOTES))
        lines = [line]
        while self._has_more():
            more = self._line("")
            if more is None:
                break
            lines.append(more)
        return "\n".join(lines)

    def _quoted(self, first: str) -> str:
        lines: list[str] = []
        line: str | None = first
        while line is not None:
            if line.rstrip().endswith(_QUOTES):
                lines.append(line.rstrip().removesuffix(_QUOTES))
                break
            lines.append(line)
            line = self._line("… ")
        return "\n".join(lines).strip("\n")

    def _line(self, prompt: str) -> str | None:
        sys.stdout.write(prompt)
        sys.stdout.flush()
        line = self._stream.readline()
        return line.rstrip("\r\n") if line else None

    def _has_more(self) -> bool:
        """Whether another line has arrived already, which only a paste is quick enough for."""
        if sys.platform == "win32":
            import msvcrt

            return msvcrt.kbhit()
        import select

        readable, _, _ = select.select([self._stream], [], [], 0.02)
        return bool(readable)


def help_lines() -> list[str]:
    return [
        "/clear          forget the conversation, keep the system prompt",
        "/system TEXT    set the system prompt and start anew (without TEXT: none)",
        "/exit           end the chat (also /quit, Ctrl-D)",
        f"{_QUOTES}             begins and ends a text of several lines; lines pasted together are one text as well",
        "Ctrl-C          stop the answer",
    ]
