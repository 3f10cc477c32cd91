"""An error has the shape of the dialect that its address belongs to, whoever refuses: guard, keys, router, body, handler, stream."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from server.errors import CapsuleError, ContextSizeExceeded, RateLimited, RunnerDied
from server.http.body import BodyLimits, read_json
from server.http.shapes import ANTHROPIC, OLLAMA, OPENAI
from server.http.sse import EventStream, Named, event_bytes
from tests.unit.http.live import Live, running

MESSAGES = "/v1/messages/try"
API = "/api/try"


async def _reads(request: web.Request) -> web.StreamResponse:
    body = await read_json(request, dict[str, Any])
    if body.get("died"):
        raise RunnerDied("the model's process ended")
    async with EventStream(request, ping_interval=0.05 if body.get("silent") else 0) as out:
        out.ping = lambda: Named("ping", {"n": 1})
        out.failure = (lambda error: [Named("one", 1), Named("two", error.message)]) if body.get("own") else None
        await asyncio.sleep(0.15 if body.get("silent") else 0)
        await out.send({"a": 1})
        await asyncio.sleep(0.15 if body.get("silent") else 0)
        raise RunnerDied("the model's process ended")


ROUTES = [web.post(MESSAGES, _reads), web.post(API, _reads), web.post("/v1/try", _reads)]


def _kind(reply: Any) -> str:
    """Which dialect an error body is of; fails on a mixture."""
    if reply.get("type") == "error":
        assert set(reply) == {"type", "error", "request_id"} and set(reply["error"]) == {"type", "message"}
        return "anthropic"
    assert set(reply) == {"error"}
    if isinstance(reply["error"], str):
        return "ollama"
    assert {"message", "type", "param", "code"} <= set(reply["error"])
    return "openai"


PLACES = [(MESSAGES, "anthropic"), ("/v1/messages", "anthropic"), (API, "ollama"), ("/api/none", "ollama"), ("/v1/messagesx", "openai")]


@pytest.mark.parametrize(("path", "kind"), [*PLACES, ("/v1/try", "openai"), ("/v1/chat/completions", "openai"), ("/apis", "openai")])
@pytest.mark.asyncio
async def test_what_is_refused_before_a_handler(path: str, kind: str) -> None:
    async with running(api_key="k", routes=ROUTES) as live:
        status, reply, headers = await live.ask("POST", path, data=b"{}")
        assert status == 401 and _kind(reply) == kind and headers["WWW-Authenticate"] == "Bearer"
        status, reply, _ = await live.ask("POST", path, data=b"{}", headers={"Host": "evil.example", "X-Api-Key": "k"})
        assert status == 403 and _kind(reply) == kind
        status, reply, _ = await live.ask("PATCH", path, headers={"X-Api-Key": "k"})
        assert status in (404, 405) and _kind(reply) == kind


@pytest.mark.parametrize(("path", "kind"), [(MESSAGES, "anthropic"), (API, "ollama"), ("/v1/try", "openai")])
@pytest.mark.asyncio
async def test_what_is_refused_by_a_handler(path: str, kind: str) -> None:
    async with running(body_limits=BodyLimits(20), routes=ROUTES) as live:
        status, reply = await live.post(path, b"{" + b" " * 50 + b"}")
        assert status == 413 and _kind(reply) == kind
        status, reply = await live.post(path, b"{")
        assert status == 400 and _kind(reply) == kind
        status, reply, headers = await live.ask("POST", path, data=b'{"died": true}')
        assert status == 503 and _kind(reply) == kind and headers["Retry-After"] == "1"
        status, reply, headers = await live.ask("GET", path)
        assert status == 405 and _kind(reply) == kind and headers["Allow"] == "POST"


async def _stream(live: Live, path: str, body: dict[str, Any]) -> list[str]:
    _, content, _ = await live.ask("POST", path, data=json.dumps(body))
    return [block for block in content.decode().split("\n\n") if block]


@pytest.mark.asyncio
async def test_what_fails_inside_a_stream_is_its_last_event() -> None:
    async with running(routes=ROUTES) as live:
        name, _, data = (await _stream(live, MESSAGES, {}))[-1].partition("\n")
        reply = json.loads(data.removeprefix("data: "))
        assert name == "event: error" and _kind(reply) == "anthropic" and reply["error"]["type"] == "overloaded_error"
        last = (await _stream(live, API, {}))[-1]
        assert json.loads(last.removeprefix("data: ")) == {"error": "the model's process ended"}
        last = (await _stream(live, "/v1/try", {}))[-1]
        assert _kind(json.loads(last.removeprefix("data: "))) == "openai"
        assert (await _stream(live, "/v1/try", {"own": True}))[-2:] == [
            "event: one\ndata: 1",
            'event: two\ndata: "the model\'s process ended"',
        ]


@pytest.mark.asyncio
async def test_silence_is_filled_with_values_once_one_was_sent() -> None:
    async with running(routes=ROUTES) as live:
        found = await _stream(live, MESSAGES, {"silent": True})
        assert found[0].startswith(": ping") and 'event: ping\ndata: {"n":1}' in found[1:]


@pytest.mark.asyncio
async def test_a_request_is_named_where_its_dialect_looks() -> None:
    async with running(routes=ROUTES) as live:
        _, reply, headers = await live.ask("POST", MESSAGES, data=b"{")
        assert reply["request_id"] == headers["request-id"] and "x-request-id" not in headers
        _, _, again = await live.ask("POST", MESSAGES, data=b"{")
        assert again["request-id"] != headers["request-id"]
        _, _, headers = await live.ask("GET", "/v1/models")
        assert headers["x-request-id"].startswith("req_") and "request-id" not in headers
        _, _, headers = await live.ask("POST", API, data=b"{")
        assert "request-id" not in headers and "x-request-id" not in headers


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (405, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_anthropic_types(status: int, kind: str) -> None:
    body = ANTHROPIC.body(CapsuleError("why"), status, "req_1")
    assert body == {"type": "error", "error": {"type": kind, "message": "why"}, "request_id": "req_1"}


def test_a_prompt_that_is_too_long_is_said_in_the_words_that_clients_look_for() -> None:
    error = ContextSizeExceeded(9000, 4096)
    assert ANTHROPIC.body(error, 400, "")["error"]["message"].startswith("prompt is too long: 9000 tokens > 4096 maximum; ")
    assert OPENAI.body(error, 400, "")["error"]["n_ctx"] == 4096
    assert "9000" in OLLAMA.body(error, 400, "")["error"]
    limited = RateLimited("slow down", what="tpm", limit=5, value=9, position=0)
    assert OPENAI.body(limited, 429, "")["error"]["limited"] == "tpm" and OLLAMA.event(limited, "") == {"error": "slow down"}


def test_a_named_event() -> None:
    assert event_bytes(Named("a.b", {"x": "\u2028"})) == b'event: a.b\ndata: {"x":"\\u2028"}\n\n'
