"""JSON responses."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

_encode = msgspec.json.Encoder().encode


def json_response(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Anything msgspec can encode; NaN and infinities become null."""
    return web.Response(body=_encode(value), status=status, headers=headers, content_type="application/json", charset="utf-8")
