"""Every failure has one shape, the right status, and says nothing about our insides; the log says nothing about the client's text."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from server.protocol import Delta, Queued
from tests.unit.http.fakes import State, says
from tests.unit.http.live import events, running

CHAT = "/v1/chat/completions"
USER = {"messages": [{"role": "user", "content": "Hi"}]}
SECRET = "my-secret-diary"


@pytest.mark.asyncio
async def test_unknown_routes_and_wrong_methods() -> None:
    async with running() as live:
        for method in ("GET", "POST", "DELETE"):
            status, reply, _ = await live.ask(method, "/v1/nothing")
            assert status == 404 and reply["error"]["type"] == "not_found_error"
        for method, path, allow in (("GET", CHAT, "POST"), ("POST", "/health", "GET, HEAD"), ("PUT", "/v1/models", "GET, HEAD")):
            status, reply, headers = await live.ask(method, path)
            assert status == 405 and headers["Allow"] == allow and reply["error"]["code"] == "method_not_allowed"
        assert set(reply["error"]) == {"message", "type", "param", "code"}


@pytest.mark.asyncio
async def test_malformed_json_is_400() -> None:
    async with running() as live:
        for body in (b"", b"{", b"hello", b"\xff"):
            for path in (CHAT, "/v1/completions", "/completion", "/tokenize", "/detokenize", "/apply-template"):
                status, reply = await live.post(path, body)
                assert status == 400 and reply["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("state", "has_info", "code", "status"),
    [
        (State.LOADING, False, "model_loading", 503),
        (State.RESTARTING, False, "runner_died", 503),
        (State.FAILED, False, None, 503),
        (State.STOPPED, True, "shutting_down", 503),
    ],
)
@pytest.mark.asyncio
async def test_a_model_that_is_not_there(state: State, has_info: bool, code: str | None, status: int) -> None:
    async with running() as live:
        live.runner.state = state
        if not has_info:
            live.runner.info = None
        for path in (CHAT, "/v1/completions", "/completion", "/tokenize", "/apply-template"):
            found, reply, headers = await live.ask("POST", path, data=b"{}")
            assert found == status and reply["error"]["code"] == code and int(headers["Retry-After"]) >= 1
        assert (await live.get("/props"))[0] == 503
        assert (await live.get("/v1/models"))[0] == 200


@pytest.mark.asyncio
async def test_while_the_model_restarts_requests_may_still_be_tried() -> None:
    async with running() as live:
        live.runner.state = State.RESTARTING
        assert (await live.post(CHAT, USER))[0] == 200
        assert (await live.get("/props"))[0] == 200
        live.context.draining = True
        status, reply = await live.post(CHAT, USER)
        assert status == 503 and reply["error"]["code"] == "shutting_down"


@pytest.mark.asyncio
async def test_the_unexpected_is_a_plain_500_and_its_text_stays_out_of_answer_and_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with running() as live:
        live.runner.script = lambda request: [KeyError(SECRET)]
        status, reply = await live.post(CHAT, USER)
        assert status == 500 and reply["error"]["type"] == "server_error" and SECRET not in str(reply)
        assert "KeyError" in caplog.text and "fakes.py" in caplog.text and SECRET not in caplog.text

        live.runner.script = lambda request: [Queued(1, 0, 5), Delta(1, "x"), KeyError(SECRET)]
        status, content = await live.post(CHAT, {**USER, "stream": True})
        found = events(content)
        assert status == 200 and found[-1]["error"]["type"] == "server_error" and SECRET not in content.decode()
        assert SECRET not in caplog.text
        live.runner.script = lambda request: [ConnectionResetError("an inner pipe")]
        assert (await live.post(CHAT, USER))[0] == 500


@pytest.mark.asyncio
async def test_nothing_a_client_sends_enters_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with running(api_key=SECRET + "key") as live:
        headers: Any = {"Authorization": f"Bearer {SECRET}key", "X-Note": SECRET, "User-Agent": SECRET}
        body = b'{"messages": [{"role": "user", "content": "' + SECRET.encode() + b'"}]}'
        live.runner.script = lambda request: [Delta(1, SECRET), RuntimeError(SECRET)]
        for data in (body, body[:-1], SECRET.encode(), b'{"messages": "' + SECRET.encode() + b'"}'):
            await live.ask("POST", f"{CHAT}?note={SECRET}", data=data, headers=headers)
        await live.ask("GET", f"/v1/models?{SECRET}", headers={"Authorization": f"Bearer {SECRET}wrong"})
        await live.ask("GET", "/v1/models", headers={"Host": SECRET + "@"})
        await live.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + SECRET.encode() + b"\x01: x\r\n\r\n")
        await live.raw(SECRET.encode() + b" \x00\r\n\r\n")
        await live.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + SECRET.encode() * 5000 + b"\r\n\r\n")
    lines = [
        record.getMessage() + str(record.exc_info or "")
        for record in caplog.records
        if not record.name.startswith(("asyncio", "aiohttp.client"))
    ]
    assert any('"POST /v1/chat/completions" 500' in line for line in lines)
    assert not [line for line in lines if SECRET in line]


@pytest.mark.asyncio
async def test_log_prompts_alone_lets_prompts_and_answers_in(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for log_prompts in (False, True):
        async with running(log_prompts=log_prompts) as live:
            live.runner.script = says("two\n", "parts")
            body = {"messages": [{"role": "user", "content": "a \x1b[31mquestion"}]}
            assert (await live.post(CHAT, body))[0] == 200
            assert (await live.post(CHAT, {**body, "stream": True}))[0] == 200
        lines = [record.getMessage() for record in caplog.records if record.name == "capsule.prompts"]
        assert len(lines) == 4 * log_prompts
    assert "question" in lines[0] and "\x1b" not in lines[0]
    assert lines[1] == lines[3] == "answer 0: two\\nparts"


@pytest.mark.asyncio
async def test_control_characters_in_a_path_are_escaped_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="capsule.access")
    async with running() as live:
        await live.raw(b"GET /a%0a%1b[31m%e2%80%ae HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    text = "".join(record.getMessage() for record in caplog.records if record.name == "capsule.access")
    assert "GET /a" in text and text.isprintable()
