"""GET /licenses and POST /quit."""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web

from server.api.respond import json_response
from server.http.context import CONTEXT

log = logging.getLogger("capsule.http")


async def licenses(request: web.Request) -> web.Response:
    text = await asyncio.to_thread(request.app[CONTEXT].licenses)
    return web.Response(text=text, content_type="text/plain", charset="utf-8")


async def quit_program(request: web.Request) -> web.Response:
    """Who may ask is decided in `http/auth.py`."""
    log.info("asked to quit by %s", request.remote)
    # After this response is out; the caller would otherwise see a broken connection.
    asyncio.get_running_loop().call_later(0.1, request.app[CONTEXT].quit)
    return json_response({"status": "stopping"})
