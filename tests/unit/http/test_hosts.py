"""Which Host and Origin values are ours: loopback, the address a connection came in on, our name, and what was allowed."""

from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import OperatorError
from server.http.hosts import HostPort, Rules, own_names, parse_host

PLAIN = Rules.parse(None, None)


def allowed(host: str, local: str | None = "127.0.0.1", rules: Rules = PLAIN) -> bool:
    parsed = parse_host(host)
    return parsed is not None and rules.host_allowed(parsed, local)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8080",
        "localhost.:1",
        "app.localhost",
        "127.0.0.1:8080",
        "127.8.9.1",
        "[::1]:8080",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]:1",
    ],
)
def test_loopback_is_a_host_on_every_bind(host: str) -> None:
    assert allowed(host, "127.0.0.1") and allowed(host, "192.168.1.5") and allowed(host, None)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "notlocalhost",
        "0.0.0.0:8080",
        "[::]",
        "8.8.8.8",
        "192.168.1.6",
        "2130706433",
    ],
)
def test_foreign_hosts(host: str) -> None:
    assert not allowed(host, "192.168.1.5")


@pytest.mark.parametrize(
    "text", ["", ":80", "a b", "a:99999", "a:x", "user@localhost", "localhost/", "[::1", "::1", "[zz]", "a,b", "localhost:80:80", "."]
)
def test_what_is_no_host(text: str) -> None:
    assert parse_host(text) is None


def test_our_own_address_is_the_one_that_was_connected_to() -> None:
    assert allowed("192.168.1.5:8080", "192.168.1.5") and allowed("192.168.1.5", "::ffff:192.168.1.5")
    assert allowed("[fe80::1]", "fe80::1%eth0") and not allowed("192.168.1.5", "127.0.0.1")


def test_our_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    own_names.cache_clear()
    monkeypatch.setattr(socket, "gethostname", lambda: "Box.lan")
    try:
        assert allowed("box.lan") and allowed("box:8080") and allowed("BOX.local") and not allowed("box.example")
    finally:
        own_names.cache_clear()


def test_allowed_hosts() -> None:
    rules = Rules.parse("models.example.org, 10.0.0.7,::5", None)
    assert allowed("models.example.org:443", rules=rules) and allowed("10.0.0.7", rules=rules) and allowed("[::5]", rules=rules)
    assert not allowed("x.models.example.org", rules=rules)


@pytest.mark.parametrize(("hosts", "origins"), [("a b", None), ("http://x", None), (None, "example.org")])
def test_nonsense_in_the_flags_is_the_operators_mistake(hosts: str | None, origins: str | None) -> None:
    with pytest.raises(OperatorError, match="--"):
        Rules.parse(hosts, origins)


def origin_allowed(origin: str, host: str = "127.0.0.1:8080", *, api: bool = True, cors: str | None = None) -> bool:
    parsed = parse_host(host)
    assert parsed is not None
    return Rules.parse(None, cors).origin_allowed(origin, parsed, api=api)


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://127.0.0.1:8080", "127.0.0.1:8080"),
        ("http://box.local:8080", "box.local:8080"),
        ("http://192.168.1.5:8080", "192.168.1.5:8080"),
        ("https://models.example.org", "models.example.org"),
        ("https://models.example.org", "models.example.org:443"),
        ("http://[::1]:8080", "[::1]:8080"),
    ],
)
def test_same_origin_is_good_for_everything(origin: str, host: str) -> None:
    assert origin_allowed(origin, host, api=False) and origin_allowed(origin, host)


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:3000",
        "http://127.0.0.1:5173",
        "https://[::1]:1",
        "http://tauri.localhost",
        "app://obsidian.md",
        "tauri://localhost",
        "vscode-webview://1abc",
    ],
)
def test_loopback_and_apps_are_good_for_the_api_only(origin: str) -> None:
    assert origin_allowed(origin) and not origin_allowed(origin, api=False)


@pytest.mark.parametrize(
    "origin",
    ["null", "", "file://", "file:///x", "chrome-extension://abc", "moz-extension://abc", "https://evil.example",
     "http://192.168.1.5:3000", "http://8.8.8.8",
     "http://127.0.0.1.evil.example", "http://evil@localhost", 
     "http://localhost/path", "http://localhost evil", "http://", "https://box.local"],
)  # fmt: skip
def test_foreign_origins(origin: str) -> None:
    assert not origin_allowed(origin, "192.168.1.5:8080")


def test_listed_origins() -> None:
    listed = "https://chat.example/, null,chrome-extension://abc"
    for origin in ("https://chat.example", "null", "chrome-extension://abc"):
        assert origin_allowed(origin, cors=listed) and not origin_allowed(origin, cors=listed, api=False)
    assert not origin_allowed("https://chat.example.evil", cors=listed) and origin_allowed("https://any.example", cors="*")


@given(st.text(max_size=30))
def test_any_text_is_judged(text: str) -> None:
    host = parse_host(text)
    assert host is None or isinstance(PLAIN.host_allowed(host, "127.0.0.1"), bool)
    assert isinstance(PLAIN.origin_allowed(text, HostPort("localhost", None), api=True), bool)
