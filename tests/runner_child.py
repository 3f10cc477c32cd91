"""Plays the front to one runner process: starts it, sends commands, collects what it says. For tests of the process itself."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from server.framing import read_frame
from server.protocol import (
    Command,
    Delta,
    Event,
    Failed,
    Finished,
    GenerationRequest,
    Message,
    Ready,
    RunnerSettings,
    Start,
    Step,
    Submit,
    Terminal,
    decode_message,
    frame,
)
from server.spawn import child_environment, child_options

M = TypeVar("M")


class RunnerChild:
    """`messages` grows as frames arrive; `ended` is set at the end of the stream."""

    def __init__(self, argv: Sequence[str], settings: RunnerSettings | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=child_environment(),
            **child_options(),
        )
        self.messages: list[Message] = []
        self.log = ""
        self.ended = False
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._read, daemon=True), threading.Thread(target=self._read_log, daemon=True)]
        for thread in self._threads:
            thread.start()
        self._next_id = 0
        if settings is not None:
            self.send(Start(settings))

    def _read(self) -> None:
        assert self.process.stdout is not None
        while (body := read_frame(self.process.stdout)) is not None:
            with self._changed:
                self.messages.append(decode_message(body))
                self._changed.notify_all()
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line.decode("utf-8", "replace")

    def send(self, *commands: Command) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(map(frame, commands)))
        self.process.stdin.flush()

    def submit(self, prompt: str | list[int | str], **options: Any) -> int:
        self._next_id += 1
        self.send(Submit(self._next_id, GenerationRequest(prompt=prompt, **options)))
        return self._next_id

    def wait(self, condition: Callable[[], bool], seconds: float = 120) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, seconds), f"it never happened; the log says\n{self.log}"

    def wait_for(self, kind: type[M], seconds: float = 120) -> M:
        """The first message of that kind."""
        self.wait(lambda: self.ended or any(isinstance(message, kind) for message in self.messages), seconds)
        found = next((message for message in self.messages if isinstance(message, kind)), None)
        assert found is not None, f"the process ended; its log says\n{self.log}"
        return found

    def wait_ready(self) -> Ready:
        return self.wait_for(Ready)

    def events(self, request_id: int) -> list[Event]:
        steps = [message for message in self.messages if isinstance(message, Step)]
        return [event for step in steps for event in step.events if event.id == request_id]

    def terminal(self, request_id: int, seconds: float = 300) -> Terminal:
        """Wait for the request's one terminal event."""
        self.wait(lambda: self.ended or any(isinstance(event, Finished | Failed) for event in self.events(request_id)), seconds)
        ends = [event for event in self.events(request_id) if isinstance(event, Finished | Failed)]
        assert len(ends) == 1, f"{ends}; the log says\n{self.log}"
        return ends[0]

    def finished(self, request_id: int) -> Finished:
        end = self.terminal(request_id)
        assert isinstance(end, Finished), end
        return end

    def text(self, request_id: int) -> str:
        return "".join(event.text for event in self.events(request_id) if isinstance(event, Delta))

    def close_stdin(self) -> float:
        """Be gone; returns how many seconds the process lived on."""
        assert self.process.stdin is not None
        begun = time.monotonic()
        self.process.stdin.close()
        self.process.wait(60)
        return time.monotonic() - begun

    def __enter__(self) -> RunnerChild:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            try:
                stream.close()
            except BrokenPipeError:
                pass
