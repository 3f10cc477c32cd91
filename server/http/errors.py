"""Every failure as one JSON shape with the right status; what it looks like in a dialect is said by `shapes.py`.

After the headers of a stream are out there is no second response: the error is its last event.
"""

from __future__ import annotations

import logging
import traceback
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from server.errors import CapsuleError, ClientError, MethodNotAllowed, NotFound, OperatorError, PayloadTooLarge, Unavailable
from server.http.context import CONTEXT
from server.http.shapes import OPENAI, Shape, request_id, shape_of
from server.http.sse import STREAM, EventStream

log = logging.getLogger("capsule.http")

_UNEXPECTED = "the server failed at this request; its log says where"


def error_body(error: CapsuleError) -> dict[str, Any]:
    """In the shape of no dialect, which is OpenAI's."""
    return OPENAI.body(error, error.status, "")


def error_response(error: CapsuleError, status: int | None = None, /, **members: Any) -> web.Response:
    """`members` stand beside `error` in the object."""
    return _response(error, {**error_body(error), **members}, status)


def _response(error: CapsuleError, body: dict[str, Any], status: int | None = None) -> web.Response:
    return web.Response(
        status=status or error.status, headers=error.headers, body=msgspec.json.encode(body), content_type="application/json"
    )


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        known = _from_http(error, request)
        return _response(known, shape_of(request).body(known, error.status, request_id(request)), error.status)
    except ConnectionError as error:
        if not _is_gone(request):
            return await _answer(request, _unexpected(request, error))
        stream: EventStream | None = request.get(STREAM)
        return stream.response if stream is not None else web.Response(status=499)
    except OperatorError as error:
        return await _answer(request, _unexpected(request, error))
    except CapsuleError as error:
        return await _answer(request, error)
    except Exception as error:
        return await _answer(request, _unexpected(request, error))


async def _answer(request: web.Request, error: CapsuleError) -> web.StreamResponse:
    if isinstance(error, Unavailable):
        request.app[CONTEXT].metrics.refusal(error.reason)
    shape: Shape = shape_of(request)
    stream: EventStream | None = request.get(STREAM)
    if stream is None or not stream.started:
        return _response(error, shape.body(error, error.status, request_id(request)))
    values = [shape.event(error, request_id(request))] if stream.failure is None else stream.failure(error)
    return await stream.fail(*values)


def _unexpected(request: web.Request, error: BaseException) -> CapsuleError:
    log_failure(f"{request.method} {request.rel_url.raw_path!r}", error)
    return CapsuleError(_UNEXPECTED)


def log_failure(what: str, error: BaseException) -> None:
    """Where it happened and the kind of error, without its message: that may quote a prompt or a header."""
    where = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s failed with %s\n%s", what, type(error).__name__, where.rstrip())


def _is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _from_http(error: web.HTTPException, request: web.Request) -> CapsuleError:
    if isinstance(error, web.HTTPMethodNotAllowed):
        return MethodNotAllowed(request.method, ", ".join(sorted(error.allowed_methods)))
    if isinstance(error, web.HTTPNotFound):
        return NotFound("there is nothing at this address")
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return PayloadTooLarge("the request body is too large")
    return ClientError(error.reason.lower()) if error.status < 500 else CapsuleError(_UNEXPECTED)
