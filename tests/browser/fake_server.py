"""A scripted server for the page: tests decide what it says and when, and see what the page sent. Knows no engine and no model."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import queue
import re
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from aiohttp import web

PAGE = Path(__file__).resolve().parents[2] / "server" / "web" / "index.html"
WAIT = 15.0


def content_security_policy(page: str) -> str:
    """The policy that the page has to live under: nothing but its own two blocks, by hash, and its own origin."""

    def hashed(tag: str) -> str:
        blocks = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(block.encode()).digest()).decode()}'" for block in blocks)

    return (
        f"default-src 'none'; connect-src 'self'; img-src 'self' data:; script-src {hashed('script')}; style-src {hashed('style')}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


@dataclass(frozen=True)
class Received:
    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


@dataclass
class Stream:
    """One answer under the test's control. `closed` is set when the page has dropped the connection."""

    request: Any
    headers: Mapping[str, str]
    loop: asyncio.AbstractEventLoop
    chunks: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)
    closed: threading.Event = field(default_factory=threading.Event)
    abort: bool = False

    def raw(self, data: bytes) -> None:
        """Exactly these bytes, in a chunk of their own."""
        self.loop.call_soon_threadsafe(self.chunks.put_nowait, data)

    def event(self, value: Any) -> None:
        self.raw(b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n")

    def text(self, text: str) -> None:
        self.event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})

    def finish(self, reason: str = "stop", *, n: int = 12, rate: float = 34.56) -> None:
        """The rest of a complete answer: reason, usage with timings, [DONE]."""
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        timings = {"predicted_n": n, "predicted_per_second": rate}
        self.event({"choices": [], "usage": {"completion_tokens": n, "prompt_tokens": 5}, "timings": timings})
        self.raw(b"data: [DONE]\n\n")
        self.end()

    def end(self, *, abort: bool = False) -> None:
        """Close the connection here; `abort`: without ending the response first."""
        self.abort = abort
        self.loop.call_soon_threadsafe(self.chunks.put_nowait, None)


class FakeServer:
    """Runs in a thread of its own. Attributes may be set by the test at any time; `requests` is what has arrived."""

    def __init__(self) -> None:
        self.page = PAGE.read_text(encoding="utf-8")
        self.model = "Tiny-1B-Instruct"
        self.key = ""
        self.launch_secret = "s3cret"
        self.loading: Mapping[str, Any] | None = None
        """Body of a 503 that /health answers, or None when the model is there."""
        self.refusal: tuple[int, Any] | None = None
        """Status and body (text, or an object for JSON) of every chat request, instead of a stream."""
        self.requests: list[Received] = []
        self.quit = threading.Event()
        self._streams: queue.Queue[Stream] = queue.Queue()
        self._loop = asyncio.new_event_loop()
        self._port: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, name="fake-server")

    def __enter__(self) -> FakeServer:
        self._thread.start()
        self.port = self._port.result(WAIT)
        self.url = f"http://127.0.0.1:{self.port}/"
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT)
        assert not self._thread.is_alive()

    def stream(self) -> Stream:
        """The next chat request that was accepted, waiting for it if need be."""
        return self._streams.get(timeout=WAIT)

    def sent(self, path: str) -> list[Received]:
        return [r for r in self.requests if r.path == path]

    # ---- its own thread ----

    def _run(self) -> None:
        app = web.Application(middlewares=[self._record])
        app.add_routes(
            [
                web.get("/", self._page),
                web.get("/health", self._health),
                web.get("/v1/models", self._models),
                web.get("/props", self._props),
                web.post("/v1/chat/completions", self._chat),
                web.post("/quit", self._quit),
            ]
        )
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)

        async def start() -> int:
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            return int(runner.addresses[0][1])

        try:
            self._port.set_result(self._loop.run_until_complete(start()))
            self._loop.run_forever()
            self._loop.run_until_complete(runner.cleanup())
        finally:
            self._loop.close()

    @web.middleware
    async def _record(self, request: web.Request, handler: Any) -> web.StreamResponse:
        body = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append(Received(request.method, request.path_qs, headers, json.loads(body) if body else None))
        protected = request.path not in ("/", "/health")
        if protected and self.key and headers.get("authorization") != f"Bearer {self.key}":
            given = "the API key is not valid" if "authorization" in headers else "an API key is required"
            return web.json_response({"error": {"message": given, "type": "authentication_error"}}, status=401)
        response = await handler(request)
        assert isinstance(response, web.StreamResponse)
        return response

    async def _page(self, request: web.Request) -> web.Response:
        headers = {"Content-Security-Policy": content_security_policy(self.page)}
        return web.Response(text=self.page, content_type="text/html", headers=headers)

    async def _health(self, request: web.Request) -> web.Response:
        if self.loading is not None:
            return web.json_response(self.loading, status=503)
        return web.json_response({"status": "ok"})

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.model, "object": "model"}]})

    async def _props(self, request: web.Request) -> web.Response:
        return web.json_response({"default_generation_settings": {"n_ctx": 2048}, "total_slots": 4})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        if self.refusal is not None:
            status, body = self.refusal
            return web.Response(status=status, text=body) if isinstance(body, str) else web.json_response(body, status=status)
        stream = Stream(await request.json(), {name.lower(): value for name, value in request.headers.items()}, self._loop)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        self._streams.put(stream)
        try:
            while (chunk := await stream.chunks.get()) is not None:
                await response.write(chunk)
        except (asyncio.CancelledError, ConnectionError):
            stream.closed.set()
            raise
        if stream.abort and request.transport is not None:
            request.transport.abort()
        return response

    async def _quit(self, request: web.Request) -> web.Response:
        if request.headers.get("X-Capsule-Launch") != self.launch_secret:
            return web.json_response({"error": {"message": "only the browser that was opened may quit"}}, status=403)
        self.quit.set()
        return web.json_response({"status": "quitting"})
