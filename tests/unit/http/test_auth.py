"""With keys set, every route asks for one but health and the page; quitting needs the launch secret or an admin key."""

from __future__ import annotations

import hmac
from pathlib import Path

import pytest

from server.http.auth import PUBLIC
from tests.unit.http.fakes import SECRET
from tests.unit.http.live import Live, running


def routes(live: Live) -> list[tuple[str, str]]:
    found = []
    for route in live.app.router.routes():
        resource = route.resource
        assert resource is not None
        found.append((route.method, resource.canonical.replace("{id}", "tiny")))
    return found


@pytest.mark.asyncio
async def test_every_route_but_the_public_ones_asks_for_a_key() -> None:
    async with running(api_key="right,other") as live:
        seen_private = 0
        for method, path in routes(live):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"X-Api-Key": "wrong"}, {"Authorization": "Basic right"}):
                status, reply, answer = await live.ask(method, path, headers=headers)
                assert (status != 401) == (path in PUBLIC), (method, path)
                if status == 401 and method != "HEAD":
                    assert reply["error"]["type"] == "authentication_error" and answer["WWW-Authenticate"] == "Bearer"
                    seen_private += 1
            if path not in PUBLIC:
                for headers in ({"Authorization": "Bearer right"}, {"authorization": "bearer  other "}, {"X-Api-Key": "right"}):
                    assert (await live.ask(method, path, headers=headers))[0] != 401, (method, path)
        assert seen_private > 20
        assert (await live.get("/nothing"))[0] == 401, "an unknown address tells nothing to those without a key"


@pytest.mark.parametrize(
    "path", ["/%71uit", "/quit/", "//quit", "/./quit", "/x/../quit", "/QUIT", "/health/../quit", "/quit%2f", "/quit;x"]
)
@pytest.mark.asyncio
async def test_other_spellings_of_an_address_get_no_further(path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n"
    async with running() as live:
        for extra in ("", f"Origin: http://localhost:3000\r\nX-Capsule-Launch: {SECRET}\r\n"):
            reply = await live.raw(f"{head}{extra}\r\n{{}}".encode())
            assert reply.split(b" ")[1] in (b"403", b"404"), reply
        assert not live.quits
    async with running(api_key="k") as live:
        reply = await live.raw(f"{head.replace('POST', 'GET').replace('quit', 'props')}\r\n{{}}".encode())
        assert reply.split(b" ")[1] == b"401", reply


@pytest.mark.asyncio
async def test_without_keys_nobody_is_asked() -> None:
    async with running() as live:
        assert (await live.get("/v1/models", Authorization="Bearer whatever"))[0] == 200


@pytest.mark.asyncio
async def test_of_several_keys_one_must_be_right() -> None:
    async with running(api_key="right") as live:
        for headers in (
            {"Authorization": "Bearer other", "X-Api-Key": "right"},
            {"Authorization": "Bearer right", "X-Api-Key": "other"},
            {"Api-Key": "right"},
            {"Authorization": "Bearer", "X-Api-Key": "", "Api-Key": "right"},
        ):
            assert (await live.ask("GET", "/v1/models", headers=headers))[0] == 200, headers
        for headers in ({"Authorization": "Bearer other", "X-Api-Key": "other", "Api-Key": "other"}, {"Api-Key": ""}):
            assert (await live.ask("GET", "/v1/models", headers=headers))[0] == 401, headers


@pytest.mark.asyncio
async def test_quitting(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("boss b 1 normal admin\nuser u\n")
    file.chmod(0o600)
    async with running() as live:
        for headers in ({}, {"X-Capsule-Launch": ""}, {"X-Capsule-Launch": "wrong"}, {"Authorization": f"Bearer {SECRET}"}):
            assert (await live.ask("POST", "/quit", headers=headers))[0] == 403
        live.context.launch_secret = ""
        assert (await live.ask("POST", "/quit", headers={"X-Capsule-Launch": ""}))[0] == 403
    async with running(api_key="plain", api_key_file=str(file)) as live:
        for key, status in (("plain", 403), ("user", 403), ("wrong", 401), ("boss", 200)):
            assert (await live.ask("POST", "/quit", headers={"X-Api-Key": key}))[0] == status
        assert (await live.ask("POST", "/quit", headers={"X-Capsule-Launch": SECRET}))[0] == 200


@pytest.mark.asyncio
async def test_comparison_takes_all_keys_and_is_the_constant_time_one(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    original = hmac.compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return original(a, b)

    async with running(api_key="a,b,c") as live:
        monkeypatch.setattr("server.http.keys.hmac.compare_digest", compare)
        for key in ("a", "wrong"):
            compared.clear()
            await live.get("/v1/models", X_Api_Key=key)
            assert len(compared) == 3 and len({len(side) for pair in compared for side in pair}) == 1
