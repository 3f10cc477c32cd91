"""The `openai` package as the client of /v1/responses: answers, streams, its helpers, tools, reasoning, what is kept, failures."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pydantic
import pytest
from openai import AsyncOpenAI

from server.errors import ContextSizeExceeded, RunnerDied
from server.protocol import Delta, Queued, Started
from tests.unit.api.partwise import THOUGHTFUL, partwise
from tests.unit.http.fakes import Step, says
from tests.unit.http.live import Live, running

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False},
    "strict": True,
}


@asynccontextmanager
async def client(**options: Any) -> AsyncIterator[tuple[Live, AsyncOpenAI]]:
    async with running(**options) as live, AsyncOpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0, timeout=10) as api:
        yield live, api


@pytest.mark.asyncio
async def test_whole() -> None:
    async with client() as (_, api):
        response = await api.responses.create(model="x", input="Hi", instructions="Be brief.", metadata={"a": "b"})
        assert response.output_text == "Hello" and response.status == "completed" and response.metadata == {"a": "b"}
        assert response.usage and response.usage.input_tokens_details.cached_tokens == 2 and response._request_id


@pytest.mark.asyncio
async def test_raw_stream() -> None:
    async with client() as (_, api):
        events = [event async for event in await api.responses.create(model="x", input="Hi", stream=True)]
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello"
    assert events[-1].type == "response.completed" and events[-1].response.output_text == "Hello"


@pytest.mark.asyncio
async def test_the_stream_helper_with_reasoning_and_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    partwise(monkeypatch)
    async with client() as (live, api):
        live.runner.script = says(*THOUGHTFUL)
        async with api.responses.stream(model="x", input="Hi", tools=[WEATHER]) as stream:
            events = [event async for event in stream]
            response = await stream.get_final_response()
        assert [event.type for event in events if event.type.startswith("response.reasoning")][-1] == "response.reasoning_text.done"
        snapshots = [event.snapshot for event in events if event.type == "response.function_call_arguments.delta"]
        assert snapshots[-1] == "{}" and '{"city": "Paris"}' in snapshots
        reasoning, message, weather, time = response.output
        assert reasoning.type == "reasoning" and reasoning.content and reasoning.content[0].text == "Let me see."
        assert message.type == "message" and weather.type == "function_call" and weather.arguments == '{"city": "Paris"}'
        assert time.type == "function_call" and time.call_id == "call_2"

        whole = await api.responses.create(model="x", input="Hi", tools=[WEATHER])
        assert [item.type for item in whole.output] == [item.type for item in response.output]

        live.runner.script = says("|cIt rains.")
        outputs: Any = [{"type": "function_call_output", "call_id": call, "output": "rain"} for call in ("call_1", "call_2")]
        by_id = await api.responses.create(model="x", input=outputs, previous_response_id=response.id)
        history: Any = [{"role": "user", "content": "Hi"}, *[item.to_dict() for item in response.output], *outputs]
        by_items = await api.responses.create(model="x", input=history, store=False)
        assert by_id.output_text == by_items.output_text == "It rains."
        first, second = (call["messages"] for call in live.renderer.calls[-2:])
        assert first == second and first[1]["reasoning_content"] == "Let me see."


@pytest.mark.asyncio
async def test_reasoning_summaries(monkeypatch: pytest.MonkeyPatch) -> None:
    partwise(monkeypatch)
    async with client() as (live, api):
        live.runner.script = says(*THOUGHTFUL)
        async with api.responses.stream(model="x", input="Hi", reasoning={"effort": "low", "summary": "auto"}) as stream:
            events = [event async for event in stream]
        deltas = [event.delta for event in events if event.type == "response.reasoning_summary_text.delta"]
        assert "".join(deltas) == "Let me see."


@pytest.mark.asyncio
async def test_a_schema_from_a_class() -> None:
    class Answer(pydantic.BaseModel):
        n: int

    async with client() as (live, api):
        live.runner.script = says('{"n":', " 5}")
        parsed = await api.responses.parse(model="x", input="Hi", text_format=Answer)
        assert parsed.output_parsed == Answer(n=5) and live.runner.requests[-1].constraint is not None
        async with api.responses.stream(model="x", input="Hi", text_format=Answer) as stream:
            assert (await stream.get_final_response()).output_parsed == Answer(n=5)


@pytest.mark.asyncio
async def test_what_is_kept() -> None:
    async with client() as (_, api):
        first = await api.responses.create(model="x", input="Hi")
        second = await api.responses.create(model="x", input="And?", previous_response_id=first.id)
        assert (await api.responses.retrieve(first.id)).output_text == "Hello"
        items = [item async for item in api.responses.input_items.list(second.id, limit=1, order="asc")]
        assert [item.type for item in items] == ["message", "message", "message"]
        await api.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await api.responses.retrieve(first.id)
        assert (await api.responses.create(model="x", input="Still?", previous_response_id=second.id)).output_text == "Hello"
        assert (await api.responses.input_tokens.count(model="x", input="Hi")).input_tokens > 5


@pytest.mark.asyncio
async def test_failures() -> None:
    async with client() as (live, api):
        with pytest.raises(openai.BadRequestError, match="background"):
            await api.responses.create(model="x", input="Hi", background=True)
        live.runner.script = lambda request: [ContextSizeExceeded(5000, 2048)]
        with pytest.raises(openai.BadRequestError) as too_long:
            await api.responses.create(model="x", input="Hi", stream=True)
        assert too_long.value.code == "context_length_exceeded" and too_long.value.param == "input"
        steps: list[Step] = [Queued(1, 0, 5), Started(1, 0, 5, 0), Delta(1, "Hel"), RunnerDied("it died")]
        live.runner.script = lambda request: steps
        events = [event async for event in await api.responses.create(model="x", input="Hi", stream=True)]
        assert events[-2].type == "error" and events[-2].message == "it died"
        assert events[-1].type == "response.failed" and events[-1].response.error and events[-1].response.error.message == "it died"
