"""What a client ought to know about an answer that is otherwise fine, in a header. Knows no dialect."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from server.pipes import printable

HEADER = "X-Capsule-Warning"
_MAX_CHARS = 1000
_NOTICES: web.RequestKey[list[str]] = web.RequestKey("notices", list[str])


def notify(request: web.Request, notices: Iterable[str]) -> None:
    """To be called before the response begins."""
    found = [*request.get(_NOTICES, []), *notices]
    if found:
        request[_NOTICES] = found


async def on_prepare(request: web.BaseRequest, response: web.StreamResponse) -> None:
    notices = request.get(_NOTICES)
    if notices:
        text = printable("; ".join(notices)).encode("ascii", "backslashreplace").decode()
        response.headers[HEADER] = text if len(text) <= _MAX_CHARS else text[: _MAX_CHARS - 3] + "..."
