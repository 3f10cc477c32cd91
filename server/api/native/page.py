"""GET /: the chat page, served as it is, under a content security policy that names its own script and style by hash."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass

from aiohttp import web

_INLINE = re.compile(rb"<(script|style)(?:\s[^>]*)?>(.*?)</\1\s*>", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Page:
    body: bytes
    etag: str
    headers: dict[str, str]


PAGE = web.AppKey("page", Page)


def make_page(body: bytes) -> Page:
    found: dict[bytes, list[str]] = {b"script": [], b"style": []}
    for kind, text in _INLINE.findall(body):
        # Browsers hash what their parser sees, and that has no carriage returns.
        digest = hashlib.sha256(text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")).digest()
        found[kind.lower()].append(f"'sha256-{base64.b64encode(digest).decode()}'")
    policy = {
        "default-src": "'none'",
        "script-src": " ".join(found[b"script"]) or "'none'",
        "style-src": " ".join(found[b"style"]) or "'none'",
        "img-src": "'self' data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    headers = {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "Cache-Control": "no-cache",
        "Referrer-Policy": "no-referrer",
        "X-Frame-Options": "DENY",
    }
    return Page(body, hashlib.sha256(body).hexdigest()[:32], headers)


async def page(request: web.Request) -> web.Response:
    made = request.app[PAGE]
    response = web.Response(body=made.body, headers=made.headers, content_type="text/html", charset="utf-8")
    response.etag = made.etag
    if any(tag.value in (made.etag, "*") for tag in request.if_none_match or ()):
        response = web.Response(status=304, headers=made.headers)
        response.etag = made.etag
    return response


async def favicon(request: web.Request) -> web.Response:
    """The page brings its own picture; this only answers browsers that ask anyway."""
    return web.Response(status=204)
