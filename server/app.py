"""Composition root of the HTTP side: middlewares and the route table become one aiohttp application. No logic."""

from __future__ import annotations

from aiohttp import web

from server.api.native.page import PAGE, make_page
from server.api.routes import routes
from server.http import access, auth, errors, guard
from server.http.body import BODY_LIMITS, BodyLimits
from server.http.context import CONTEXT, AppContext
from server.http.hosts import Rules
from server.http.keys import KeyRing


def create_app(context: AppContext) -> web.Application:
    """Raises:
    OperatorError: the keys, --allowed-hosts or --cors-origins cannot be used.
    """
    settings = context.settings
    app = web.Application(middlewares=[access.count, errors.errors, guard.guard, auth.auth])
    app[CONTEXT] = context
    app[auth.KEYS] = KeyRing.of(settings.api_key, settings.api_key_file)
    app[guard.RULES] = Rules.parse(settings.allowed_hosts, settings.cors_origins)
    app[BODY_LIMITS] = BodyLimits(settings.max_body_mib * 2**20)
    app[PAGE] = make_page(context.page)
    app.on_response_prepare.append(guard.on_prepare)
    app.add_routes(routes())
    return app
