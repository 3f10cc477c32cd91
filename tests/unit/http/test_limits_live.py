"""Limits over real connections: no two requests get one place, and every place comes back after errors, ends and lost clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from server.api.generate import collect
from server.api.respond import json_response
from server.errors import CapsuleError, ClientError, ContextSizeExceeded
from server.http.body import read_json
from server.http.flow import attributed
from server.http.limits import LEDGER, admit, check
from server.protocol import GenerationRequest, Queued, Started
from tests.unit.http.fakes import HANG, INFO, Script, Step, says
from tests.unit.http.live import Live, running


async def generate(request: web.Request) -> web.StreamResponse:
    """What the generating routes have in common."""
    check(request)
    body = await read_json(request, dict[str, Any])
    n = body.get("n", 1)
    admit(request, n_sequences=n, n_chars=len(body["prompt"]))
    await asyncio.sleep(body.get("render", 0))
    one = attributed(request, GenerationRequest(prompt=body["prompt"]), explicit_priority=False)
    answers = await collect(request, [one] * n, prompt_field="prompt")
    return json_response([answer.text for answer in answers])


ROUTES = [web.post("/generate", generate)]


def waits(request: GenerationRequest) -> Iterable[Step]:
    yield Queued(1, 0, 5)
    yield HANG


def runs(request: GenerationRequest) -> Iterable[Step]:
    yield Queued(1, 0, 5)
    yield Started(1, 0, 5, 0)
    yield HANG


def counts(live: Live) -> tuple[int, int, int]:
    total = live.app[LEDGER].total
    return total.waiting, total.running, total.waiting_tokens


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def key_file(tmp_path: Path, text: str) -> str:
    file = tmp_path / "keys"
    file.touch(0o600)
    file.write_text(text)
    return str(file)


@pytest.mark.parametrize("render", [0, 0.02])
@pytest.mark.asyncio
async def test_of_many_at_once_exactly_the_limit_comes_in(tmp_path: Path, render: float) -> None:
    keys = key_file(tmp_path, "alpha team-a queued=3\nbeta team-b\n")
    async with running(routes=ROUTES, api_key_file=keys) as live:
        live.runner.script = waits
        body = {"prompt": "x" * 40, "render": render}
        many = [asyncio.create_task(live.post("/generate", body, X_Api_Key="alpha")) for _ in range(40)]
        most = INFO.n_slots + 3
        await until(lambda: sum(task.done() for task in many) == 40 - most)
        refused = [task.result() for task in many if task.done()]
        assert {status for status, _ in refused} == {429}
        assert all(reply["error"]["code"] == "rate_limit_exceeded" and reply["error"]["limit"] == 3 for _, reply in refused)
        await until(lambda: len(live.runner.running) == most)
        assert {g.request.flow.key for g in live.runner.running} == {"team-a"}
        await until(lambda: counts(live) == (most, 0, 5 * most))
        live.runner.script = says("other")
        assert await live.post("/generate", body, X_Api_Key="beta") == (200, ["other"])
        for task in many:
            task.cancel()
        await until(lambda: counts(live) == (0, 0, 0))
        live.runner.script = says("again")
        assert await live.post("/generate", body, X_Api_Key="alpha") == (200, ["again"])
        assert counts(live) == (0, 0, 0) and live.app[LEDGER].of("team-a").waiting == 0


@pytest.mark.parametrize(
    ("script", "status"),
    [(says("a", "b"), 200), (lambda request: iter([Queued(1, 0, 5), ContextSizeExceeded(9, 5)]), 400),
     (lambda request: iter([Queued(1, 0, 5), Started(1, 0, 5, 0), CapsuleError("it broke")]), 500),
     (lambda request: iter([KeyError("bug")]), 500)],
)  # fmt: skip
@pytest.mark.asyncio
async def test_places_come_back_after_every_end(script: Script, status: int) -> None:
    async with running(routes=ROUTES, max_queue=2) as live:
        live.runner.script = script
        for n in (1, 3, 6, 1):
            assert (await live.post("/generate", {"prompt": "x", "n": n}))[0] == status
            assert counts(live) == (0, 0, 0)
        live.runner.refusal = ClientError("no")
        assert (await live.post("/generate", {"prompt": "x", "n": 6}))[0] == 400
        assert (await live.post("/generate", {"n": 6}))[0] == 500, "a bug of the handler, before anything is booked"
        assert counts(live) == (0, 0, 0)


@pytest.mark.parametrize("script", [waits, runs])
@pytest.mark.asyncio
async def test_places_come_back_when_clients_are_gone(script: Script) -> None:
    async with running(routes=ROUTES, max_queue=2) as live:
        live.runner.script = script
        most = INFO.n_slots + 2
        clients = [asyncio.create_task(live.post("/generate", {"prompt": "x", "n": 2})) for _ in range(most // 2)]
        await until(lambda: len(live.runner.running) == most)
        await until(lambda: counts(live)[:2] == ((most, 0) if script is waits else (0, most)))
        status, reply, headers = await live.ask("POST", "/generate", data=b'{"prompt": "x"}')
        assert status == 503 and reply["error"]["code"] == "queue_full" and headers["Retry-After"]
        for client in clients:
            client.cancel()
        await until(lambda: counts(live) == (0, 0, 0))


@pytest.mark.asyncio
async def test_a_full_house_refuses_before_the_body_has_come() -> None:
    async with running(routes=ROUTES, max_queue=0) as live:
        live.runner.script = runs
        full = asyncio.create_task(live.post("/generate", {"prompt": "x", "n": INFO.n_slots}))
        await until(lambda: len(live.runner.running) == INFO.n_slots)
        head = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{"
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        writer.write(head)
        assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 503 ")
        writer.close()
        full.cancel()


@pytest.mark.asyncio
async def test_tokens_of_a_minute_over_http(tmp_path: Path) -> None:
    async with running(routes=ROUTES, api_key_file=key_file(tmp_path, "alpha a tpm=12\n")) as live:
        live.runner.script = says("1", "2")  # 5 prompt tokens and 2 generated
        for _ in range(2):
            assert (await live.post("/generate", {"prompt": "x"}, X_Api_Key="alpha"))[0] == 200
        status, reply, headers = await live.ask("POST", "/generate", data=b'{"prompt": "x"}', headers={"X-Api-Key": "alpha"})
        assert status == 429 and reply["error"] == {
            "message": "this API key has used 14 tokens within a minute, and its limit is 12",
            "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded", "limited": "tpm", "limit": 12, "value": 14,
            "position": 0,
        }  # fmt: skip
        assert 55 <= int(headers["Retry-After"]) <= 61
        _, metrics = await live.get("/metrics", X_Api_Key="alpha")
        assert 'capsule_refusals_total{reason="key_tpm"} 1.0' in metrics.decode()
