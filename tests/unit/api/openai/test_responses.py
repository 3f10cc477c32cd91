"""/v1/responses, the answer: the full sequence of events, the same whole and streamed; failures; counting."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.errors import ContextSizeExceeded, RunnerDied
from server.protocol import Delta, Queued, Started
from tests.unit.api.openai.reading import PATH, TIME, WEATHER, ask, assembled, plain, streamed
from tests.unit.api.partwise import CALL, THOUGHTFUL, partwise
from tests.unit.http.fakes import HANG, finished, says
from tests.unit.http.live import running


@pytest.mark.asyncio
async def test_whole() -> None:
    async with running() as live:
        reply = await ask(live, instructions="Be brief.", metadata={"a": "b"}, temperature=0.5, user="me", max_output_tokens=9)
        request = live.runner.requests[-1]
    assert reply["id"].startswith("resp_") and reply["object"] == "response" and reply["status"] == "completed"
    assert [item["type"] for item in reply["output"]] == ["message"] and reply["error"] is None and reply["completed_at"]
    assert reply["output"][0]["content"] == [{"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}]
    assert (reply["metadata"], reply["temperature"], reply["instructions"], reply["tools"]) == ({"a": "b"}, 0.5, "Be brief.", [])
    assert reply["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 7,
    }
    assert request.max_tokens == 9 and request.flow.session == "me" and request.prompt == "<system>Be brief.<user>Hi<assistant>"


@pytest.mark.asyncio
async def test_stream() -> None:
    async with running() as live:
        events = await streamed(live)
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert assembled(events)["output"][0]["content"][0]["text"] == "Hello"


@pytest.mark.parametrize(
    "body",
    [{}, {"reasoning": {"summary": "auto"}}, {"include": ["reasoning.encrypted_content"], "reasoning": {"effort": "high"}, "store": False}],
)
@pytest.mark.parametrize("text", [THOUGHTFUL, CALL, "|rHm.|cYes.", " \n", "", "|tnothing", "text|tf|a{}|cmore", "|rHm."])
@pytest.mark.parametrize("split", [1, 4, 1000])
@pytest.mark.asyncio
async def test_all_kinds_of_items_are_the_same_streamed_and_whole(
    monkeypatch: pytest.MonkeyPatch, text: str, split: int, body: dict[str, Any]
) -> None:
    partwise(monkeypatch)
    async with running() as live:
        live.runner.script = says(*(text[i : i + split] for i in range(0, len(text), split)))
        response = assembled(await streamed(live, tools=[WEATHER, TIME], **body))
        assert plain(response) == plain(await ask(live, tools=[WEATHER, TIME], **body))


@pytest.mark.asyncio
async def test_reasoning_text_and_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    partwise(monkeypatch)
    async with running() as live:
        live.runner.script = says(*THOUGHTFUL)
        reply = await ask(live, tools=[WEATHER, TIME], include=["reasoning.encrypted_content"])
        reasoning, message, weather, time = reply["output"]
        assert reasoning["content"] == [{"type": "reasoning_text", "text": "Let me see."}] and reasoning["summary"] == []
        assert "Let me" not in reasoning["encrypted_content"] and message["content"][0]["text"] == "\n\nI look."
        assert (weather["name"], weather["call_id"], weather["status"]) == ("get_weather", "call_1", "completed")
        assert json.loads(weather["arguments"]) == {"city": "Paris"} and time["arguments"] == "{}"
        assert 10 < reply["usage"]["output_tokens_details"]["reasoning_tokens"] < 20
        reply = await ask(live, reasoning={"summary": "concise"})
        assert reply["output"][0]["summary"] == [{"type": "summary_text", "text": "Let me see."}] and "content" not in reply["output"][0]


@pytest.mark.asyncio
async def test_logprobs() -> None:
    async with running() as live:
        live.runner.script = says("a", "é")
        reply = await ask(live, top_logprobs=2)
        logprobs = reply["output"][0]["content"][0]["logprobs"]
        assert [entry["token"] for entry in logprobs] == ["a", "é"] and len(logprobs[0]["top_logprobs"]) == 2
        events = await streamed(live, include=["message.output_text.logprobs"])
        deltas = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
        assert [entry["token"] for delta in deltas for entry in delta] == ["a", "é"] and assembled(events)


@pytest.mark.asyncio
async def test_an_answer_that_was_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    partwise(monkeypatch)
    async with running() as live:
        live.runner.script = says('|cLook.|tf|a{"a": ', reason="length", stop_type="limit")
        events = await streamed(live, max_output_tokens=1)
        response = assembled(events)
        assert events[-1]["type"] == "response.incomplete" and response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
        assert response["status"] == "incomplete" and response["output"][1]["arguments"] == '{"a": '


@pytest.mark.asyncio
async def test_failures() -> None:
    async with running() as live:
        live.runner.script = lambda request: [ContextSizeExceeded(5000, 2048)]
        for stream in (True, False):
            status, reply = await live.post(PATH, {"input": "x", "stream": stream})
            assert status == 400 and reply["error"]["param"] == "input" and reply["error"]["code"] == "context_length_exceeded"
        for steps in ([Queued(1, 0, 5), Started(1, 0, 5, 0), Delta(1, "x")], [Queued(1, 0, 5)]):
            live.runner.script = lambda request, steps=steps: [*steps, RunnerDied("it died")]  # type: ignore[misc]
            events = await streamed(live)
            assert [event["type"] for event in events[-2:]] == ["error", "response.failed"] and events[0]["type"] == "response.created"
            assert events[-2]["code"] == "runner_died" and events[-2]["message"] == "it died"
            assert events[-1]["response"]["status"] == "failed" and events[-1]["response"]["error"]["code"] == "server_error"
            assert (await live.get(f"{PATH}/{events[0]['response']['id']}"))[0] == 404
        assert (await live.post(PATH, {"input": "x"}))[0] == 503


@pytest.mark.asyncio
async def test_a_client_that_leaves_cancels_and_leaves_nothing_behind() -> None:
    async with running() as live:
        live.runner.script = lambda request: [Queued(1, 0, 5), HANG]
        async with live.session.post(live.url + PATH, json={"input": "x", "stream": True}) as response:
            block = await response.content.readuntil(b"\n\n")
            while block.startswith(b":"):
                block = await response.content.readuntil(b"\n\n")
            first = json.loads(block.split(b"data: ")[1])
        await live.idle()
        assert len(live.runner.cancelled) == 1 and (await live.get(f"{PATH}/{first['response']['id']}"))[0] == 404


@pytest.mark.asyncio
async def test_silence_is_filled_with_events() -> None:
    async with running(sse_ping_interval=0.05) as live:
        live.runner.script = lambda request: [Queued(1, 0, 5), 0.15, Delta(1, "x"), 0.15, Delta(1, "y"), finished(2)]
        events = await streamed(live)
        assert len([event for event in events if event["type"] == "response.in_progress"]) >= 3
        assert assembled(events)["output"][0]["content"][0]["text"] == "xy"


@pytest.mark.asyncio
async def test_counting_tokens() -> None:
    async with running() as live:
        status, reply = await live.post(PATH + "/input_tokens", {"input": "Hi", "tools": [WEATHER]})
        assert status == 200 and reply == {"object": "response.input_tokens", "input_tokens": len("<user>Hi<assistant>") + 1}
        assert live.renderer.calls[-1]["tools"] and not live.runner.requests
