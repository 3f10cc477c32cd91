"""When and how the program is asked to end: signals counted, the parent watched. What ending means is said by whoever asks.

Ctrl-C reaches the front twice within a fraction of a millisecond (the terminal signals the whole group, and the bootloader's
parent forwards), so signals within half a second of each other are one.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Literal

WINDOW_S = 0.5
_NAMES = ("SIGTERM", "SIGINT", "SIGHUP", "SIGBREAK")

Action = Literal["drain", "same", "now"]


class SignalCounter:
    """Pure: told the time of each signal, it says what that signal means."""

    def __init__(self) -> None:
        self._first: float | None = None

    def press(self, now: float) -> Action:
        """`drain` for the first signal, `same` for its echo, `now` for any later one. `now` is in seconds."""
        if self._first is None:
            self._first = now
            return "drain"
        return "same" if now - self._first < WINDOW_S else "now"


class Stopper:
    """Receives the wish to end from signals, the page or a watcher. Safe to call from any thread and from signal handlers."""

    def __init__(self, end_now: Callable[[], None] = lambda: os._exit(0)) -> None:
        self._end_now = end_now
        self._counter = SignalCounter()
        self._wanted = False
        self._patient = True
        self._wake: Callable[[], None] | None = None

    @property
    def wanted(self) -> bool:
        return self._wanted

    @property
    def patient(self) -> bool:
        """Whether running answers may finish first."""
        return self._patient

    def install(self) -> None:
        """Take over the signals that ask us to end. What our caller ignores (`nohup`, a background job) stays ignored."""
        for name in _NAMES:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._handle)

    def on_stop(self, wake: Callable[[], None]) -> None:
        """`wake` is called when the end is wanted (at once if it already is) and again when it loses its patience; any thread."""
        self._wake = wake
        if self._wanted:
            wake()

    def stop(self, *, patient: bool = True) -> None:
        """Ask for the end. `patient` False: without waiting for running answers."""
        self._patient = self._patient and patient
        self._wanted = True
        if self._wake is not None:
            self._wake()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        action = self._counter.press(time.monotonic())
        if action == "drain":
            self.stop()
        elif action == "now":
            self._end_now()


def watch_parent(lost: Callable[[], None], *, interval_s: float = 0.25) -> None:
    """Call `lost`, on a thread of its own, when the process that started us ends."""
    from server.spawn import wait_for_parent

    parent = os.getppid()

    def watch() -> None:
        wait_for_parent(parent, interval_s)
        lost()

    threading.Thread(target=watch, name="watch-parent", daemon=True).start()
