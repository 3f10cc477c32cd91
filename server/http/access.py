"""One log line and one count for every request: method, path, status, size, time. Never a query string, a header or a body."""

from __future__ import annotations

import logging

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger
from aiohttp.typedefs import Handler

from server.http.context import CONTEXT
from server.pipes import printable

log = logging.getLogger("capsule.access")

_POLLED = frozenset({"/health", "/v1/health", "/metrics", "/slots", "/queue"})


class AccessLogger(AbstractAccessLogger):
    """aiohttp calls it when a response has ended."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        level = logging.DEBUG if request.path in _POLLED and response.status < 500 else logging.INFO
        self.logger.log(
            level,
            '%s "%s %s" %d %d bytes %.1f ms',
            request.remote,
            _shown(request.method),
            _shown(request.rel_url.raw_path),
            response.status,
            response.body_length if response.prepared else 0,
            1000 * time,
        )

    @property
    def enabled(self) -> bool:
        return self.logger.isEnabledFor(logging.INFO)


def _shown(text: str, limit: int = 200) -> str:
    return printable(text if len(text) <= limit else text[:limit] + "...")


@web.middleware
async def count(request: web.Request, handler: Handler) -> web.StreamResponse:
    status = 499  # stays where the client left before there was a response
    context = request.app[CONTEXT]
    weight = 0 if request.path in _POLLED else 1
    context.n_open += weight
    try:
        response = await handler(request)
        status = response.status
        return response
    finally:
        context.n_open -= weight
        resource = request.match_info.route.resource
        route = resource.canonical if resource is not None else "unknown"
        method = request.method if request.method in ("GET", "HEAD", "POST", "OPTIONS") else "other"
        context.metrics.request(route, method, status)
