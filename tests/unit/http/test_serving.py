"""The connection's own limits: time for headers, their size, connections per address, keep-alive, malformed requests."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from server.http.serving import ConnectionLimits
from server.protocol import Queued
from tests.unit.http.fakes import HANG, finished
from tests.unit.http.live import Live, running

HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def connect(live: Live) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", live.port)


async def response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    return int(head.split(b" ")[1]), await reader.readexactly(length)


@pytest.mark.asyncio
async def test_headers_have_a_time_limit_on_the_first_and_on_later_requests() -> None:
    limits = ConnectionLimits(header_timeout_s=0.3, keepalive_timeout_s=30)
    async with running(limits) as live:
        for start in (b"", b"GET / HTTP/1.1\r\nHost: local"):
            began = time.monotonic()
            assert await live.raw(start) == b""
            assert time.monotonic() - began >= 0.25
        reader, writer = await connect(live)
        writer.write(HEAD)
        assert (await response(reader))[0] == 200
        await asyncio.sleep(0.6)
        writer.write(HEAD)  # an idle connection may stay longer than that
        assert (await response(reader))[0] == 200
        writer.write(HEAD[:20])
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


@pytest.mark.asyncio
async def test_the_limit_for_headers_does_not_touch_a_long_answer_or_a_slow_body() -> None:
    async with running(ConnectionLimits(header_timeout_s=0.2)) as live:
        live.runner.script = lambda request: [Queued(1, 0, 5), 0.6, finished(0)]
        status, _ = await live.post("/v1/completions", {"prompt": "x"})
        assert status == 200
        reader, writer = await connect(live)
        writer.write(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16\r\n\r\n")
        await asyncio.sleep(0.4)
        writer.write(b'{"content": "x"}')
        assert (await response(reader))[0] == 200
        writer.close()


@pytest.mark.asyncio
async def test_idle_connections_are_closed() -> None:
    async with running(ConnectionLimits(keepalive_timeout_s=0.3)) as live:
        reader, writer = await connect(live)
        writer.write(HEAD)
        assert (await response(reader))[0] == 200
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()


@pytest.mark.asyncio
async def test_connections_of_one_address_are_counted() -> None:
    async with running(ConnectionLimits(per_address=3)) as live:
        kept = [await connect(live) for _ in range(3)]
        await asyncio.sleep(0.05)
        reader, writer = await connect(live)
        status, body = await response(reader)
        assert status == 503 and json.loads(body)["error"]["code"] == "queue_full"
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        for _, one in kept:
            one.close()
        await asyncio.sleep(0.1)
        for _ in range(5):
            reader, writer = await connect(live)
            writer.write(HEAD)
            assert (await response(reader))[0] == 200
            writer.close()
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 40_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 500 + b"\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ],
    ids=["long line", "long header", "many headers", "nonsense", "version", "length", "smuggling", "TLS"],
)
@pytest.mark.asyncio
async def test_malformed_requests_get_our_shape_and_an_end(data: bytes, status: int) -> None:
    async with running(ConnectionLimits(header_timeout_s=1)) as live:
        reply = await live.raw(data)
        assert reply.split(b" ")[1] == str(status).encode()
        assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
        assert (await live.get("/health"))[0] == 200


@pytest.mark.asyncio
async def test_health_answers_while_prompts_are_worked_on() -> None:
    async with running() as live:
        live.runner.script = lambda request: [Queued(1, 0, 5), HANG]
        tasks = [asyncio.create_task(live.post("/v1/completions", {"prompt": "x"})) for _ in range(50)]
        async with asyncio.timeout(5):
            while len(live.runner.running) < 50:
                await asyncio.sleep(0.01)
        assert (await live.get("/health")) == (200, {"status": "ok", "nonce": "nonce"})
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await live.idle()


@pytest.mark.asyncio
async def test_many_connections_at_once_are_all_answered() -> None:
    async with running() as live:
        await asyncio.gather(*(_one(live) for _ in range(300)))


async def _one(live: Live) -> None:
    reader, writer = await connect(live)
    writer.write(HEAD)
    assert (await response(reader))[0] == 200
    writer.close()


@pytest.mark.asyncio
async def test_no_response_names_the_parts_the_program_is_made_of() -> None:
    async with running() as live:
        for request in (HEAD, b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"nonsense\r\n\r\n"):
            head = (await live.raw(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))).partition(b"\r\n\r\n")[0]
            assert b"\r\nServer: Capsule\r\n" in head + b"\r\n" and b"aiohttp" not in head.lower(), head
