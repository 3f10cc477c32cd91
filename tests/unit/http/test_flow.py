"""Whose a request is: nobody promotes himself or borrows another's address, and keys share no cache unless they may."""

from __future__ import annotations

import pytest

from server.errors import Forbidden
from server.http.flow import attributed
from server.protocol import Flow, GenerationRequest, Priority
from server.requests import CLASSES
from tests.unit.http.mocked import Site, key

PLAIN = GenerationRequest(prompt="x", flow=Flow(session="s1"), namespace="salt")


def test_a_request_without_keys_has_an_address_and_keeps_its_session_and_salt() -> None:
    done = attributed(Site().request(), PLAIN, explicit_priority=False)
    assert done.flow == Flow(address="192.0.2.1", session="s1")
    assert (done.namespace, done.priority, done.prompt) == ("salt", "normal", "x")


def test_a_key_gives_its_name_weight_and_bound() -> None:
    alpha = key("alpha", weight=2.5, running=3)
    done = attributed(Site((alpha,)).request(alpha, peer="::1"), PLAIN, explicit_priority=False)
    assert done.flow == Flow(key="alpha", weight=2.5, max_running=3, address="loopback", session="s1")


@pytest.mark.parametrize("highest", CLASSES)
@pytest.mark.parametrize("asked", CLASSES)
def test_no_class_above_the_keys_highest(highest: Priority, asked: Priority) -> None:
    holder = key("k", max_class=highest)
    request = Site((holder,)).request(holder)
    given = GenerationRequest(prompt="x", priority=asked)
    if CLASSES.index(asked) >= CLASSES.index(highest):
        assert attributed(request, given, explicit_priority=True).priority == asked
    else:
        with pytest.raises(Forbidden, match=f"^priority: .* {highest} .* {asked}$") as refused:
            attributed(request, given, explicit_priority=True)
        assert refused.value.param == "priority"
        assert attributed(request, given, explicit_priority=False).priority == highest, "a default takes the cap"


def test_without_keys_every_class_is_free() -> None:
    for name in CLASSES:
        given = GenerationRequest(prompt="x", priority=name)
        assert attributed(Site().request(), given, explicit_priority=True).priority == name


def test_who_shares_a_cache() -> None:
    alpha, beta = key("alpha"), key("beta")

    def spaces(isolation: str, *keys_: object, salt: str = "") -> list[str]:
        site = Site((alpha, beta)[: len(keys_)], cache_isolation=isolation)
        given = GenerationRequest(prompt="x", namespace=salt)
        return [attributed(site.request(k), given, explicit_priority=False).namespace for k in (alpha, beta)[: len(keys_)]]

    assert spaces("none", 1, 1) == ["", ""]
    assert spaces("auto", 1) == [""]
    assert len(set(spaces("auto", 1, 1))) == len(set(spaces("key", 1, 1))) == 2
    assert spaces("key", 1) != [""]
    both = {*spaces("auto", 1, 1), *spaces("auto", 1, 1, salt="alpha"), *spaces("auto", 1, 1, salt="beta")}
    assert len(both) == 6, "no salt leads into another key's space"


def test_a_second_key_of_the_same_name_is_the_same_account() -> None:
    old, new = key("team"), key("team")
    site = Site((old, new))
    assert attributed(site.request(old), PLAIN, explicit_priority=False).namespace == "salt"


def test_forwarded_addresses_are_believed_from_trusted_proxies_only() -> None:
    spoofed = [("X-Forwarded-For", "6.6.6.6"), ("X-Forwarded-For", "198.51.100.1, 10.0.0.2")]

    def address(peer: str, trusted: str | None) -> str:
        site = Site(trusted_proxy=trusted)
        return attributed(site.request(peer=peer, headers=spoofed), PLAIN, explicit_priority=False).flow.address

    assert address("192.0.2.1", None) == address("192.0.2.1", "10.0.0.0/8") == "192.0.2.1"
    assert address("10.0.0.1", "10.0.0.0/8") == "198.51.100.1"
    assert address("10.0.0.1", "10.0.0.1") == "10.0.0.2", "a proxy that is not trusted itself is where the trail ends"
    assert address("127.0.0.1", None) == "loopback"
