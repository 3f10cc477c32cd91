"""What a foreign web page can make a browser send is refused, whatever the address; what our clients send is not."""

from __future__ import annotations

import pytest

from tests.unit.http.fakes import SECRET
from tests.unit.http.live import running

CHAT = "/v1/chat/completions"
USER = {"messages": [{"role": "user", "content": "Hi"}]}
EVIL = "https://evil.example"


@pytest.mark.asyncio
async def test_a_foreign_host_is_refused_on_every_route_and_names_the_flag() -> None:
    async with running() as live:
        for path in ("/", "/health", "/v1/models", "/nothing"):
            status, reply = await live.get(path, Host="evil.example:8080")
            assert status == 403 and "--allowed-hosts" in reply["error"]["message"]
        assert (await live.get("/health", Host="localhost"))[0] == 200
    async with running(allowed_hosts="evil.example") as live:
        assert (await live.get("/health", Host="evil.example:8080"))[0] == 200


@pytest.mark.parametrize(
    "request_head",
    [
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
        b"GET http://evil/health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
@pytest.mark.asyncio
async def test_a_request_names_exactly_one_host_and_a_path(request_head: bytes) -> None:
    async with running() as live:
        reply = await live.raw(request_head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert reply.split(b" ")[1] == b"400" and b'"error"' in reply


@pytest.mark.parametrize("origin", ["null", "file://", "chrome-extension://abc", EVIL, "http://192.168.1.9:3000"])
@pytest.mark.asyncio
async def test_foreign_origins_are_refused_and_told_the_flag(origin: str) -> None:
    async with running() as live:
        for status, reply in (await live.post(CHAT, USER, Origin=origin), await live.get("/v1/models", Origin=origin)):
            assert status == 403 and "--cors-origins" in reply["error"]["message"]
        assert not live.runner.requests


@pytest.mark.asyncio
async def test_an_allowed_origin_gets_exactly_itself_on_answers_errors_and_streams() -> None:
    async with running(cors_origins=EVIL) as live:
        for origin in (live.url, "http://localhost:3000", "tauri://localhost", EVIL):
            for body in (USER, {}, {**USER, "stream": True}):
                async with live.session.post(live.url + CHAT, json=body, headers={"Origin": origin}) as response:
                    await response.read()
                    assert response.status in (200, 400)
                    assert response.headers["Access-Control-Allow-Origin"] == origin
                    assert "Origin" in response.headers["Vary"]
                    assert "Access-Control-Allow-Credentials" not in response.headers
        _, _, headers = await live.ask("GET", "/v1/models")
        assert "Access-Control-Allow-Origin" not in headers and "Origin" in headers["Vary"]
        assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.asyncio
async def test_the_page_and_quitting_are_for_our_own_origin() -> None:
    async with running() as live:
        for origin in ("http://localhost:3000", "tauri://localhost"):
            assert (await live.get("/", Origin=origin))[0] == 403
            assert (await live.post("/quit", {}, Origin=origin, X_Capsule_Launch=SECRET))[0] == 403
        assert not live.quits
        assert (await live.post("/quit", {}, Origin=live.url, X_Capsule_Launch=SECRET))[0] == 200


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
@pytest.mark.asyncio
async def test_browsers_must_post_json(content_type: str) -> None:
    async with running() as live:
        for header in ({"Origin": live.url}, {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Mode": "no-cors"}):
            status, reply, _ = await live.ask(
                "POST", CHAT, data=b'{"messages": []}', headers={"Content-Type": content_type or "application/octet-stream", **header}
            )
            assert status == 415 and "application/json" in reply["error"]["message"]
        assert not live.runner.requests


@pytest.mark.asyncio
async def test_a_bare_curl_works() -> None:
    async with running() as live:
        body = b'{"messages": [{"role": "user", "content": "Hi"}]}'
        status, _, _ = await live.ask("POST", CHAT, data=body, headers={"Content-Type": "application/x-www-form-urlencoded"})
        assert status == 200


@pytest.mark.asyncio
async def test_compressed_bodies_are_refused() -> None:
    async with running() as live:
        for coding in ("gzip", "deflate", "br", "x"):
            status, reply, _ = await live.ask("POST", CHAT, data=b"\x1f\x8b\x00", headers={"Content-Encoding": coding}, compress=False)
            assert status == 415 and "Content-Encoding" in reply["error"]["message"]


@pytest.mark.asyncio
async def test_preflight_answers_what_is_allowed_and_nothing_else() -> None:
    wanted = (
        "authorization, content-type, x-api-key, openai-beta, anthropic-version, x-stainless-os, X-Stainless-Retry-Count, x-evil, cookie"
    )
    ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": wanted}
    async with running(api_key="k") as live:
        status, _, headers = await live.ask("OPTIONS", CHAT, headers={"Origin": "http://localhost:3000", **ask})
        assert status == 204
        assert headers["Access-Control-Allow-Origin"] == "http://localhost:3000"
        assert headers["Access-Control-Allow-Methods"] == "POST"
        granted = headers["Access-Control-Allow-Headers"].split(", ")
        assert granted == [n.lower() for n in wanted.split(", ")][:-2]
        assert "Access-Control-Allow-Credentials" not in headers and "Access-Control-Allow-Private-Network" not in headers

        status, _, headers = await live.ask("OPTIONS", "/v1/models", headers={"Origin": live.url, "Access-Control-Request-Method": "GET"})
        assert status == 204 and headers["Access-Control-Allow-Methods"] == "GET, HEAD"

        for origin in (EVIL, "null"):
            status, _, headers = await live.ask("OPTIONS", CHAT, headers={"Origin": origin, **ask})
            assert status == 403 and not any(name.lower().startswith("access-control-allow") for name in headers)
        status, _, _ = await live.ask("OPTIONS", "/nothing", headers={"Origin": live.url, **ask})
        assert status == 404
        for path in ("/quit", "/"):
            status, _, _ = await live.ask("OPTIONS", path, headers={"Origin": "http://localhost:3000", **ask})
            assert status == 403


@pytest.mark.asyncio
async def test_preflight_into_a_private_network() -> None:
    ask = {"Origin": EVIL, "Access-Control-Request-Method": "POST", "Access-Control-Request-Private-Network": "true"}
    async with running(cors_origins=EVIL) as live:
        status, _, headers = await live.ask("OPTIONS", CHAT, headers=ask)
        assert status == 204 and headers["Access-Control-Allow-Private-Network"] == "true"


@pytest.mark.asyncio
async def test_get_changes_nothing() -> None:
    async with running() as live:
        for path in ("/quit", CHAT, "/completion", "/tokenize"):
            status, reply, headers = await live.ask("GET", path, headers={"X-Capsule-Launch": SECRET})
            assert status == 405 and headers["Allow"] == "POST"
        assert not live.quits and not live.runner.requests
