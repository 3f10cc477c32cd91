"""The runner's two pipes: commands in, frames out, each with a thread of its own. Knows what a frame is, not what it means.

The end of the command pipe means that the front is gone: the process ends there and then, whatever native code is doing.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import BinaryIO

import msgspec

from server.framing import FramingError, read_frame
from server.protocol import Command, Message, decode_command, frame

logger = logging.getLogger(__name__)

MOST_WAITING_BYTES = 8 * 1024 * 1024
"""Frames the front has not taken yet; with more, who writes has to wait: the front is stuck."""


def take_over_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Move stdin and stdout to private descriptors (commands, frames). Afterwards fd 0 is empty and fd 1 is stderr, for every library.

    To be called before any native code runs: whatever prints to stdout can no longer corrupt the frames.
    """
    sys.stdout.flush()
    commands, frames = os.dup(0), os.dup(1)
    if sys.platform == "win32":
        import msvcrt

        msvcrt.setmode(commands, os.O_BINARY)
        msvcrt.setmode(frames, os.O_BINARY)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return os.fdopen(commands, "rb"), os.fdopen(frames, "wb", buffering=0)


class CommandReader:
    """Reads commands into `commands`. `on_end(clean)` is called when there will be no more; clean = the pipe was closed between two."""

    def __init__(self, stream: BinaryIO, on_end: Callable[[bool], None]) -> None:
        self.commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._stream = stream
        self._on_end = on_end

    def start(self) -> None:
        threading.Thread(target=self._run, name="commands", daemon=True).start()

    def _run(self) -> None:
        clean = False
        try:
            while (body := read_frame(self._stream)) is not None:
                self.commands.put(decode_command(body))
            clean = True
        except (FramingError, msgspec.DecodeError, OSError) as error:
            logger.error("the command pipe is broken: %s", error)
        finally:
            self._on_end(clean)


class FrameWriter:
    """Sends messages from any thread without waiting for the pipe, up to `MOST_WAITING_BYTES`."""

    def __init__(self, stream: BinaryIO, on_broken: Callable[[], None], most_waiting: int = MOST_WAITING_BYTES) -> None:
        self._stream = stream
        self._on_broken = on_broken
        self._most_waiting = most_waiting
        self._frames: list[bytes] = []
        self._n_bytes = 0
        self._changed = threading.Condition()

    def start(self) -> None:
        threading.Thread(target=self._run, name="frames", daemon=True).start()

    def put(self, message: Message) -> None:
        data = frame(message)
        with self._changed:
            while self._n_bytes > self._most_waiting:
                self._changed.wait()
            self._frames.append(data)
            self._n_bytes += len(data)
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until everything is in the pipe, at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        with self._changed:
            return self._changed.wait_for(lambda: not self._n_bytes, deadline - time.monotonic())

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._frames:
                    self._changed.wait()
                frames, self._frames = self._frames, []
            data = b"".join(frames)
            try:
                self._write(data)
            except OSError:
                self._on_broken()
                return
            with self._changed:
                self._n_bytes -= len(data)
                self._changed.notify_all()

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._stream.write(view) or 0 :]
