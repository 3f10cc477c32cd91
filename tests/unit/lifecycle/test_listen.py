"""The port printed is the port that listens: the next free one by default, exactly the one asked for otherwise."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from server.errors import OperatorError
from server.lifecycle import listen as module
from server.lifecycle.listen import lan_addresses, listen, url_host


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@contextmanager
def _occupied(address: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as taken:
        taken.bind((address, port))
        taken.listen()
        yield taken.getsockname()[1]


def test_port_zero_is_the_same_real_port_on_both_families() -> None:
    found = listen(None, 0, explicit=True)
    try:
        assert found.port > 0 and not found.moved and found.host == "127.0.0.1"
        assert {one.getsockname()[1] for one in found.sockets} == {found.port}
        assert len(found.sockets) == (2 if _has_ipv6() else 1)
        with socket.create_connection(("127.0.0.1", found.port), timeout=5):
            pass
    finally:
        found.close()


def test_a_taken_default_port_moves_to_the_next_free_one_and_says_so() -> None:
    with _occupied() as port:
        found = listen(None, port, explicit=False)
        found.close()
        assert found.port != port and str(port) in found.moved and "taken" in found.moved


def test_an_explicit_taken_port_is_an_error_with_a_way_out() -> None:
    with _occupied() as port, pytest.raises(OperatorError, match=str(port)) as caught:
        listen(None, port, explicit=True)
    assert "--port" in caught.value.hint


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no IPv6")
def test_a_port_taken_on_ipv6_only_is_taken() -> None:
    with _occupied("::1") as port:
        found = listen(None, port, explicit=False)
        found.close()
        assert found.port != port
        assert len(found.sockets) == 2


def test_a_machine_without_ipv6_listens_on_ipv4_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    real = module._bind_one

    def without(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "no")
        return real(family, address, port)

    monkeypatch.setattr(module, "_bind_one", without)
    found = listen(None, 0, explicit=True)
    found.close()
    assert len(found.sockets) == 1 and not found.moved


def test_access_denied_counts_as_taken_for_the_default_port(monkeypatch: pytest.MonkeyPatch) -> None:
    real = module._bind_one

    def reserved(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
        if port == 8080:
            raise PermissionError(errno.EACCES, "access denied")
        return real(family, address, port)

    monkeypatch.setattr(module, "_bind_one", reserved)
    found = listen(None, 8080, explicit=False)
    found.close()
    assert found.port != 8080 and "8080" in found.moved and "not permitted" in found.moved
    with pytest.raises(OperatorError, match="does not permit"):
        listen(None, 8080, explicit=True)


def test_a_privileged_port_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
        raise PermissionError(errno.EACCES, "permission denied")

    monkeypatch.setattr(module, "_bind_one", refuse)
    with pytest.raises(OperatorError, match="administrator") as caught:
        listen(None, 80, explicit=True)
    assert "1024" in caught.value.hint


def test_nothing_stays_bound_when_one_address_fails() -> None:
    with _occupied() as port, pytest.raises(OperatorError):
        listen("localhost", port, explicit=True)
    again = listen(None, port, explicit=True)
    again.close()


def test_hosts() -> None:
    for host, shown in (("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("0.0.0.0", "127.0.0.1")):
        found = listen(host, 0, explicit=False)
        found.close()
        assert found.host in (shown, "[::1]")
    for wrong in ("203.0.113.77", "no such host"):
        with pytest.raises(OperatorError, match=wrong):
            listen(wrong, 0, explicit=False)


def test_urls_and_lan_addresses() -> None:
    assert [url_host(a) for a in ("127.0.0.1", "::", "0.0.0.0", "fd00::7")] == ["127.0.0.1", "[::1]", "127.0.0.1", "[fd00::7]"]
    assert all(not address.startswith("127.") for address in lan_addresses())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has its own rule for taken ports")
def test_a_restart_gets_its_port_back_although_old_connections_linger() -> None:
    first = listen(None, 0, explicit=True)
    with socket.create_connection(("127.0.0.1", first.port), timeout=5):
        first.sockets[0].setblocking(True)
        accepted, _ = first.sockets[0].accept()
        accepted.close()  # the server closes first: TIME_WAIT stays on its side
    first.close()
    again = listen(None, first.port, explicit=True)
    again.close()
