"""Which `Host` and `Origin` values this server answers to. Pure: no request, no socket.

A Host must be loopback, the address the connection came in on, this machine's name, or listed in --allowed-hosts. An Origin
must be the server's own, loopback, an app's scheme, or listed in --cors-origins; an address literal is never a trusted Origin.
"""

from __future__ import annotations

import functools
import re
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from server.addresses import Address, parse_address
from server.errors import OperatorError

APP_SCHEMES = frozenset({"app", "tauri", "vscode-webview"})
_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_HOST = re.compile(r"^(?:\[(?P<six>[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._~-]+)?)\]|(?P<name>[A-Za-z0-9._~-]+))(?::(?P<port>[0-9]{1,5}))?$")


@dataclass(frozen=True, slots=True)
class HostPort:
    host: str
    """Lower case, without brackets or a trailing dot; an address in its shortest form."""
    port: int | None

    @property
    def address(self) -> Address | None:
        return parse_address(self.host)

    @property
    def is_loopback(self) -> bool:
        address = self.address
        return address.is_loopback if address is not None else self.host == "localhost" or self.host.endswith(".localhost")


def parse_host(text: str) -> HostPort | None:
    """A `Host` header; None if it is none."""
    found = _HOST.match(text.strip())
    if found is None:
        return None
    port = int(found["port"]) if found["port"] else None
    if port is not None and port > 65535:
        return None
    host = (found["six"] or found["name"]).lower().rstrip(".")
    address = parse_address(host)
    if not host or (found["six"] and address is None):
        return None
    return HostPort(str(address) if address is not None else host, port)


@functools.cache
def own_names() -> frozenset[str]:
    """This machine's name, alone and as `.local`."""
    name = socket.gethostname().lower().rstrip(".")
    if not name or parse_address(name) is not None:
        return frozenset()
    first = name.partition(".")[0]
    return frozenset({name, first, f"{first}.local"})


@dataclass(frozen=True, slots=True)
class Rules:
    allowed_hosts: frozenset[str]
    cors_origins: frozenset[str]

    @classmethod
    def parse(cls, allowed_hosts: str | None, cors_origins: str | None) -> Rules:
        """From the comma-separated values of --allowed-hosts and --cors-origins.

        Raises:
            OperatorError: an entry is no host, or no origin.
        """
        hosts = set()
        for entry in _split(allowed_hosts):
            host = parse_host(f"[{entry}]" if entry.count(":") > 1 and "[" not in entry else entry)
            if host is None:
                raise OperatorError(f"--allowed-hosts: {entry!r} is not a host name", hint="for example --allowed-hosts box.example.org")
            hosts.add(host.host)
        origins = {entry.rstrip("/").lower() for entry in _split(cors_origins)}
        for origin in origins:
            if origin not in ("null", "*") and "://" not in origin:
                raise OperatorError(
                    f"--cors-origins: {origin!r} is not a web origin", hint="for example --cors-origins https://example.org"
                )
        return cls(frozenset(hosts), frozenset(origins))

    def host_allowed(self, host: HostPort, local_address: str | None) -> bool:
        """`local_address`: the address of ours that the connection came in on."""
        if host.is_loopback or host.host in self.allowed_hosts:
            return True
        if host.address is not None:
            return local_address is not None and host.address == parse_address(local_address)
        return host.host in own_names()

    def origin_allowed(self, origin: str, host: HostPort, *, api: bool) -> bool:
        """`host`: what the request was sent to. `api` = False: only the server's own origin will do."""
        listed = origin.strip().rstrip("/").lower()
        if api and (listed in self.cors_origins or "*" in self.cors_origins):
            return True
        try:
            parts = urlsplit(listed)
        except ValueError:
            return False
        if parts.scheme in APP_SCHEMES:
            return api
        named = parse_host(parts.netloc)
        if parts.scheme not in ("http", "https") or named is None or parts.path or parts.query or parts.fragment:
            return False
        # A proxy in front may speak TLS for us, so the Origin's own scheme fills in both ports.
        default = _DEFAULT_PORTS[parts.scheme]
        if named.host == host.host and (named.port or default) == (host.port or default):
            return True
        return api and named.is_loopback


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]
