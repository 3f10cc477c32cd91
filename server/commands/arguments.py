"""What the file commands share: an argument parser whose errors are OperatorErrors, and a progress line."""

from __future__ import annotations

import argparse
import sys
import time
from typing import NoReturn

from server.errors import OperatorError
from server.files import shown_size
from server.lifecycle.console import is_terminal, say


class Parser(argparse.ArgumentParser):
    """argparse with our way of failing: one sentence, a hint, exit code 2 given by the launcher."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(prog=command, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise OperatorError(f"{self.prog}: {message}", hint=" ".join(self.format_usage().split()))


class ProgressLine:
    """Progress of bytes on stderr: a bar that is redrawn on a terminal, else a line every few seconds."""

    WIDTH = 30

    def __init__(self, what: str) -> None:
        self._what = what
        self._bar = is_terminal(sys.stderr)
        self._pause = 0.1 if self._bar else 3.0
        self._last = time.monotonic()
        self._drawn = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last < self._pause:
            return
        self._last = now
        share = done / total if total else 1.0
        text = f"{self._what} {share:4.0%} of {shown_size(total)}"
        if self._bar:
            full = round(share * self.WIDTH)
            say(f"\r[{'#' * full}{'.' * (self.WIDTH - full)}] {text}\x1b[K", file=sys.stderr, end="")
            self._drawn = True
        else:
            say(text, file=sys.stderr)

    def close(self) -> None:
        """Remove the bar; called also when the work failed."""
        if self._drawn:
            say("\r\x1b[K", file=sys.stderr, end="")
            self._drawn = False
