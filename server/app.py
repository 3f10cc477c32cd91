"""Composition root of the HTTP side: middlewares and the route table become one aiohttp application. No logic."""

from __future__ import annotations

import time

from aiohttp import web

from server.addresses import Proxies
from server.api.native.page import PAGE, make_page
from server.api.openai.responses import RESPONSES
from server.api.openai.responses_store import ResponseStore
from server.api.routes import routes
from server.http import access, auth, errors, flow, guard, limits, notices, shapes
from server.http.body import BODY_LIMITS, BodyLimits
from server.http.context import CONTEXT, AppContext
from server.http.hosts import Rules
from server.http.keys import KeyRing
from server.http.ledger import Ledger


def create_app(context: AppContext) -> web.Application:
    """Raises:
    OperatorError: the keys, --allowed-hosts, --cors-origins or --trusted-proxy cannot be used.
    """
    settings = context.settings
    app = web.Application(middlewares=[access.count, errors.errors, guard.guard, auth.auth, limits.release])
    app[CONTEXT] = context
    app[auth.KEYS] = KeyRing.of(settings.api_key, settings.api_key_file)
    app[guard.RULES] = Rules.parse(settings.allowed_hosts, settings.cors_origins)
    app[flow.PROXIES] = Proxies.parse(settings.trusted_proxy)
    app[limits.LEDGER] = Ledger(time.monotonic)
    app[BODY_LIMITS] = BodyLimits(settings.max_body_mib * 2**20)
    app[RESPONSES] = ResponseStore(settings.responses_store)
    app[PAGE] = make_page(context.page)
    app.on_response_prepare.append(guard.on_prepare)
    app.on_response_prepare.append(shapes.on_prepare)
    app.on_response_prepare.append(notices.on_prepare)
    app.add_routes(routes())
    return app
