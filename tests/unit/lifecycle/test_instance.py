"""A second start finds the first one only while that lives, is ours, and still has its port."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from server.lifecycle.instance import Registration, Running, identity


@contextmanager
def _health(nonce: str, status: str = "200 OK") -> Iterator[int]:
    """A port that answers every request with this nonce."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    request = connection.recv(4096)
                    body = json.dumps({"status": "ok", "nonce": nonce}) if request.startswith(b"GET /health ") else "{}"
                    connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _running(port: int, nonce: str = "n1") -> Running:
    return Running(pid=os.getpid(), port=port, nonce=nonce, launch="secret")


def test_the_second_start_finds_the_first(tmp_path: Path) -> None:
    first, second = Registration(tmp_path, "x"), Registration(tmp_path, "x")
    for status in ("200 OK", "503 Service Unavailable"):  # found while the model is still loading, too
        with _health("n1", status) as port:
            assert first.claim() and not second.claim()
            first.publish(_running(port))
            found = second.find(0)
            assert found == _running(port)
            assert found.url == f"http://127.0.0.1:{port}/"
            first.release()
    assert second.find(0) is None and second.claim()
    second.release()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps access lists instead")
def test_the_state_is_for_its_owner_alone(tmp_path: Path) -> None:
    first, second = Registration(tmp_path, "x"), Registration(tmp_path, "x")
    with _health("n1") as port:
        first.claim()
        first.publish(_running(port))
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
        state = next(tmp_path.glob("*.json"))
        state.chmod(0o644)
        assert second.find(0) is None, "readable by others: not what we wrote"
        first.release()
    assert not list(tmp_path.glob("*.json"))


def test_a_stale_state_file_is_ignored(tmp_path: Path) -> None:
    with _health("n1") as port:
        first = Registration(tmp_path, "x")
        first.claim()
        first.publish(_running(port))
        assert first._held is not None
        os.close(first._held)  # what the system does when a process is killed: the state file stays
        assert list(tmp_path.glob("*.json"))
        assert Registration(tmp_path, "x").find(0) is None
        third = Registration(tmp_path, "x")
        assert third.claim() and not list(tmp_path.glob("*.json"))
        third.release()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', '{"pid":1,"port":"x","nonce":"n","launch":"l"}'])
def test_a_broken_state_file_is_ignored(tmp_path: Path, content: str) -> None:
    first, second = Registration(tmp_path, "x"), Registration(tmp_path, "x")
    first.claim()
    first.publish(_running(1))
    next(tmp_path.glob("*.json")).write_text(content)
    assert second.find(0) is None
    first.release()


def test_a_port_taken_over_by_something_else_is_not_opened(tmp_path: Path) -> None:
    first, second = Registration(tmp_path, "x"), Registration(tmp_path, "x")
    first.claim()
    with _health("another") as port:
        first.publish(_running(port))
        assert second.find(0) is None
    assert second.find(0) is None, "nobody listens there any more"
    first.release()


def test_an_instance_that_is_just_starting_is_waited_for(tmp_path: Path) -> None:
    first, second = Registration(tmp_path, "x"), Registration(tmp_path, "x")
    first.claim()
    with _health("n1") as port:
        timer = threading.Timer(0.2, first.publish, (_running(port),))
        timer.start()
        assert second.find(20) == _running(port)
        timer.join()
    first.release()


def test_another_file_is_another_instance(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"a")
    two.write_bytes(b"a")
    link = tmp_path / "link"
    link.symlink_to(one)
    assert identity(one) == identity(link) != identity(two)
    assert identity(one, "other.gguf") != identity(one)
    before = identity(one)
    one.write_bytes(b"ab")
    assert identity(one) != before
    with pytest.raises(OSError):
        identity(tmp_path / "none")


def test_nothing_can_be_written_is_no_error(tmp_path: Path) -> None:
    registration = Registration(tmp_path / "missing", "x")
    assert not registration.claim()
    registration.publish(_running(1))
    assert registration.find(0) is None
    registration.release()


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    first = Registration(tmp_path, "x")
    for _ in range(3):
        assert first.claim()
        first.publish(_running(1))
        first.release()
        assert not list(tmp_path.iterdir())


def test_what_killed_instances_left_is_swept_and_the_living_stay(tmp_path: Path) -> None:
    living, killed, young = (Registration(tmp_path, name) for name in ("living", "killed", "young"))
    for registration in (living, killed, young):
        registration.claim()
        registration.publish(_running(1))
    for registration in (killed, young):
        assert registration._held is not None
        os.close(registration._held)
    for name in ("living", "killed"):
        os.utime(tmp_path / f"instance-{name}.lock", (0, 0))
    another = Registration(tmp_path, "another")
    another.claim()
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {f"instance-{n}.{e}" for n in ("living", "young") for e in ("json", "lock")} | {"instance-another.lock"}
    assert not Registration(tmp_path, "living").claim()
    living.release()
    another.release()


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be removed there")
def test_at_most_one_has_it_however_claims_and_releases_interleave(tmp_path: Path) -> None:
    owners: list[int] = []
    clashes: list[int] = []
    claims: list[int] = []

    def contend(me: int) -> None:
        registration = Registration(tmp_path, "x")
        for _ in range(300):
            if registration.claim():
                owners.append(me)
                claims.append(me)
                if owners != [me]:
                    clashes.append(me)
                owners.remove(me)
                registration.release()

    threads = [threading.Thread(target=contend, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert claims and not clashes and not list(tmp_path.iterdir())
