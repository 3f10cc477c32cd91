"""What an error looks like, as a response and inside a stream, in the dialect that an address belongs to. Knows no route's content.

A path tells the dialect, so that failures before any handler (401, 403, 404, 405, 413) have its shape too.
"""

from __future__ import annotations

import secrets
from typing import Any, ClassVar

from aiohttp import web

from server.errors import CapsuleError, ContextSizeExceeded
from server.http.sse import Named

_REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)


class Shape:
    """OpenAI's, which llama-server shares: `{"error": {message, type, param, code, ...}}`."""

    id_header: ClassVar[str | None] = "x-request-id"
    """Where clients of the dialect look for the id of a request."""

    def body(self, error: CapsuleError, status: int, request_id: str) -> dict[str, Any]:
        return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code, **error.extra}}

    def event(self, error: CapsuleError, request_id: str) -> Any:
        """The last value of a stream that fails."""
        return self.body(error, error.status, request_id)


class AnthropicShape(Shape):
    id_header = "request-id"
    _TYPES: ClassVar[dict[int, str]] = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
    }

    def body(self, error: CapsuleError, status: int, request_id: str) -> dict[str, Any]:
        kind = self._TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": _anthropic_message(error)}, "request_id": request_id}

    def event(self, error: CapsuleError, request_id: str) -> Any:
        return Named("error", self.body(error, error.status, request_id))


class OllamaShape(Shape):
    id_header = None

    def body(self, error: CapsuleError, status: int, request_id: str) -> dict[str, Any]:
        return {"error": error.message}


OPENAI = Shape()
ANTHROPIC = AnthropicShape()
OLLAMA = OllamaShape()


def shape_of(request: web.BaseRequest) -> Shape:
    path = request.path
    if _within(path, "/v1/messages") or (_within(path, "/v1/models") and speaks_anthropic(request)):
        return ANTHROPIC
    return OLLAMA if _within(path, "/api") else OPENAI


def speaks_anthropic(request: web.BaseRequest) -> bool:
    """At an address that two dialects have, Anthropic's clients are told by the version that they all send."""
    return "anthropic-version" in request.headers


def request_id(request: web.BaseRequest) -> str:
    """The same for the whole request; no secret."""
    found = request.get(_REQUEST_ID)
    if found is None:
        found = request[_REQUEST_ID] = "req_" + secrets.token_hex(12)
    return found


async def on_prepare(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Signal handler: every response, errors and streams too, names its request as the dialect does."""
    header = shape_of(request).id_header
    if header is not None:
        response.headers[header] = request_id(request)


def _within(path: str, place: str) -> bool:
    return path == place or path.startswith(place + "/")


def _anthropic_message(error: CapsuleError) -> str:
    if isinstance(error, ContextSizeExceeded):  # Claude Code shortens its conversation when it reads these first words
        return f"prompt is too long: {error.n_prompt_tokens} tokens > {error.n_ctx} maximum; {error.message}"
    return error.message
