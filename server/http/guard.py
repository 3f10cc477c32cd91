"""Refuses what a foreign web page could make a browser send: wrong Host, foreign Origin, form posts; answers preflights.

It holds on every bind address. `Access-Control-Allow-Origin` is the exact origin, credentials are never allowed. Knows no dialect.
"""

from __future__ import annotations

import re

from aiohttp import web
from aiohttp.typedefs import Handler

from server.errors import ClientError, Forbidden, UnsupportedMediaType
from server.http.hosts import HostPort, Rules, parse_host

RULES = web.AppKey("host_rules", Rules)
_ORIGIN: web.RequestKey[str] = web.RequestKey("allowed_origin", str)

SERVER = "Capsule"
"""What responses say of the program; never the versions of its parts."""
SAME_ORIGIN_ONLY = frozenset({"/", "/quit", "/favicon.ico"})
"""Not part of the API: no other origin has business here."""

_ALLOWED_HEADERS = re.compile(
    r"(authorization|content-type|accept|accept-language|cache-control|user-agent|x-api-key|api-key|http-referer|x-title|x-request-id"
    r"|x-requested-with|x-priority|x-session-id|x-request-timeout|idempotency-key|openai-[a-z0-9-]+|anthropic-[a-z0-9-]+|x-stainless-[a-z0-9-]+)"
)
_EXPOSED_HEADERS = "Retry-After, X-Queue-Position, X-Queue-Eta, X-Request-Id, Request-Id, X-Capsule-Warning"
_SECURITY_HEADERS = {"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin", "Vary": "Origin"}


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    host = _checked_host(request)
    origin = request.headers.get("Origin")
    if origin is not None:
        _check_origin(request, origin, host)
        request[_ORIGIN] = origin
        if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            return _preflight(request)
    _check_media(request)
    return await handler(request)


async def on_prepare(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Signal handler: every response, errors and streams too, carries the headers for its origin."""
    response.headers["Server"] = SERVER
    for name, value in _SECURITY_HEADERS.items():
        response.headers.setdefault(name, value)
    origin = request.get(_ORIGIN)
    if origin is not None:
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers.setdefault("Access-Control-Expose-Headers", _EXPOSED_HEADERS)


def _checked_host(request: web.Request) -> HostPort:
    values = request.headers.getall("Host", [])
    if len(values) != 1 or not request.raw_path.startswith("/"):
        raise ClientError("the request must name one Host and ask for a path")
    host = parse_host(values[0])
    local = request.transport.get_extra_info("sockname") if request.transport is not None else None
    local_address = local[0] if isinstance(local, tuple) else None
    if host is None or not request.app[RULES].host_allowed(host, local_address):
        raise Forbidden("this server does not answer to that Host; start it with --allowed-hosts to add one")
    return host


def _check_origin(request: web.Request, origin: str, host: HostPort) -> None:
    api = request.path not in SAME_ORIGIN_ONLY
    if not request.app[RULES].origin_allowed(origin, host, api=api):
        raise Forbidden("this web origin may not use the server; start it with --cors-origins to allow it")


def _check_media(request: web.Request) -> None:
    if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise UnsupportedMediaType("compressed request bodies are not accepted; send it without Content-Encoding")
    from_browser = "Origin" in request.headers or any(name.lower().startswith("sec-fetch-") for name in request.headers)
    if request.method == "POST" and from_browser and request.content_type != "application/json":
        raise UnsupportedMediaType("a browser must send Content-Type: application/json")


def _preflight(request: web.Request) -> web.Response:
    methods = _methods_here(request)
    asked = request.headers.get("Access-Control-Request-Headers", "")
    names = [name for name in (part.strip().lower() for part in asked.split(",")) if _ALLOWED_HEADERS.fullmatch(name)]
    headers = {"Access-Control-Allow-Methods": ", ".join(methods), "Access-Control-Max-Age": "600"}
    if names:
        headers["Access-Control-Allow-Headers"] = ", ".join(names)
    if request.headers.get("Access-Control-Request-Private-Network") == "true":
        headers["Access-Control-Allow-Private-Network"] = "true"
    return web.Response(status=204, headers=headers)


def _methods_here(request: web.Request) -> list[str]:
    """The methods of the route that the preflight asks about.

    Raises:
        web.HTTPNotFound: there is no such route.
    """
    refusal = request.match_info.http_exception
    if isinstance(refusal, web.HTTPMethodNotAllowed):
        return sorted(refusal.allowed_methods)
    raise refusal or web.HTTPNotFound()
