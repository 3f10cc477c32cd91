"""/v1/messages, the answer: strict order of blocks and events, the same whole and streamed; counting; models."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.errors import ContextSizeExceeded, RunnerDied
from server.protocol import Delta, Queued, Started
from tests.unit.api.anthropic.reading import BODY, PATH, TIME, WEATHER, ask, assembled, named_events, streamed
from tests.unit.api.partwise import CALL, THOUGHTFUL, partwise
from tests.unit.http.fakes import HANG, finished, says
from tests.unit.http.live import running


@pytest.mark.asyncio
async def test_whole() -> None:
    async with running() as live:
        reply = await ask(live)
    assert reply.pop("id").startswith("msg_")
    assert reply == {
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2, "output_tokens": 2},
    }


@pytest.mark.asyncio
async def test_stream() -> None:
    async with running() as live:
        events = await streamed(live)
        assert [event["type"] for event in events] == [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
        usage = events[0]["message"]["usage"]
        assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (3, 2, 0)
        assert {**assembled(events), "id": ""} == {**await ask(live), "id": ""}


@pytest.mark.parametrize(
    "text",
    [
        THOUGHTFUL,
        CALL,
        "|rHm.|cYes.",
        "|rHm.|c \n|rAnd.|c\n",
        "  \n",
        "",
        "|tnothing",
        "text|tf|a{}|cmore",
        "|tf|a{}|c\n\n|tg|a{}",
        "|c\n\nHi\n",
    ],
)
@pytest.mark.parametrize("split", [1, 3, 1000])
@pytest.mark.asyncio
async def test_all_kinds_of_blocks_are_the_same_streamed_and_whole(monkeypatch: pytest.MonkeyPatch, text: str, split: int) -> None:
    partwise(monkeypatch)
    async with running() as live:
        live.runner.script = says(*(text[i : i + split] for i in range(0, len(text), split)))
        message = assembled(await streamed(live, tools=[WEATHER, TIME]))
        assert {**message, "id": ""} == {**await ask(live, tools=[WEATHER, TIME]), "id": ""}
        others = [block for block in message["content"] if block["type"] != "text"]
        assert not others or all(block["text"].strip() for block in message["content"] if block["type"] == "text")


@pytest.mark.asyncio
async def test_thinking_text_and_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    partwise(monkeypatch)
    async with running() as live:
        live.runner.script = says(THOUGHTFUL)
        reply = await ask(live, tools=[WEATHER, TIME])
    thinking, text, weather, time = reply["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "Let me see.") and thinking["signature"]
    assert text == {"type": "text", "text": "\n\nI look."}
    assert weather == {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {"city": "Paris"}}
    assert time == {"type": "tool_use", "id": "call_2", "name": "get_time", "input": {}}
    assert reply["stop_reason"] == "tool_use" and reply["usage"]["output_tokens_details"] == {"thinking_tokens": 1}


@pytest.mark.asyncio
async def test_what_an_answer_holds_can_be_sent_back(monkeypatch: pytest.MonkeyPatch) -> None:
    partwise(monkeypatch)
    async with running() as live:
        live.runner.script = says('|rHm.|cI look.|tget_weather|a{"city":"Paris"}')
        for thinking in ({"type": "adaptive"}, {"type": "adaptive", "display": "omitted"}):
            reply = await ask(live, tools=[WEATHER], thinking=thinking)
            shown = reply["content"][0]
            assert shown["thinking"] == ("" if "display" in thinking else "Hm.") and shown["signature"]
            result = {"type": "tool_result", "tool_use_id": "call_1", "content": "rain"}
            await ask(
                live,
                messages=[*BODY["messages"], {"role": "assistant", "content": reply["content"]}, {"role": "user", "content": [result]}],
            )
            messages = live.renderer.calls[-1]["messages"]
            assert messages[1]["reasoning_content"] == "Hm." and messages[1]["content"] == "I look."
            assert messages[1]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city":"Paris"}'}
            assert messages[2] == {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": "rain"}


@pytest.mark.asyncio
async def test_a_call_that_was_cut_off_keeps_what_was_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    partwise(monkeypatch)
    async with running() as live:
        live.runner.script = says('|tf|a{"a": {"b": 1}, "c": "unfin', reason="length", stop_type="limit")
        reply = await ask(live, max_tokens=1)
        assert reply["content"][0]["input"] == {"a": {"b": 1}} and reply["stop_reason"] == "max_tokens"


@pytest.mark.parametrize(
    ("end", "max_tokens", "reason", "sequence"),
    [
        ({}, 50, "end_turn", None),
        ({"stop_type": "word", "word": "END"}, 50, "stop_sequence", "END"),
        ({"reason": "length", "stop_type": "limit"}, 2, "max_tokens", None),
        ({"reason": "length", "stop_type": "limit"}, 50, "model_context_window_exceeded", None),
        ({"reason": "length", "stop_type": "timeout"}, 50, "max_tokens", None),
    ],
)
@pytest.mark.asyncio
async def test_why_it_stopped(end: dict[str, Any], max_tokens: int, reason: str, sequence: str | None) -> None:
    async with running() as live:
        live.runner.script = says("a", "b", **end)
        reply = await ask(live, max_tokens=max_tokens, stop_sequences=["END"])
        assert (reply["stop_reason"], reply["stop_sequence"]) == (reason, sequence)
        assert live.runner.requests[-1].stop == ("END",) and live.runner.requests[-1].max_tokens == max_tokens


@pytest.mark.asyncio
async def test_failures() -> None:
    async with running() as live:
        live.runner.script = lambda request: [ContextSizeExceeded(5000, 2048)]
        status, reply = await live.post(PATH, {**BODY, "stream": True})
        assert status == 400 and reply["error"]["message"].startswith("prompt is too long: 5000 tokens > 2048 maximum")
        live.runner.script = lambda request: [Queued(1, 0, 5), Started(1, 0, 5, 0), Delta(1, "x"), RunnerDied("it died")]
        events = await streamed(live)
        assert [event["type"] for event in events][-1] == "error" and events[-1]["error"]["type"] == "overloaded_error"
        assert (await live.post(PATH, BODY))[0] == 503


@pytest.mark.asyncio
async def test_silence_after_the_start_is_filled_with_pings() -> None:
    async with running(sse_ping_interval=0.1) as live:
        live.runner.script = lambda request: [Queued(1, 1, 5), 0.15, Started(1, 0, 5, 0), 0.25, Delta(1, "x"), finished(1)]
        status, content = await live.post(PATH, {**BODY, "stream": True})
        events = named_events(content)
        assert status == 200 and "ping" in [event["type"] for event in events] and assembled(events)
        assert content.startswith(b": queue position=1"), "before the start there are only comments"


@pytest.mark.asyncio
async def test_a_client_that_leaves_cancels() -> None:
    async with running() as live:
        live.runner.script = lambda request: [Queued(1, 0, 5), HANG]
        async with live.session.post(live.url + PATH, json={**BODY, "stream": True}) as response:
            await response.content.readany()
        await live.idle()
        assert len(live.runner.cancelled) == 1


@pytest.mark.asyncio
async def test_counting_tokens() -> None:
    async with running() as live:
        body = {"messages": BODY["messages"], "system": "Be brief.", "tools": [WEATHER]}
        status, reply, headers = await live.ask("POST", PATH + "/count_tokens?beta=true", data=json.dumps(body))
        assert status == 200 and headers["request-id"].startswith("req_")
        prompt = "<system>Be brief.<user>Hi<assistant>"
        assert reply == {"input_tokens": len(prompt) + 1}, "the fake counts bytes, and BOS"
        assert live.renderer.calls[-1]["tools"] and not live.runner.requests
        status, reply = await live.post(PATH + "/count_tokens", {"messages": [{"role": "s>", "content": "x"}]})
        assert status == 400 and "messages[0].role" in reply["error"]["message"]


@pytest.mark.asyncio
async def test_models_in_the_shape_of_who_asks() -> None:
    async with running() as live:
        _, page = await live.get("/v1/models", anthropic_version="2023-06-01")
        assert (page["has_more"], page["first_id"], page["last_id"]) == (False, "tiny", "tiny")
        assert page["data"][0]["type"] == "model" and page["data"][0]["max_input_tokens"] == 2048
        _, page = await live.get("/v1/models?after_id=tiny", anthropic_version="2023-06-01")
        assert page["data"] == [] and page["first_id"] is None
        status, one = await live.get("/v1/models/tiny", anthropic_version="2023-06-01")
        assert status == 200 and one["display_name"] == "tiny"
        status, reply = await live.get("/v1/models/claude", anthropic_version="2023-06-01")
        assert status == 404 and reply["error"]["type"] == "not_found_error" and reply["type"] == "error"
        assert (await live.get("/v1/models"))[1]["object"] == "list"
