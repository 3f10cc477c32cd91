"""Event streams: headers, one write per event, comments in silence, and an end for those who left or do not read."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from server.http.sse import EventStream, event_bytes
from server.protocol import Delta, Queued, Started
from tests.unit.http.fakes import HANG, Step, finished
from tests.unit.http.live import Live, events, running

CHAT = "/v1/chat/completions"
STREAM = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}


def test_an_event_is_one_line_whatever_the_text() -> None:
    text = "a\nb\r\nc\u2028d\u2029e\x85f\x0bg\x1ch"
    data = event_bytes({"text": text})
    assert data.startswith(b"data: ") and data.endswith(b"\n\n")
    assert len(data.decode().rstrip("\n").splitlines()) == 1
    assert json.loads(data[6:])["text"] == text


@pytest.mark.asyncio
async def test_headers() -> None:
    async with running() as live, live.session.post(live.url + CHAT, json=STREAM) as response:
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert "no-cache" in response.headers["Cache-Control"] and response.headers["X-Accel-Buffering"] == "no"


@pytest.mark.asyncio
async def test_the_stream_opens_as_soon_as_the_request_is_accepted() -> None:
    async with running() as live:
        live.runner.script = lambda request: [Queued(1, 3, 5), HANG]
        for path, body in (
            (CHAT, STREAM),
            ("/v1/completions", {"prompt": "x", "stream": True}),
            ("/completion", {"prompt": "x", "stream": True}),
        ):
            async with live.session.post(live.url + path, json=body) as response:
                assert response.status == 200
                assert await asyncio.wait_for(response.content.readany(), 5)
        await live.idle()


@pytest.mark.parametrize("before_acceptance", [True, False])
@pytest.mark.asyncio
async def test_comments_fill_the_silence_also_before_the_first_token(before_acceptance: bool) -> None:
    async with running(sse_ping_interval=0.1) as live:
        wait: list[Step] = [0.5]
        script: list[Step] = [*wait, Queued(1, 0, 5)] if before_acceptance else [Queued(1, 0, 5), Started(1, 0, 5, 0), *wait]
        live.runner.script = lambda request: [*script, Delta(1, "x"), finished(1)]
        _, content = await live.post(CHAT, STREAM)
        assert content.count(b"\n\n: ping\n\n") + content.startswith(b": ping\n\n") >= 2
        assert events(content)[-1] == "[DONE]"
        _, content = await live.post(CHAT, {**STREAM, "sse_ping_interval": -1})
        assert b"ping" not in content


@pytest.mark.asyncio
async def test_a_busy_stream_has_no_comments() -> None:
    async with running(sse_ping_interval=0.3) as live:
        live.runner.script = lambda request: [Queued(1, 0, 5), *([0.05, Delta(1, "x")] * 10), finished(10)]  # type: ignore[list-item]
        _, content = await live.post(CHAT, STREAM)
        assert b"ping" not in content


@pytest.mark.asyncio
async def test_an_event_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    original = web.StreamResponse.write

    async def write(self: web.StreamResponse, data: bytes) -> None:
        written.append(data)
        await original(self, data)

    monkeypatch.setattr(web.StreamResponse, "write", write)
    async with running() as live:
        await live.post(CHAT, {**STREAM, "stream_options": {"include_usage": True}})
    assert all(data.startswith((b"data: ", b": ")) and data.endswith(b"\n\n") for data in written)
    assert len(written) == 6, "role, two deltas, the end, usage, [DONE]"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    "at", [[], [Queued(1, 0, 5)], [Queued(1, 0, 5), Started(1, 0, 5, 0)], [Queued(1, 0, 5), Started(1, 0, 5, 0), Delta(1, "x")]]
)
@pytest.mark.asyncio
async def test_a_client_that_leaves_cancels_at_every_stage(stream: bool, n: int, at: list[Step]) -> None:
    async with running() as live:
        live.runner.script = lambda request: [*at, HANG]
        _, writer = await _post(live, json.dumps({**STREAM, "stream": stream, "n": n}).encode())
        async with asyncio.timeout(5):
            while len(live.runner.running) < n:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert not live.runner.cancelled
        writer.close()
        await live.idle()
        assert len(live.runner.cancelled) == n
        _, metrics = await live.get("/metrics")
        assert f'capsule_generations_total{{finish_reason="cancelled",priority="normal"}} {n}.0' in metrics.decode()


async def _post(live: Live, body: bytes, **options: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port, **options)
    writer.write(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (CHAT.encode(), len(body), body))
    return reader, writer


@pytest.mark.asyncio
async def test_a_client_that_does_not_read_is_cut_off_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EventStream.__init__, "__kwdefaults__", {"stall_s": 0.5})
    flood = "x" * 20_000
    async with running() as live:
        live.runner.script = lambda request: [Delta(1, flood)] * 2000 + [finished(2000)]
        _, writer = await _post(live, json.dumps(STREAM).encode(), limit=1024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(5):
            while not live.runner.running:
                await asyncio.sleep(0.01)
        assert (await live.get("/health"))[0] == 200
        await live.idle(10)
        assert len(live.runner.cancelled) == 1
        writer.close()


@pytest.mark.asyncio
async def test_a_failure_before_anything_was_sent_is_no_stream() -> None:
    async with running() as live:
        reached = []

        async def fails(request: web.Request) -> web.StreamResponse:
            async with EventStream(request, ping_interval=0) as out:
                reached.append(out.started)
                raise RuntimeError

        async def fails_late(request: web.Request) -> web.StreamResponse:
            async with EventStream(request, ping_interval=0) as out:
                await out.send({"a": 1})
                reached.append(out.started)
                raise RuntimeError

        for handler, expected in ((fails, (500, None)), (fails_late, (200, {"a": 1}))):
            live.app.router._frozen = False
            live.app.router.add_get(f"/test-{handler.__name__}", handler)
            status, content = await live.get(f"/test-{handler.__name__}")
            found = events(content) if isinstance(content, bytes) else [None]
            assert (status, found[0]) == expected
        last: Any = found[-1]
        assert reached == [False, True] and last["error"]["type"] == "server_error"
