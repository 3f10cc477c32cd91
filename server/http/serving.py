"""The aiohttp runner with the limits of the connection itself: time for headers, their size, connections per address.

Which addresses are listened on, and TLS, are the caller's. A handler is cancelled when its client goes. Knows no route.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.web_protocol import RequestHandler

from server.errors import CapsuleError, ClientError, ServerBusy
from server.http.access import AccessLogger
from server.http.access import log as access_log
from server.http.context import AppContext
from server.http.errors import error_body, log_failure
from server.http.guard import SERVER


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    header_timeout_s: float = 10.0
    keepalive_timeout_s: float = 75.0
    per_address: int = 512
    max_line_bytes: int = 8190
    max_header_bytes: int = 16384
    max_headers: int = 100


def make_app_runner(app: web.Application, context: AppContext, limits: ConnectionLimits | None = None) -> web.AppRunner:
    """To be set up, given sites, and cleaned up by the caller; clean-up waits `--drain-timeout` seconds for open requests."""
    limits = limits or ConnectionLimits()
    return _Runner(
        app,
        connection_limits=limits,
        handler_cancellation=True,
        shutdown_timeout=context.settings.drain_timeout,
        access_log_class=AccessLogger,
        access_log=access_log,
        keepalive_timeout=limits.keepalive_timeout_s,
        max_line_size=limits.max_line_bytes,
        max_field_size=limits.max_header_bytes,
        max_headers=limits.max_headers,
        auto_decompress=False,
    )


class _Runner(web.AppRunner):
    def __init__(self, app: web.Application, *, connection_limits: ConnectionLimits, **kwargs: Any) -> None:
        super().__init__(app, **kwargs)
        self._limits = connection_limits

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        kwargs = {**self._kwargs, "debug": False}
        kwargs.pop("handler_cancellation")
        return _Server(
            made.request_handler,
            limits=self._limits,
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            loop=asyncio.get_running_loop(),
            **kwargs,
        )


class _Server(web.Server):
    def __init__(self, handler: Any, *, limits: ConnectionLimits, **kwargs: Any) -> None:
        super().__init__(handler, **kwargs)
        self.limits = limits
        self.per_address: Counter[str] = Counter()

    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class _Connection(RequestHandler):
    """aiohttp has no time limit for the headers of a request and no count of connections; this adds both."""

    __slots__ = ("_server", "_address", "_deadline")

    def __init__(self, server: _Server, **kwargs: Any) -> None:
        super().__init__(server, **kwargs)
        self._server = server
        self._address: str | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) else "local"
        self._server.per_address[self._address] += 1
        super().connection_made(transport)
        if self._server.per_address[self._address] > self._server.limits.per_address:
            assert isinstance(transport, asyncio.Transport)
            transport.write(_TOO_MANY)
            self.force_close()
        else:
            self._expect_headers()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._headers_came()
        if self._address is not None:
            self._server.per_address[self._address] -= 1
            if self._server.per_address[self._address] <= 0:
                del self._server.per_address[self._address]
            self._address = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        idle = self._waiter is not None and not self._messages
        n_requests = self._request_count
        super().data_received(data)
        if self._request_count != n_requests:
            self._headers_came()
        elif idle and data and self._deadline is None:
            self._expect_headers()  # the first bytes of another request on this connection

    def _expect_headers(self) -> None:
        self._deadline = self._loop.call_later(self._server.limits.header_timeout_s, self._too_slow)

    def _headers_came(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        self.force_close()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """What the parser refuses, in our shape, and without quoting the request in the log."""
        if request.writer.output_size > 0:
            raise ConnectionError("a response is on its way already")
        error: CapsuleError
        if status < 500:
            too_long = isinstance(exc, LineTooLong)
            error = ClientError("the request line or a header is too long" if too_long else "this is not a valid HTTP request")
            logging.getLogger("capsule.http").debug("refused a malformed request from %s", request.remote)
        else:
            error = CapsuleError("the server failed at this request; its log says where")
            log_failure("a connection", exc or RuntimeError())
        status = 431 if isinstance(exc, LineTooLong) else status
        response = web.Response(
            status=status, body=msgspec.json.encode(error_body(error)), content_type="application/json", headers={"Server": SERVER}
        )
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kwargs: Any) -> None:
        exc = kwargs.get("exc_info")
        log_failure("a connection", exc if isinstance(exc, BaseException) else RuntimeError())


def _too_many() -> bytes:
    body = msgspec.json.encode(error_body(ServerBusy("too many connections from this address")))
    lines = ("HTTP/1.1 503 Service Unavailable", "Content-Type: application/json", f"Content-Length: {len(body)}", "Retry-After: 1")
    return "\r\n".join((*lines, "Connection: close", "", "")).encode() + body


_TOO_MANY = _too_many()
