"""The real application on a real port, around a fake runner."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from server.app import create_app
from server.http.body import BODY_LIMITS, BodyLimits
from server.http.context import AppContext
from server.http.serving import ConnectionLimits, make_app_runner
from tests.unit.http.fakes import FakeRenderer, FakeRunner, make_context


@dataclass
class Live:
    runner: FakeRunner
    renderer: FakeRenderer
    context: AppContext
    quits: list[str]
    port: int
    session: aiohttp.ClientSession
    app: web.Application

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def ask(
        self, method: str, path: str, *, data: bytes | str | None = None, headers: Mapping[str, str] | None = None, **options: Any
    ) -> tuple[int, Any, Mapping[str, str]]:
        """Status, body (parsed if it is JSON), headers."""
        async with self.session.request(method, self.url + path, data=data, headers=headers, **options) as response:
            body = await response.read()
            is_json = response.content_type == "application/json"
            return response.status, json.loads(body) if is_json and body else body, response.headers.copy()

    async def get(self, path: str, **headers: str) -> tuple[int, Any]:
        status, body, _ = await self.ask("GET", path, headers=_names(headers))
        return status, body

    async def post(self, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps({} if body is None else body)
        status, reply, _ = await self.ask("POST", path, data=data, headers={"Content-Type": "application/json", **_names(headers)})
        return status, reply

    async def raw(self, data: bytes, seconds: float = 5.0) -> bytes:
        """Send bytes, read until the server closes (or `seconds` are over)."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            return await asyncio.wait_for(reader.read(), seconds)
        finally:
            writer.close()

    async def idle(self, seconds: float = 5.0) -> None:
        """Wait until no generation is running."""
        async with asyncio.timeout(seconds):
            while self.runner.running:
                await asyncio.sleep(0.01)


def _names(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@asynccontextmanager
async def running(
    limits: ConnectionLimits | None = None, body_limits: BodyLimits | None = None, routes: Iterable[web.RouteDef] = (), **settings: Any
) -> AsyncIterator[Live]:
    """`routes`: further ones beside the program's own."""
    runner, renderer, quits = FakeRunner(), FakeRenderer(), list[str]()
    context = make_context(runner, renderer, quits, **{"drain_timeout": 0.5, **settings})
    app = create_app(context)
    app.add_routes(routes)
    if body_limits is not None:
        app[BODY_LIMITS] = body_limits
    site_runner = make_app_runner(app, context, limits)
    await site_runner.setup()
    try:
        await web.TCPSite(site_runner, "127.0.0.1", 0).start()
        port = site_runner.addresses[0][1]
        async with aiohttp.ClientSession() as session:
            yield Live(runner, renderer, context, quits, port, session, app)
    finally:
        await site_runner.cleanup()


def events(content: bytes) -> list[Any]:
    """The data of each server-sent event; `[DONE]` as that string."""
    found = []
    for block in content.decode("utf-8").split("\n\n"):
        if block.startswith("data: "):
            data = block.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
    return found
