"""One runner child: the operating system's side of it. Starts it, moves frames between its pipes and whoever adopts it.

Usable without an event loop, and light to import: `launch` may run before asyncio and aiohttp are loaded, so that the model
loads meanwhile. What the messages mean is `runner.py`'s business.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from server import protocol
from server.errors import OperatorError
from server.framing import TruncatedFrame, read_frame
from server.pipes import FrameWriter, LineReader
from server.protocol import RunnerSettings, Start
from server.spawn import child_environment, child_options, program

log = logging.getLogger("capsule.runner")

_LEVELS = {"DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARNING": logging.WARNING, "ERROR": logging.ERROR, "CRITICAL": logging.CRITICAL}

_LAST_WORDS_S = 0.5
"""How long a child may live on after it closed its stdout, and how long its last log lines are waited for."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The last thing a process delivers. `reason` completes the sentence "the model's process ..."."""

    reason: str
    returncode: int
    last_lines: tuple[str, ...] = ()


Delivery = protocol.Message | Ended


def _huge_pages() -> dict[str, str]:
    """glibc reads it at exec only. With huge pages a KV cache is zeroed three times faster: 0.4 instead of 1.2 s for 1.4 GiB."""
    if sys.platform != "linux":
        return {}
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if "glibc.malloc.hugetlb" in tunables:
        return {}
    return {"GLIBC_TUNABLES": ":".join(filter(None, (tunables, "glibc.malloc.hugetlb=1")))}


class RunnerProcess:
    """A started child. Messages wait until `adopt`; `Ended` comes exactly once, after everything else."""

    def __init__(self, argv: Sequence[str], settings: RunnerSettings) -> None:
        try:
            start = protocol.frame(Start(settings))
        except UnicodeEncodeError:
            raise OperatorError("the path of the model is not valid Unicode", hint="rename the file or its folder") from None
        self._popen = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=64 * 1024,
            env=child_environment(**_huge_pages()),
            **child_options(),
        )
        assert self._popen.stdin and self._popen.stdout and self._popen.stderr
        self._stdout = self._popen.stdout
        self._lock = threading.Lock()
        self._waiting: list[Delivery] = []
        self._deliver: Callable[[Delivery], None] | None = None
        self._writer = FrameWriter(self._popen.stdin, f"runner-{self.pid}-stdin")
        self._lines = LineReader(self._popen.stderr, _log_line, f"runner-{self.pid}-stderr")
        self._writer.put(start)
        self._reader = threading.Thread(target=self._read, name=f"runner-{self.pid}-stdout", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    def cpu_seconds(self) -> float | None:
        """Processor time of all its threads so far; None where the system does not say it cheaply."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError, AttributeError):
            return None

    @property
    def backlog(self) -> int:
        """Bytes that the child has not taken from its pipe yet."""
        return self._writer.backlog

    def send(self, command: protocol.Command) -> None:
        """Queue a command; never blocks. To a child that is gone it does nothing.

        Raises:
            ValueError, OverflowError, RecursionError: the command cannot be encoded, or is larger than a frame may be.
        """
        self._writer.put(protocol.frame(command))

    def adopt(self, deliver: Callable[[Delivery], None]) -> None:
        """From now on `deliver` gets every message, first those that came before. It is called on another thread, in order."""
        with self._lock:
            assert self._deliver is None, "a process has one owner"
            self._deliver = deliver
            waiting, self._waiting = self._waiting, []
            for message in waiting:
                deliver(message)

    def close_stdin(self) -> None:
        """Tell the child to end: it exits at the end of its input."""
        self._writer.close()

    def kill(self) -> None:
        """End the child, and what it may have started, at once."""
        if self._popen.poll() is not None:
            return
        with contextlib.suppress(OSError):
            if sys.platform == "win32":
                self._popen.kill()
            else:
                os.killpg(self.pid, signal.SIGKILL)  # its own session: probes and helpers go with it

    def stop(self, grace_s: float = 2.0) -> None:
        """Blocking end for a caller without an event loop: close its input, wait `grace_s` seconds, kill."""
        self.close_stdin()
        self._reader.join(grace_s)
        if self._reader.is_alive():
            self.kill()
            self._reader.join()

    def _hand_over(self, message: Delivery) -> None:
        with self._lock:
            if self._deliver is None:
                self._waiting.append(message)
            else:
                self._deliver(message)

    def _read(self) -> None:
        nonsense = ""
        try:
            while (body := read_frame(self._stdout)) is not None:
                self._hand_over(protocol.decode_message(body))
        except TruncatedFrame:
            pass  # it died while writing; the exit status says how
        except (ValueError, msgspec.MsgspecError) as error:
            nonsense = f"sent something that is not a message ({error})"
            self.kill()
        except (OSError, RuntimeError) as error:  # RuntimeError: the event loop of our owner is closed, nobody listens
            nonsense = f"could not be listened to ({error})"
            self.kill()
        ended = self._bury(nonsense)
        with contextlib.suppress(RuntimeError):
            self._hand_over(ended)

    def _bury(self, nonsense: str) -> Ended:
        self._writer.close()
        try:
            returncode = self._popen.wait(_LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            self.kill()
            returncode = self._popen.wait()
        self._stdout.close()
        self._writer.join(_LAST_WORDS_S)
        self._lines.join(_LAST_WORDS_S)  # a grandchild may still hold the pipe
        return Ended(nonsense or describe_exit(returncode), returncode, self._lines.tail)


def _log_line(line: str) -> None:
    """A line of the child's stderr: it says its level first, or comes from native code."""
    level, _, text = line.partition(" ")
    if level in _LEVELS and text:
        log.log(_LEVELS[level], "%s", text)
    else:
        log.info("%s", line)


def launch(settings: RunnerSettings, argv: Sequence[str] | None = None) -> RunnerProcess:
    """Start a runner that loads the model of `settings` at once. Needs no event loop.

    Raises:
        OSError: the program could not be started.
        OperatorError: the settings cannot be handed over.
    """
    return RunnerProcess(argv or [*program(), "runner"], settings)


def describe_exit(returncode: int) -> str:
    """How a process ended, to complete the sentence "the model's process ..."."""
    if returncode < 0:
        try:
            name = signal.Signals(-returncode).name
        except ValueError:
            name = "unknown"
        hint = "; the system may have run out of memory" if name == "SIGKILL" else ""
        return f"was ended by signal {-returncode} ({name}){hint}"
    if returncode >= 0x80000000:  # Windows: an NTSTATUS such as access violation
        return f"crashed with status 0x{returncode:08X}"
    return f"ended with exit code {returncode}"
