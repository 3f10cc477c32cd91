"""Which sockets the server listens on: one port on both loopback addresses, or exactly what was asked for. No HTTP in here."""

from __future__ import annotations

import errno
import socket
import sys
from dataclasses import dataclass

from server.errors import OperatorError

LOOPBACK = ("127.0.0.1", "::1")
BACKLOG = 512
_TRIES = 100
_TAKEN = {errno.EADDRINUSE, errno.EACCES, getattr(errno, "WSAEADDRINUSE", errno.EADDRINUSE), getattr(errno, "WSAEACCES", errno.EACCES)}
_DENIED = {errno.EACCES, getattr(errno, "WSAEACCES", errno.EACCES)}
_NO_FAMILY = {
    getattr(errno, name)
    for name in ("EAFNOSUPPORT", "EADDRNOTAVAIL", "EPROTONOSUPPORT", "WSAEAFNOSUPPORT", "WSAEADDRNOTAVAIL")
    if hasattr(errno, name)
}


@dataclass(frozen=True, slots=True)
class Listening:
    """Sockets that already listen. `moved` says in words why the port is not the usual one, else it is empty."""

    sockets: tuple[socket.socket, ...]
    port: int
    host: str
    """What to put into a URL: the first address, bracketed if it is IPv6, loopback for a wildcard."""
    moved: str = ""

    def close(self) -> None:
        for one in self.sockets:
            one.close()


def listen(host: str | None, port: int, *, explicit: bool) -> Listening:
    """Listen on `host` (None: both loopback addresses) at `port` (0: any). `explicit`: a taken port is an error, not a move.

    Raises:
        OperatorError: the port is taken or not permitted, or the host is not an address of this machine.
    """
    addresses = _addresses(host)
    if explicit or port == 0:
        try:
            return _bind(addresses, port, host)
        except OSError as error:
            raise _refusal(error, host, port) from None
    moved = ""
    for candidate in (*range(port, min(port + _TRIES, 65536)), 0):
        try:
            found = _bind(addresses, candidate, host)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise _refusal(error, host, candidate) from None
            moved = moved or f"port {port} is {'not permitted here' if error.errno in _DENIED else 'taken'}"
            continue
        return Listening(found.sockets, found.port, found.host, moved)
    raise AssertionError("port 0 is never taken")


def lan_addresses() -> list[str]:
    """Addresses by which others on the local network reach this machine, the usual one first. Sends nothing."""
    found: list[str] = []
    for family, target in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))  # chooses a route; a datagram socket sends nothing by that
                found.append(probe.getsockname()[0])
        except OSError:
            continue
    if sys.platform == "linux":
        found += _interface_addresses()
    return [address for address in dict.fromkeys(found) if not address.startswith(("127.", "::1", "fe80:"))]


def url_host(address: str) -> str:
    """An address as it is written in a URL."""
    address = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    return f"[{address}]" if ":" in address else address


def _addresses(host: str | None) -> list[tuple[socket.AddressFamily, str]]:
    """Where to bind; without a host the second one, IPv6, may be missing."""
    if host is None:
        return [(socket.AF_INET, LOOPBACK[0]), (socket.AF_INET6, LOOPBACK[1])]
    try:
        rows = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise OperatorError(
            f"--host: {host!r} is not a known address or name", hint="127.0.0.1 is this machine only, 0.0.0.0 every network"
        ) from None
    return list(dict.fromkeys((row[0], str(row[4][0])) for row in rows if row[0] in (socket.AF_INET, socket.AF_INET6)))


def _bind(addresses: list[tuple[socket.AddressFamily, str]], port: int, host: str | None) -> Listening:
    """All addresses at one port, or none. With port 0 the first address chooses and the others follow."""
    for attempt in range(20):
        bound: list[socket.socket] = []
        chosen = port
        try:
            for family, address in addresses:
                try:
                    one = _bind_one(family, address, chosen)
                except OSError as error:
                    if bound and host is None and error.errno in _NO_FAMILY:
                        continue  # this machine has no IPv6: nothing to say
                    raise
                bound.append(one)
                chosen = one.getsockname()[1]
        except OSError as error:
            for one in bound:
                one.close()
            if port == 0 and error.errno in _TAKEN and attempt < 19:
                continue  # the system's choice for the first address is taken at the second
            raise
        return Listening(tuple(bound), chosen, url_host(addresses[0][1]))
    raise AssertionError("unreachable")


def _bind_one(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    if sys.platform == "darwin" and port and _answers(family, address, port):
        # SO_REUSEADDR there would let us take a loopback port away from a server that listens on every address.
        raise OSError(errno.EADDRINUSE, "address already in use")
    one = socket.socket(family, socket.SOCK_STREAM)
    try:
        if sys.platform == "win32":
            one.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.bind((address, port))
        one.listen(BACKLOG)
        one.setblocking(False)
    except BaseException:
        one.close()
        raise
    return one


def _answers(family: socket.AddressFamily, address: str, port: int) -> bool:
    target = {"0.0.0.0": LOOPBACK[0], "::": LOOPBACK[1]}.get(address, address)
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((target, port)) == 0


def _refusal(error: OSError, host: str | None, port: int) -> OperatorError:
    where = f"{host or LOOPBACK[0]}:{port}"
    if error.errno in _DENIED and 0 < port < 1024:
        return OperatorError(f"port {port} needs administrator rights here", hint="choose a port of 1024 or more, such as --port 8080")
    if error.errno in _DENIED:
        return OperatorError(f"the system does not permit listening on {where}", hint="another --port may be free; --port 0 takes any")
    if error.errno in _TAKEN:
        return OperatorError(
            f"port {port} is taken", hint="choose another --port; --port 0 takes any free one, and without --port the next free one is used"
        )
    if error.errno in _NO_FAMILY:
        return OperatorError(f"--host: {host} is not an address of this machine")
    return OperatorError(f"cannot listen on {where}: {error.strerror or error}")


def _interface_addresses() -> list[str]:
    if sys.platform == "win32":
        return []
    import fcntl
    import struct

    siocgifaddr = 0x8915
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(probe.fileno(), siocgifaddr, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            found.append(socket.inet_ntoa(reply[20:24]))
    return found
