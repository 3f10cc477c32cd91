"""From listening to the last step: it can be found while it loads, a fatal load ends the start, and the end waits for answers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from server.commands.front import Front, run
from server.errors import OperatorError
from server.lifecycle.instance import Registration
from server.lifecycle.listen import listen
from server.lifecycle.stop import Stopper
from tests.unit.commands.scripted import spawn, start


class Served:
    """A front on a thread of its own, over the scripted runner."""

    def __init__(self, home: Path, mode: str, *flags: str) -> None:
        self.home = home
        self.listening = listen(None, 0, explicit=True)
        self.stopper = Stopper(end_now=lambda: None)
        self.registration = Registration(home, "x")
        self.registration.claim()
        self.outcome: Any = None
        begun = start(mode, home, ["--no-browser", *flags])
        self.process = spawn(begun.runner)
        front = Front(
            start=begun,
            listening=self.listening,
            process=self.process,
            registration=self.registration,
            stopper=self.stopper,
            launch_secret="launch",
            nonce="n1",
        )
        self._thread = threading.Thread(target=self._run, args=(front,))
        self._thread.start()

    def _run(self, front: Front) -> None:
        try:
            self.outcome = run(front)
        except Exception as error:
            self.outcome = error

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"http://127.0.0.1:{self.listening.port}{path}", data, {"Content-Type": "application/json"})
        try:
            with urlopen(request, timeout=60) as response:
                return response.status, response.read()
        except HTTPError as error:
            return error.code, error.read()

    def wait_for(self, status: str) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            state: dict[str, Any] = json.loads(self.ask("/health")[1])
            if state["status"] == status:
                return state
            time.sleep(0.02)
        raise AssertionError(f"never {status}")

    def join(self) -> Any:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.outcome

    def close(self) -> None:
        self.stopper.stop(patient=False)
        self._thread.join(60)
        self.listening.close()
        self.registration.release()
        self.process.stop()


@contextmanager
def _served(home: Path, mode: str = "ok", *flags: str) -> Iterator[Served]:
    served = Served(home, mode, *flags)
    try:
        yield served
    finally:
        served.close()


def test_it_listens_while_the_model_loads_and_can_be_found(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with _served(tmp_path, "slow") as served:
        assert served.wait_for("loading")["nonce"] == "n1"
        assert served.ask("/")[0] == 200
        found = Registration(tmp_path, "x").find(20)
        assert found is not None and found.port == served.listening.port and found.launch == "launch"
        assert "Ready" not in capfd.readouterr().out
        (tmp_path / "go").touch()
        assert served.wait_for("ok")["nonce"] == "n1"
        served.stopper.stop()
        assert served.join() == 0
    assert Registration(tmp_path, "x").find(0) is None


def test_what_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with _served(tmp_path) as served:
        served.wait_for("ok")
        served.stopper.stop()
        assert served.join() == 0
        out = capfd.readouterr().out
    for word in ("model", "fake", "slots", "CPU", "devices", "Ready"):
        assert word in out


def test_a_fatal_load_ends_the_start_with_its_sentence(tmp_path: Path) -> None:
    with _served(tmp_path, "fatal") as served:
        outcome = served.join()
    assert isinstance(outcome, OperatorError)
    assert (outcome.message, outcome.hint) == ("the file is broken", "use another")


def _answer(served: Served, prompt: str, replies: list[tuple[int, Any]]) -> threading.Thread:
    def ask() -> None:
        replies.append(served.ask("/completion", {"prompt": prompt, "n_predict": 10}))

    thread = threading.Thread(target=ask)
    thread.start()
    journal = served.home / "commands"
    deadline = time.monotonic() + 30
    while not (journal.exists() and "Submit" in journal.read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return thread


def test_an_open_request_may_finish_and_new_ones_are_refused(tmp_path: Path) -> None:
    with _served(tmp_path, "ok", "--drain-timeout", "60") as served:
        served.wait_for("ok")
        replies: list[tuple[int, Any]] = []
        thread = _answer(served, "count 4000", replies)
        served.stopper.stop()
        assert served.wait_for("draining")
        status, body = served.ask("/completion", {"prompt": "count 1"})
        assert status == 503 and json.loads(body)["error"]["code"] == "shutting_down"
        assert served.join() == 0
        thread.join(30)
    assert replies[0][0] == 200 and json.loads(replies[0][1])["content"].endswith("3999 ")


@pytest.mark.parametrize("how", ["timeout", "hurry"])
def test_an_endless_request_does_not_hold_up_the_end(tmp_path: Path, how: str) -> None:
    with _served(tmp_path, "ok", "--drain-timeout", "0.3" if how == "timeout" else "3600") as served:
        served.wait_for("ok")
        replies: list[tuple[int, Any]] = []
        thread = _answer(served, "hold", replies)
        served.stopper.stop()
        if how == "hurry":
            served.wait_for("draining")
            served.stopper.stop(patient=False)
        assert served.join() == 0
        thread.join(30)
    assert replies[0][0] == 503


def test_the_page_can_quit_with_the_launch_secret(tmp_path: Path) -> None:
    with _served(tmp_path) as served:
        served.wait_for("ok")
        assert served.ask("/quit", {})[0] == 403
        request = Request(
            f"http://127.0.0.1:{served.listening.port}/quit",
            b"{}",
            {"Content-Type": "application/json", "X-Capsule-Launch": "launch"},
        )
        with urlopen(request, timeout=60) as response:
            assert response.status in (200, 202)
        assert served.join() == 0
