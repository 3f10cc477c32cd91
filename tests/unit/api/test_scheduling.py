"""What a request says of its class, patience, company and guesses reaches the engine from the body or from headers, in every dialect;
what makes no sense is refused by name, and nothing is rendered or submitted for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api.fields import GenerationFields, Speculative
from server.api.scheduling import MAX_NAME_CHARS, Wishes, parse_wishes
from server.errors import ClientError
from server.http.limits import LEDGER
from server.protocol import Queued
from server.requests import CLASSES
from server.settings import Settings
from tests.unit.http.fakes import HANG, INFO
from tests.unit.http.live import Live, running

USER = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": "x"},
    "/completion": {"prompt": "x"},
}
SESSION_NAMES = ("session", "session_id", "X-Session-Id", "safety_identifier", "user", "prompt_cache_key")


def parse(headers: dict[str, str] | None = None, *, request_timeout: float = 0.0, **members: Any) -> Wishes:
    return parse_wishes(GenerationFields(**members), headers or {}, Settings(request_timeout=request_timeout))


async def refused(live: Live, member: str, value: Any, *, path: str = "/v1/completions") -> str:
    status, reply = await live.post(path, {**BODIES[path], member: value})
    assert status == 400 and reply["error"]["param"] == member, reply
    assert not live.runner.requests and not live.renderer.calls
    return str(reply["error"]["message"])


@pytest.mark.parametrize("path", sorted(BODIES))
@pytest.mark.asyncio
async def test_members_reach_the_engine_in_every_dialect(path: str) -> None:
    members = {"priority": "batch", "timeout": 2.5, "session": "s1", "cache_salt": "pepper", "speculative.n_max": 3}
    async with running() as live:
        for body in (members, {}):
            status, reply = await live.post(path, {**BODIES[path], **body})
            assert status == 200, reply
        asked, plain = live.runner.requests
    assert (asked.priority, asked.timeout_s, asked.namespace, asked.n_draft_max) == ("batch", 2.5, "pepper", 3)
    assert (asked.flow.session, asked.flow.address, asked.flow.key) == ("s1", "loopback", "")
    assert (plain.priority, plain.timeout_s, plain.namespace, plain.n_draft_max, plain.flow.session) == ("normal", None, "", -1, "")


@pytest.mark.asyncio
async def test_headers_say_the_same_and_the_body_wins() -> None:
    headers = {"X_Priority": "interactive", "X_Request_Timeout": "7", "X_Session_Id": "from header"}
    async with running() as live:
        for path, body in BODIES.items():
            await live.post(path, body, **headers)
            await live.post(path, {**body, "priority": "batch", "timeout": 3, "session_id": "from body"}, **headers)
            by_header, by_body = live.runner.requests[-2:]
            assert (by_header.priority, by_header.timeout_s, by_header.flow.session) == ("interactive", 7.0, "from header")
            assert (by_body.priority, by_body.timeout_s, by_body.flow.session) == ("batch", 3.0, "from body")


@pytest.mark.parametrize("value", [0, -1, 5, "high", "Interactive", "", "x" * 1000])
@pytest.mark.asyncio
async def test_another_class_is_refused_with_the_words_there_are(value: Any) -> None:
    async with running() as live:
        for path in BODIES:
            message = await refused(live, "priority", value, path=path)
            assert all(name in message for name in CLASSES) and len(message) < 200
            status, reply = await live.post(path, BODIES[path], X_Priority=str(value))
            assert status == 400 and reply["error"]["param"] == "X-Priority" and "interactive" in reply["error"]["message"]
        assert not live.runner.requests


@pytest.mark.parametrize("value", [0, -1, 1e9, 10**30, 604_801])
@pytest.mark.asyncio
async def test_times_that_are_none(value: Any) -> None:
    async with running() as live:
        await refused(live, "timeout", value)
        for text in (str(value), "nan", "inf", "soon", "", "5 s"):
            status, reply = await live.post("/v1/completions", {"prompt": "x"}, X_Request_Timeout=text)
            assert status == 400 and reply["error"]["param"] == "X-Request-Timeout", text
        wrong_ones: list[Any] = ["5", True, [5], {}]
        for wrong in wrong_ones:
            await refused(live, "timeout", wrong)


def test_the_servers_own_limit_is_the_most_and_the_default() -> None:
    assert parse().timeout_s is None
    assert parse(request_timeout=60.0).timeout_s == 60.0
    assert parse(request_timeout=60.0, timeout=5.0).timeout_s == 5.0
    assert parse(request_timeout=60.0, timeout=90.0).timeout_s == 60.0
    assert parse({"X-Request-Timeout": "90.5"}, request_timeout=60.0).timeout_s == 60.0
    assert parse({"X-Request-Timeout": "0.25"}).timeout_s == 0.25


@given(st.dictionaries(st.sampled_from(SESSION_NAMES), st.sampled_from(["", "a", "b"]) | st.none()))
def test_the_first_name_that_says_something_is_the_session(names: dict[str, str | None]) -> None:
    expected = next((names[name] for name in SESSION_NAMES if names.get(name)), "")
    headers = {name: text for name, text in names.items() if name == "X-Session-Id" and text is not None}
    members: dict[str, Any] = {name: text for name, text in names.items() if name != "X-Session-Id"}
    assert parse(headers, **members).session == expected


@pytest.mark.parametrize("name", [*SESSION_NAMES, "cache_salt"])
def test_names_are_bounded_whichever_counts(name: str) -> None:
    for length in (MAX_NAME_CHARS, MAX_NAME_CHARS + 1):
        text = "é" * length
        headers = {name: text} if name == "X-Session-Id" else {}
        members: dict[str, Any] = {} if headers else {name: text}
        if name != "session":
            members["session"] = "short"
        if length == MAX_NAME_CHARS:
            parse(headers, **members)
            continue
        with pytest.raises(ClientError, match="256") as caught:
            parse(headers, **members)
        assert caught.value.param == name


@pytest.mark.asyncio
async def test_a_header_that_is_no_text_is_refused() -> None:
    async with running() as live:
        request = (
            b"POST /completion HTTP/1.1\r\nHost: localhost\r\nX-Session-Id: \xff\xfe\r\nContent-Length: 14\r\nConnection: close\r\n\r\n"
        )
        reply = await live.raw(request + b'{"prompt":"x"}')
        assert reply.startswith(b"HTTP/1.1 400") and b"X-Session-Id" in reply and not live.runner.requests


def test_guesses_are_bounded_also_as_an_object() -> None:
    assert parse().n_draft_max == -1
    assert [parse(n_draft_max=n).n_draft_max for n in (0, 64)] == [0, 64]
    assert parse(speculative=Speculative(n_max=5)).n_draft_max == 5
    assert parse(speculative=Speculative(n_max=5), n_draft_max=0).n_draft_max == 0
    wrong_ones: list[dict[str, Any]] = [{"n_draft_max": 65}, {"n_draft_max": -1}, {"speculative": Speculative(n_max=65)}]
    for wrong in wrong_ones:
        with pytest.raises(ClientError, match="between 0 and 64") as caught:
            parse(**wrong)
        assert caught.value.param == "speculative.n_max"


@pytest.mark.asyncio
async def test_guesses_on_the_wire() -> None:
    async with running() as live:
        _, reply = await live.post("/completion", {"prompt": "x", "speculative": {"n_max": 6, "p_min": 0.5}})
        assert reply["generation_settings"]["speculative.n_max"] == live.runner.requests.pop().n_draft_max == 6
        await refused(live, "speculative.n_max", "many")
        await refused(live, "speculative", 5)


def _endless(request: Any) -> list[Any]:
    return [Queued(1, 9, 5), HANG]


@pytest.mark.asyncio
async def test_a_thousand_sequences_come_at_once_under_one_name_and_each_has_its_place() -> None:
    async with running(max_queue=1100) as live:
        live.runner.script = _endless
        body = {"prompt": [f"p{i}" for i in range(512)], "n": 2, "session": "bulk"}
        bulk = asyncio.create_task(live.post("/v1/completions", body))
        async with asyncio.timeout(20):
            while len(live.runner.running) < 1024:
                await asyncio.sleep(0.01)
        assert len({request.flow for request in live.runner.requests}) == 1 and live.runner.requests[0].flow.session == "bulk"
        assert live.app[LEDGER].total.waiting == 1024
        status, reply = await live.post("/v1/chat/completions", {"messages": USER, "n": 81})
        assert (status, reply["error"]["code"]) == (503, "queue_full") and not live.renderer.calls
        bulk.cancel()
        await asyncio.gather(bulk, return_exceptions=True)
        await live.idle()
        async with asyncio.timeout(5):
            while live.app[LEDGER].total.waiting:
                await asyncio.sleep(0.01)
        assert len(live.runner.cancelled) == 1024


@pytest.mark.asyncio
async def test_prompt_tokens_count_also_where_the_length_was_not_announced() -> None:
    async with running(max_queue_tokens=50) as live:
        live.runner.script = _endless
        first = asyncio.create_task(live.post("/completion", {"prompt": ["x"] * INFO.n_slots}))
        async with asyncio.timeout(5):
            while not live.app[LEDGER].total.waiting_tokens:
                await asyncio.sleep(0.01)

        async def chunks() -> Any:
            yield b'{"prompt": "' + b"long " * 100 + b'"}'

        async with live.session.post(live.url + "/completion", data=chunks()) as response:
            assert response.status == 503 and (await response.json())["error"]["limit"] == 50
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await live.idle()
