"""Who may do what: API keys on every route but health and the page; the launch secret or an admin key to quit. Knows no dialect."""

from __future__ import annotations

import hmac

from aiohttp import web
from aiohttp.typedefs import Handler

from server.errors import Forbidden, Unauthenticated
from server.http.context import CONTEXT
from server.http.keys import ApiKey, KeyRing

KEYS = web.AppKey("keys", KeyRing)
API_KEY: web.RequestKey[ApiKey] = web.RequestKey("api_key", ApiKey)
LAUNCH_HEADER = "X-Capsule-Launch"

PUBLIC = frozenset({"/", "/favicon.ico", "/health", "/v1/health"})
GUARDED = frozenset({"/quit"})
"""These need the launch secret or an admin key, whether or not keys are set."""


@web.middleware
async def auth(request: web.Request, handler: Handler) -> web.StreamResponse:
    ring = request.app[KEYS]
    resource = request.match_info.route.resource
    route = resource.canonical if resource is not None else None  # the route that will run, however its address was spelt
    if route in PUBLIC:
        return await handler(request)
    if route in GUARDED and _has_launch_secret(request):
        return await handler(request)
    key = next(filter(None, map(ring.find, presented(request))), None) if ring.required else None
    if ring.required and key is None:
        raise Unauthenticated("the API key is missing or wrong; send it as Authorization: Bearer KEY or X-Api-Key: KEY")
    if route in GUARDED and not (key is not None and key.admin):
        raise Forbidden("this needs an admin key, or the browser window that the program itself has opened")
    if key is not None:
        request[API_KEY] = key
    return await handler(request)


def presented(request: web.Request) -> list[str]:
    """The keys that a request brings: a bearer token, X-Api-Key, Api-Key. Some clients send two, one of them meant for another server."""
    scheme, _, token = request.headers.get("Authorization", "").strip().partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    return [secret for secret in (bearer, request.headers.get("X-Api-Key"), request.headers.get("Api-Key")) if secret]


def _has_launch_secret(request: web.Request) -> bool:
    expected = request.app[CONTEXT].launch_secret.encode()
    given = request.headers.get(LAUNCH_HEADER, "").encode("utf-8", "surrogateescape")
    return hmac.compare_digest(given, expected) and bool(expected)
