"""One log line and one count for every request: method, path, status, size, time. Never a query string, a header or a body."""

from __future__ import annotations

import logging

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger
from aiohttp.typedefs import Handler

from server.http.context import CONTEXT

log = logging.getLogger("capsule.access")

_POLLED = frozenset({"/health", "/v1/health", "/metrics", "/slots"})


class AccessLogger(AbstractAccessLogger):
    """aiohttp calls it when a response has ended."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        level = logging.DEBUG if request.path in _POLLED and response.status < 500 else logging.INFO
        self.logger.log(
            level,
            '%s "%s %s" %d %d bytes %.1f ms',
            request.remote,
            printable(request.method),
            printable(request.rel_url.raw_path),
            response.status,
            response.body_length if response.prepared else 0,
            1000 * time,
        )

    @property
    def enabled(self) -> bool:
        return self.logger.isEnabledFor(logging.INFO)


def printable(text: str, limit: int = 200) -> str:
    """For a log line: control and other unprintable characters escaped, cut at `limit`."""
    text = text if len(text) <= limit else text[:limit] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


@web.middleware
async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
    status = 499  # stays where the client left before there was a response
    try:
        response = await handler(request)
        status = response.status
        return response
    finally:
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "unknown"
        method = request.method if request.method in ("GET", "HEAD", "POST", "OPTIONS") else "other"
        request.app[CONTEXT].metrics.request(route, method, status)
