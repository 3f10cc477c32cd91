"""Server-sent events: one write per event, comments while nothing is said, an end when the client has stopped reading.

A value is sent as `data:` alone, or as `Named` with an `event:` line before it; other framings subclass `EventStream`. Headers go out
with the first event or comment, so that until then a failure can still be an ordinary response. Knows no dialect.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Self

import msgspec
from aiohttp import web

from server.errors import CapsuleError

STALL_SECONDS = 60.0
"""A client that takes nothing for this long is cut off."""

_HEADERS = {
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",
}
# Some clients split lines at these too, although the standard knows only CR and LF.
_LINE_BREAKS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Named:
    """An event with a name, which some clients switch on."""

    name: str
    data: Any


def event_bytes(value: Any) -> bytes:
    name = b""
    if isinstance(value, Named):
        name, value = b"event: " + value.name.encode() + b"\n", value.data
    data = _encode(value)
    for raw, escaped in _LINE_BREAKS:
        if raw in data:
            data = data.replace(raw, escaped)
    return name + b"data: " + data + b"\n\n"


class EventStream:
    """`async with EventStream(request, ping_interval=15) as out: await out.send({...}); return await out.finish()`

    Raises, when writing:
        ConnectionError: the client is gone, or has stalled for `stall_s` seconds and was cut off.
    """

    content_type: ClassVar[str] = "text/event-stream; charset=utf-8"

    def __init__(self, request: web.Request, *, ping_interval: float, stall_s: float = STALL_SECONDS) -> None:
        self.response = web.StreamResponse(headers={"Content-Type": self.content_type, **_HEADERS})
        self.ping_text = "ping"
        """What is said, in a comment, when nothing else is."""
        self.ping: Callable[[], Any] | None = None
        """Makes what is said instead once a value has been sent."""
        self.failure: Callable[[CapsuleError], list[Any]] | None = None
        """The values that end the stream when it fails; None: the one of the dialect (`shapes.py`)."""
        self._has_sent = False
        self._request = request
        self._ping_interval = ping_interval
        self._stall_s = stall_s
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._written_at = self._loop.time()
        self._writing_since: float | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        stream: EventStream = self
        self._request[STREAM] = stream
        self._watcher = asyncio.create_task(self._watch(), name="sse-watch")
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)

    @property
    def started(self) -> bool:
        """The headers are out: no other response is possible any more."""
        return self.response.prepared

    async def send(self, *values: Any) -> None:
        """Each value as one event, all in one write."""
        if values:
            self._has_sent = True
            await self._write(b"".join(map(self.encode, values)))

    def encode(self, value: Any) -> bytes:
        return event_bytes(value)

    async def comment(self, text: str = "", *, headers: Mapping[str, str] | None = None) -> None:
        """A line that clients skip. `headers` go out with it if it is the first thing that is said; afterwards it is too late for them."""
        if headers and not self.started:
            self.response.headers.update(headers)
        await self._write(f": {text}\n\n".encode())

    async def finish(self, *, done: bool) -> web.StreamResponse:
        """End the stream; `done` = with OpenAI's `[DONE]` line."""
        if done:
            await self._write(b"data: [DONE]\n\n")
        await self.response.write_eof()
        return self.response

    async def fail(self, *values: Any) -> web.StreamResponse:
        """End the stream with what says that it has failed, if the client still listens."""
        with contextlib.suppress(ConnectionError):
            await self.send(*values)
            await self.response.write_eof()
        return self.response

    async def _write(self, data: bytes) -> None:
        async with self._lock:
            self._writing_since = self._loop.time()
            if not self.response.prepared:
                await self.response.prepare(self._request)
            await self.response.write(data)
            self._written_at = self._loop.time()
            self._writing_since = None

    async def _watch(self) -> None:
        """Comments in silence, and an end for a client that has stalled; here, so that an ordinary write costs no timer."""
        with contextlib.suppress(ConnectionError):
            while True:
                now = self._loop.time()
                due = now + self._stall_s
                if self._writing_since is not None:
                    due = self._writing_since + self._stall_s
                    if now >= due:
                        return self._cut_off()
                elif self._ping_interval > 0:
                    due = min(due, self._written_at + self._ping_interval)
                    if now >= self._written_at + self._ping_interval:
                        await self._ping()
                        continue
                await asyncio.sleep(max(0.01, due - now))

    async def _ping(self) -> None:
        try:
            async with asyncio.timeout(self._stall_s):
                if self.ping is not None and self._has_sent:
                    await self.send(self.ping())
                else:
                    await self.comment(self.ping_text)
        except TimeoutError:
            self._cut_off()
            raise ConnectionResetError from None

    def _cut_off(self) -> None:
        """The blocked write then fails, or the handler is cancelled."""
        if self._request.transport is not None:
            self._request.transport.abort()


STREAM: web.RequestKey[EventStream] = web.RequestKey("stream", EventStream)
