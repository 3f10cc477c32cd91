"""Starts the real program for the end-to-end tests and talks to it. Knows no internals: command line, HTTP and process tree only."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import psutil

ROOT = Path(__file__).resolve().parents[2]
EXECUTABLE = ROOT / "dist" / "model.exe"
START_TIMEOUT = 120.0


def command() -> list[str]:
    """The program under test: the frozen file, or the sources where CAPSULE_TEST_SOURCE=1 asks for them (quicker to iterate)."""
    if os.environ.get("CAPSULE_TEST_SOURCE") == "1":
        return [sys.executable, str(ROOT / "launcher.py")]
    assert EXECUTABLE.exists(), "dist/model.exe is missing: run `make build` first"
    return [str(EXECUTABLE)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """One running program; `log` collects its output."""

    def __init__(
        self,
        *args: str,
        argv: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        wait: bool = True,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.started_at = time.monotonic()
        environment = dict(os.environ) if env is None else dict(env)
        environment.setdefault("CI", "true")
        self.process = subprocess.Popen(
            [*(argv or command()), "--port", str(self.port), "--no-browser", *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=cwd,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()
        if wait:
            self.wait_ready()

    def _collect(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                self.lines.append(line.decode("utf-8", "replace").rstrip())

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def wait_ready(self, timeout: float = START_TIMEOUT) -> None:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                self._reader.join(5)
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.log}")
            status, _ = self.get("/health")
            if status == 200:
                return
            time.sleep(0.05)
        raise AssertionError(f"not ready after {timeout} s:\n{self.log}")

    # ---- HTTP ----

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
        timeout: float = 300,
    ) -> tuple[int, bytes]:
        """Status and body; status 0 = nobody listens."""
        data = raw if raw is not None else (json.dumps(body).encode() if body is not None else None)
        request = Request(self.url + path, data=data, method=method)
        if data is not None:
            request.add_header("Content-Type", "application/json")
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with urlopen(request, timeout=timeout) as response:
                return response.status, response.read()
        except HTTPError as error:
            return error.code, error.read()
        except IncompleteRead as cut:
            return 0, cut.partial
        except (URLError, HTTPException, ConnectionError, TimeoutError):
            return 0, b""

    def get(self, path: str, **kwargs: Any) -> tuple[int, bytes]:
        return self.request("GET", path, **kwargs)

    def post(self, path: str, body: Any = None, **kwargs: Any) -> tuple[int, Any]:
        status, content = self.request("POST", path, body, **kwargs)
        try:
            return status, json.loads(content)
        except ValueError:
            return status, content

    def slots(self) -> list[dict[str, Any]]:
        status, content = self.get("/slots")
        assert status == 200, content
        slots = json.loads(content)
        assert isinstance(slots, list)
        return slots

    def busy_slots(self) -> int:
        return sum(bool(slot["is_processing"]) for slot in self.slots())

    def wait_busy(self, n_slots: int = 1, timeout: float = 60.0) -> None:
        """At least so many slots are at work."""
        deadline = time.monotonic() + timeout
        while self.busy_slots() < n_slots:
            assert time.monotonic() < deadline, f"fewer than {n_slots} slots are busy: {self.slots()}"
            time.sleep(0.02)

    def wait_idle(self, timeout: float = 30.0) -> None:
        """All slots free and nothing waiting."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if self.busy_slots() == 0 and self.metric("capsule_requests_waiting") == 0:
                return
            time.sleep(0.05)
        raise AssertionError(f"slots still busy: {self.slots()}")

    def metric(self, name: str) -> float:
        """Sum of a metric's samples (0 if it has none yet)."""
        _, content = self.get("/metrics")
        total = 0.0
        for line in content.decode().splitlines():
            if line.startswith(name) and line[len(name)] in " {":
                total += float(line.rsplit(" ", 1)[1])
        return total

    # ---- process tree ----

    def tree(self) -> list[psutil.Process]:
        """The process and all its descendants, parents first."""
        try:
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def find(self, command_word: str) -> psutil.Process:
        """The descendant that runs this hidden command."""
        for process in self.tree():
            try:
                if command_word in process.cmdline()[1:3]:
                    return process
            except psutil.Error:
                continue
        raise AssertionError(f"no {command_word!r} process in {[p.cmdline() for p in self.tree()]}")

    def front(self) -> psutil.Process:
        """The process that holds the listening socket."""
        for process in self.tree():
            for connection in process.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == self.port:
                    return process
        raise AssertionError("nobody of the tree listens")

    def terminate(self, timeout: float = 30.0) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout)
        self._reader.join(5)
        return code

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        family = self.tree()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                pass
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass
        self.process.wait(10)
        if kind is not None:
            print(self.log[-6000:])


def wait_gone(processes: Sequence[psutil.Process], timeout: float = 15.0) -> None:
    """All of these have ended (a zombie of a foreign parent counts as ended)."""
    deadline = time.monotonic() + timeout
    left: list[psutil.Process] = []
    while time.monotonic() < deadline:
        left = [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        if not left:
            return
        time.sleep(0.05)
    raise AssertionError(f"still alive: {[(p.pid, p.cmdline()) for p in left]}")


def rss_anon(process: psutil.Process) -> int:
    """Private resident memory without mapped files, bytes."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


@contextmanager
def raw_request(server: Server, path: str, body: Any) -> Iterator[socket.socket]:
    """A POST sent over a bare socket, for tests that drop the connection at will."""
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    ).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head + data)
        yield connection
