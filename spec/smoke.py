"""Smoke run of a finished file: alone, with an empty environment, it must answer one question and end when asked. No internals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from spec.environment import BuildError, say

START_SECONDS, ANSWER_SECONDS, STOP_SECONDS = 120.0, 120.0, 30.0
QUESTION = "Say in one sentence what the sea is."


def smoke(program: Path, *arguments: str) -> None:
    """Start `program` (with more `arguments`), ask it one question, end it.

    Raises:
        BuildError: it did not start, did not answer, or did not end with exit code 0; its output has been shown.
    """
    say(f"trying {program.name}: alone, with an empty environment")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="capsule-smoke-") as directory, tempfile.TemporaryFile() as output:
        port = _free_port()
        # Windows needs SYSTEMROOT to open a socket, and without TEMP it would unpack into its own directory.
        environment = {name: os.environ[name] for name in ("SYSTEMROOT", "TEMP") if name in os.environ} if sys.platform == "win32" else {}
        process = subprocess.Popen(
            [str(program), "--port", str(port), "--no-browser", *arguments],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        try:
            _wait_ready(process, port)
            ready = time.monotonic() - started
            answer = _ask(port)
            _end(process)
            code = process.wait(STOP_SECONDS)
            if code:
                raise BuildError(f"{program.name} ended with exit code {code} instead of 0")
        except (OSError, BuildError, ValueError, LookupError, subprocess.TimeoutExpired) as error:
            process.kill()
            process.wait()
            output.seek(0)
            print(output.read().decode("utf-8", "replace")[-8000:], file=sys.stderr)
            raise BuildError(f"the smoke run failed: {error}") from error
        finally:
            if process.poll() is None:
                process.kill()
    say(f"ready after {ready:.1f} s; {QUESTION!r} -> {answer!r}")


def _end(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        process.send_signal(signal.CTRL_BREAK_EVENT)
    else:
        process.send_signal(signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise BuildError(f"it ended with exit code {process.returncode} before it was ready")
        try:
            if _request(port, "GET", "/health", None)[0] == 200:
                return
        except OSError:
            pass  # not listening yet
        time.sleep(0.1)
    raise BuildError(f"it was not ready after {START_SECONDS:.0f} s")


def _ask(port: int) -> str:
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 24}
    status, answer = _request(port, "POST", "/v1/chat/completions", body)
    if status != 200:
        raise BuildError(f"/v1/chat/completions answered {status}: {answer}")
    text = str(answer["choices"][0]["message"]["content"])
    if not text.strip() or "\ufffd" in text:
        raise BuildError(f"{QUESTION!r} was answered with {text!r}")
    return text


def _request(port: int, method: str, path: str, body: Any) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    try:
        connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()
