"""The `anthropic` package as the client: answers, streams, its helpers, tools, thinking, and every kind of failure."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pydantic
import pytest
from anthropic import AsyncAnthropic, beta_async_tool

from server.errors import ContextSizeExceeded, RunnerDied, ServerBusy
from server.protocol import Delta, GenerationRequest, Queued, Started
from tests.unit.api.partwise import THOUGHTFUL, partwise
from tests.unit.http.fakes import Step, says
from tests.unit.http.live import Live, running

USER: Any = [{"role": "user", "content": "Hi"}]
WEATHER: Any = {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
COMMON: Any = {"model": "claude-x", "max_tokens": 100, "messages": USER}


@asynccontextmanager
async def client(**options: Any) -> AsyncIterator[tuple[Live, AsyncAnthropic]]:
    async with (
        running(**options) as live,
        AsyncAnthropic(base_url=live.url, api_key="right", max_retries=0, timeout=10) as api,
    ):
        yield live, api


@pytest.mark.asyncio
async def test_whole_and_counted() -> None:
    async with client(api_key="right") as (_, api):
        message = await api.messages.create(
            **COMMON, system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
        )
        assert message.content[0].type == "text" and message.content[0].text == "Hello" and message.stop_reason == "end_turn"
        assert (message.usage.input_tokens, message.usage.cache_read_input_tokens, message.usage.output_tokens) == (3, 2, 2)
        assert message._request_id and message._request_id.startswith("req_")
        counted = await api.messages.count_tokens(model="claude-x", messages=USER, tools=[WEATHER])
        assert counted.input_tokens > 10
        beta = await api.beta.messages.create(**COMMON, betas=["interleaved-thinking-2025-05-14"])
        assert beta.content[0].type == "text"
        assert (await api.beta.messages.count_tokens(model="claude-x", messages=USER)).input_tokens > 10


@pytest.mark.asyncio
async def test_raw_stream() -> None:
    async with client() as (_, api):
        events = [event async for event in await api.messages.create(**COMMON, stream=True)]
    assert [event.type for event in events][0] == "message_start" and events[-1].type == "message_stop"
    assert "".join(e.delta.text for e in events if e.type == "content_block_delta" and e.delta.type == "text_delta") == "Hello"


@pytest.mark.parametrize("display", ["summarized", "omitted"])
@pytest.mark.asyncio
async def test_the_stream_helper_with_thinking_and_tools(monkeypatch: pytest.MonkeyPatch, display: Any) -> None:
    partwise(monkeypatch)
    thinking: Any = {"type": "enabled", "budget_tokens": 1024, "display": display}
    async with client() as (live, api):
        live.runner.script = says(*THOUGHTFUL)
        async with api.messages.stream(**COMMON, tools=[WEATHER], thinking=thinking) as stream:
            kinds = [event.type async for event in stream]
            message = await stream.get_final_message()
        assert ("thinking" in kinds) == (display == "summarized") and {"signature", "text", "input_json"} <= set(kinds)
        thought, text, first, second = message.content
        assert thought.type == "thinking" and thought.thinking == ("Let me see." if display == "summarized" else "") and thought.signature
        assert text.type == "text" and text.text.strip() == "I look."
        assert first.type == "tool_use" and first.input == {"city": "Paris"} and first.id == "call_1"
        assert second.type == "tool_use" and second.input == {} and message.stop_reason == "tool_use"
        assert message.usage.output_tokens_details and message.usage.output_tokens_details.thinking_tokens > 10

        live.runner.script = says(THOUGHTFUL)
        whole = await api.messages.create(**COMMON, tools=[WEATHER], thinking=thinking)
        assert [b.model_dump() for b in whole.content] == [b.model_dump(exclude={"parsed_output"}) for b in message.content]

        results: Any = [{"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "rain"}]}]
        follow: Any = [*USER, message.to_param(), {"role": "user", "content": results}]
        live.runner.script = says("|cIt rains.")
        again = await api.messages.create(model="m", max_tokens=9, messages=follow, tools=[WEATHER], thinking=thinking)
        assert again.content[0].type == "text" and again.content[0].text == "It rains."
        assert live.renderer.calls[-1]["messages"][1]["reasoning_content"] == "Let me see."


@pytest.mark.asyncio
async def test_the_tool_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    partwise(monkeypatch)
    asked: list[str] = []

    @beta_async_tool
    async def get_weather(city: str) -> str:
        """Weather of a city."""
        asked.append(city)
        return "rain"

    def script(request: GenerationRequest) -> Any:
        has_result = "<tool>" in str(request.prompt)
        return says("|cIt rains.")(request) if has_result else says('|tget_weather|a{"city": "Paris"}')(request)

    async with client() as (live, api):
        live.runner.script = script
        final = await api.beta.messages.tool_runner(**COMMON, tools=[get_weather]).until_done()
    assert asked == ["Paris"] and final.content[0].type == "text" and final.content[0].text == "It rains."


@pytest.mark.asyncio
async def test_a_schema_from_a_class() -> None:
    class Answer(pydantic.BaseModel):
        n: int

    async with client() as (live, api):
        live.runner.script = says('{"n":', " 5}")
        parsed = await api.messages.parse(**COMMON, output_format=Answer)
        assert parsed.parsed_output == Answer(n=5)
        constraint = live.runner.requests[-1].constraint
        assert constraint is not None and '"n"' in constraint.source
        async with api.messages.stream(**COMMON, output_format=Answer) as stream:
            assert (await stream.get_final_message()).parsed_output == Answer(n=5)


@pytest.mark.asyncio
async def test_models() -> None:
    async with client() as (_, api):
        page = await api.models.list()
        assert [model.id for model in page.data] == ["tiny"] and page.data[0].max_input_tokens == 2048
        assert [model.id async for model in api.models.list()] == ["tiny"]
        assert (await api.models.retrieve("tiny")).created_at.year >= 2024


@pytest.mark.asyncio
async def test_failures() -> None:
    async with client(api_key="right") as (live, api):
        with pytest.raises(anthropic.AuthenticationError) as unknown:
            await api.with_options(api_key="wrong").messages.create(**COMMON)
        assert unknown.value.type == "authentication_error" and unknown.value.request_id
        with pytest.raises(anthropic.BadRequestError, match="tools\\[0\\].input_schema"):
            await api.messages.create(**COMMON, tools=[{"name": "x"}])  # type: ignore[list-item]
        with pytest.raises(anthropic.NotFoundError):
            await api.models.retrieve("claude")
        live.runner.script = lambda request: [ContextSizeExceeded(5000, 2048)]
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            await api.messages.create(**COMMON, stream=True)
        live.runner.script = lambda request: [ServerBusy("full", retry_after=7)]
        with pytest.raises(anthropic.APIStatusError) as busy:
            await api.messages.create(**COMMON)
        assert busy.value.status_code == 503 and busy.value.response.headers["retry-after"] == "7"
        steps: list[Step] = [Queued(1, 0, 5), Started(1, 0, 5, 0), Delta(1, "Hel"), RunnerDied("it died")]
        live.runner.script = lambda request: steps
        with pytest.raises(anthropic.APIStatusError, match="it died"):
            async for _ in await api.messages.create(**COMMON, stream=True):
                pass
