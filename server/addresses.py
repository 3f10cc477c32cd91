"""IP addresses: which of them are trusted proxies, who is behind those, and what counts as one client. Pure: no request, no socket."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from server.errors import OperatorError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_PORT = re.compile(r"^(?:\[(?P<six>[^\]]*)\]|(?P<four>[^:\[\]]*))(?::\d{1,5})?$")
_FOR = re.compile(r'(?:^|;)\s*for\s*=\s*(?:"(?P<quoted>[^"]*)"|(?P<bare>[^;\s]*))', re.IGNORECASE)


def parse_address(text: str) -> Address | None:
    """An address without brackets or port, with or without a zone; an IPv4 address mapped into IPv6 is that IPv4 address."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped if mapped is not None else address


def client_label(text: str) -> str:
    """What addresses of one client have in common: all loopback ones, an IPv6 network of 64 bits, else the address itself."""
    address = parse_address(text)
    if address is None:
        return "local" if not text else text
    if address.is_loopback:
        return "loopback"
    if address.version == 6 and not address.is_link_local:
        return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
    return str(address)


@dataclass(frozen=True, slots=True)
class Proxies:
    """Peers whose word about who is behind them is believed."""

    networks: tuple[Network, ...] = ()

    @classmethod
    def parse(cls, text: str | None, flag: str = "--trusted-proxy") -> Proxies:
        """From a comma-separated list of addresses and networks.

        Raises:
            OperatorError: an entry is neither.
        """
        networks = []
        for entry in filter(None, (part.strip() for part in (text or "").split(","))):
            try:
                networks.append(ipaddress.ip_network(entry.strip("[]"), strict=False))
            except ValueError:
                raise OperatorError(
                    f"{flag}: {entry!r} is neither an address nor a network", hint="for example --trusted-proxy 10.0.0.1,192.168.0.0/16"
                ) from None
        return cls(tuple(networks))

    def __contains__(self, address: Address) -> bool:
        return any(address in network for network in self.networks)

    def client(self, peer: str, x_forwarded_for: Sequence[str], forwarded: Sequence[str]) -> str:
        """The address of the client: the peer itself, or the right-most one that no trusted proxy has, where the peer is trusted.

        Each proxy appends the peer it saw, so what stands to the left of that address may be invented by the client. A proxy writes
        one of the two headers and passes the other on as it came: where both are there and disagree, neither is believed.
        """
        address = parse_address(peer)
        if address is None or address not in self:
            return peer
        found: set[Address | None] = set()
        if x_forwarded_for:
            found.add(self._behind(_listed(x_forwarded_for)))
        if forwarded:
            found.add(self._behind(_named(forwarded)))
        client = found.pop() if len(found) == 1 else None
        return peer if client is None else str(client)

    def _behind(self, names: Iterator[str]) -> Address | None:
        """The first untrusted of `names` (nearest first); the farthest trusted one where all that can be read are trusted."""
        last: Address | None = None
        for name in names:
            address = _with_port(name)
            if address is None:
                break
            last = address
            if address not in self:
                break
        return last


def _listed(lines: Sequence[str]) -> Iterator[str]:
    """Entries of X-Forwarded-For, the nearest first."""
    return (entry for line in reversed(lines) for entry in reversed(line.split(",")))


def _named(lines: Sequence[str]) -> Iterator[str]:
    """`for=` of the elements of Forwarded (RFC 7239), the nearest first; an element without one reads as an empty name."""
    for element in _listed(lines):
        found = _FOR.search(element)
        yield "" if found is None else found["quoted"] or found["bare"] or ""


def _with_port(text: str) -> Address | None:
    text = text.strip()
    found = _PORT.match(text)
    return parse_address(text if found is None else found["six"] or found["four"] or "")
