"""Who a client is: nobody can put himself behind another address, and addresses of one client count as one."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.addresses import Proxies, client_label, parse_address
from server.errors import OperatorError

PROXIES = Proxies.parse("10.0.0.0/8, 127.0.0.1,fd00::/64")


@pytest.mark.parametrize(
    ("peer", "chain", "client"),
    [
        ("203.0.113.9", ["198.51.100.1"], "203.0.113.9"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("::ffff:10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("fd00::5", ["2001:db8::1"], "2001:db8::1"),
        ("10.0.0.1", ["6.6.6.6, 198.51.100.1, 10.2.2.2"], "198.51.100.1"),
        ("10.0.0.1", ["6.6.6.6", "198.51.100.1", "10.2.2.2"], "198.51.100.1"),
        ("10.0.0.1", ["198.51.100.1:5678"], "198.51.100.1"),
        ("10.0.0.1", ["[2001:db8::1]:5678"], "2001:db8::1"),
        ("10.0.0.1", ["6.6.6.6, unknown, 10.2.2.2"], "10.2.2.2"),
        ("10.0.0.1", ["10.3.3.3, 10.2.2.2"], "10.3.3.3"),
        ("10.0.0.1", ["6.6.6.6, nonsense"], "10.0.0.1"),
        ("10.0.0.1", ["6.6.6.6,"], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("", ["6.6.6.6"], ""),
    ],
)
def test_the_right_most_untrusted_address_is_the_client(peer: str, chain: list[str], client: str) -> None:
    assert PROXIES.client(peer, chain, []) == client
    forwarded = [", ".join(f'proto=http;for="{name.strip()}";by=_x' for name in line.split(",")) for line in chain]
    assert PROXIES.client(peer, [], forwarded) == client


def test_forwarded_without_quotes_and_in_capitals() -> None:
    assert PROXIES.client("10.0.0.1", [], ["For=6.6.6.6, FOR=198.51.100.1;proto=https"]) == "198.51.100.1"
    assert PROXIES.client("10.0.0.1", [], ["for=198.51.100.1, proto=https"]) == "10.0.0.1", "the nearest element names nobody"


def test_two_headers_that_disagree_are_not_believed() -> None:
    """A proxy writes one of them; the other one came from the client."""
    assert PROXIES.client("10.0.0.1", ["198.51.100.1"], ["for=6.6.6.6"]) == "10.0.0.1"
    assert PROXIES.client("10.0.0.1", ["unknown"], ["for=6.6.6.6"]) == "10.0.0.1"
    assert PROXIES.client("10.0.0.1", ["198.51.100.1"], ["for=198.51.100.1"]) == "198.51.100.1"


@given(st.lists(st.text(alphabet='0123456789abcdef.:[],;="for un', max_size=40), max_size=4), st.booleans())
def test_whatever_a_client_writes_the_address_that_the_proxy_saw_is_used(invented: list[str], as_forwarded: bool) -> None:
    seen = "198.51.100.7"
    lines = [*invented[:-1], (invented[-1] + ", " if invented else "") + (f"for={seen}" if as_forwarded else seen)]
    headers: tuple[list[str], list[str]] = ([], lines) if as_forwarded else (lines, [])
    assert PROXIES.client("10.0.0.1", *headers) == seen
    assert PROXIES.client("192.0.2.1", *headers) == "192.0.2.1", "a stranger's headers say nothing"


def test_addresses_of_one_client_count_as_one() -> None:
    assert {client_label(a) for a in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1")} == {"loopback"}
    assert client_label("::ffff:192.0.2.1") == client_label("192.0.2.1") == "192.0.2.1"
    assert client_label("2001:db8:1:2::1") == client_label("2001:db8:1:2:ffff::9") == "2001:db8:1:2::/64"
    assert client_label("2001:db8:1:3::1") != client_label("2001:db8:1:2::1")
    assert client_label("fe80::1%eth0") == client_label("fe80::1") != client_label("fe80::2"), "neighbours are not one"
    assert client_label("") == "local"


@pytest.mark.parametrize("text", ["localhost", "10.0.0.0/33", "10.0.0.1-10.0.0.9", "example.org,10.0.0.1"])
def test_what_is_no_address_is_the_operators_mistake(text: str) -> None:
    with pytest.raises(OperatorError, match=r"^--flag: .* is neither an address nor a network$"):
        Proxies.parse(text, "--flag")


def test_a_list_may_be_written_loosely() -> None:
    proxies = Proxies.parse(" 10.0.0.5/8 , ,[::1],")
    for inside in ("10.255.0.1", "::1"):
        address = parse_address(inside)
        assert address is not None and address in proxies
    assert ipaddress.ip_address("127.0.0.1") not in proxies
    assert Proxies.parse(None) == Proxies.parse("") == Proxies()
