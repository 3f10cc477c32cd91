"""The ends of a child's pipes that may block, each on a thread of its own: a writer with a queue, a reader of log lines.

Knows neither what the bytes mean nor asyncio; imports nothing heavy, so that a child can be started before anything else is.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import IO

from server.files import shown

MAX_LINE_BYTES = 4096
KEPT_LINES = 20


class FrameWriter:
    """Writes byte strings to a pipe in order. `put` never blocks; a reader that went away makes it a no-op."""

    def __init__(self, stream: IO[bytes], name: str) -> None:
        self._stream = stream
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._backlog = 0
        self._broken = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> int:
        """Bytes accepted and not yet taken by the pipe."""
        return self._backlog

    def put(self, data: bytes) -> None:
        with self._lock:
            if self._broken:
                return
            self._backlog += len(data)
        self._queue.put(data)

    def close(self) -> None:
        """Close the pipe once everything before has been written. Returns at once; may be called again."""
        self._queue.put(None)

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while (data := self._queue.get()) is not None:
                self._stream.write(data)
                if self._queue.empty():
                    self._stream.flush()
                with self._lock:
                    self._backlog -= len(data)
        except (OSError, ValueError):
            pass  # the reader is gone; whoever reads its other pipe sees that too
        finally:
            with self._lock:
                self._broken = True
                self._backlog = 0
            with contextlib.suppress(OSError, ValueError):
                self._stream.close()


class LineReader:
    """Hands each line of a pipe to `emit`, cut to `MAX_LINE_BYTES` and made printable, and keeps the last ones."""

    def __init__(self, stream: IO[bytes], emit: Callable[[str], None], name: str) -> None:
        self._stream = stream
        self._emit = emit
        self._tail: deque[str] = deque(maxlen=KEPT_LINES)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def tail(self) -> tuple[str, ...]:
        return tuple(self._tail)

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._stream:
            while raw := self._stream.readline(MAX_LINE_BYTES):
                cut = not raw.endswith(b"\n")
                while cut and (rest := self._stream.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                    pass
                line = printable(raw.decode("utf-8", "backslashreplace").rstrip())
                if line:
                    self._tail.append(line)
                    self._emit(line)


def printable(text: str) -> str:
    """`text` with every control, format and bidirectional character written out as an escape; a tab becomes a space."""
    return shown(text.replace("\t", " "))
