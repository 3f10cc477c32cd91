"""The `openai` package as the client: it understands answers, streams, and every kind of failure."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from server.errors import ContextSizeExceeded, RunnerDied, ServerBusy
from server.protocol import Delta, Queued, Started
from tests.unit.http.fakes import State, Step, finished
from tests.unit.http.live import Live, running

USER: Any = [{"role": "user", "content": "Hi"}]


@asynccontextmanager
async def client() -> AsyncIterator[tuple[Live, AsyncOpenAI]]:
    async with running() as live, AsyncOpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0, timeout=10) as api:
        yield live, api


@pytest.mark.asyncio
async def test_chat() -> None:
    async with client() as (_, api):
        reply = await api.chat.completions.create(model="x", messages=USER, logprobs=True, top_logprobs=2, n=2)
        assert [c.message.content for c in reply.choices] == ["Hello", "Hello"]
        assert reply.usage and reply.usage.prompt_tokens_details and reply.usage.prompt_tokens_details.cached_tokens == 2
        logprobs = reply.choices[0].logprobs
        assert logprobs and logprobs.content and logprobs.content[0].top_logprobs[1].logprob == -1.5


@pytest.mark.asyncio
async def test_chat_stream() -> None:
    async with client() as (_, api):
        stream = await api.chat.completions.create(model="x", messages=USER, stream=True, stream_options={"include_usage": True})
        found = [chunk async for chunk in stream]
    assert "".join(c.delta.content or "" for chunk in found for c in chunk.choices) == "Hello"
    assert found[-1].usage and found[-1].usage.total_tokens == 7 and not found[-1].choices


@pytest.mark.asyncio
async def test_the_stream_helper_accumulates() -> None:
    async with client() as (_, api), api.chat.completions.stream(model="x", messages=USER) as stream:
        completion = await stream.get_final_completion()
    assert completion.choices[0].message.content == "Hello" and completion.choices[0].message.role == "assistant"


@pytest.mark.asyncio
async def test_places_in_the_queue_and_deadlines() -> None:
    extra: Any = {"return_queue": True, "priority": "batch", "timeout": 5}
    async with client() as (live, api):
        end = finished(1, reason="length", stop_type="timeout")
        steps: list[Step] = [Queued(1, 2, 5, 9.0), Queued(1, 0, 5, 1.0), Started(1, 0, 5, 0), Delta(1, "Hel")]
        live.runner.script = lambda request: [*steps, end]
        stream = await api.chat.completions.create(model="x", messages=USER, stream=True, extra_body=extra, user="me")
        found = [chunk async for chunk in stream]
        assert [chunk.model_extra["queue"]["position"] for chunk in found if chunk.model_extra and "queue" in chunk.model_extra] == [2, 0]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in found) == "Hel"
        assert found[-1].choices[0].finish_reason == "length" and (found[-1].choices[0].model_extra or {})["stop_type"] == "timeout"
        live.runner.script = lambda request: [*steps, finished(1)]
        async with api.chat.completions.stream(model="x", messages=USER, extra_body=extra) as helper:
            assert (await helper.get_final_completion()).choices[0].message.content == "Hel"
        old = await api.completions.create(model="x", prompt="a", stream=True, extra_body=extra)
        assert "".join([chunk.choices[0].text async for chunk in old]) == "Hel"
        assert {(r.priority, r.timeout_s) for r in live.runner.requests} == {("batch", 5.0)} and live.runner.requests[
            0
        ].flow.session == "me"


@pytest.mark.asyncio
async def test_completions_and_models() -> None:
    async with client() as (_, api):
        reply = await api.completions.create(model="x", prompt=["a", "b"], logprobs=2)
        assert [c.text for c in reply.choices] == ["Hello", "Hello"] and reply.choices[0].logprobs
        stream = await api.completions.create(model="x", prompt="a", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == "Hello"
        assert [m.id for m in (await api.models.list()).data] == ["tiny"]
        assert (await api.models.retrieve("tiny")).id == "tiny"
        with pytest.raises(openai.NotFoundError):
            await api.models.retrieve("other/model")


@pytest.mark.asyncio
async def test_failures_are_its_exceptions() -> None:
    async with client() as (live, api):
        with pytest.raises(openai.BadRequestError, match="temperature"):
            await api.chat.completions.create(model="x", messages=USER, temperature=-1)
        live.runner.script = lambda request: [ContextSizeExceeded(5000, 2048)]
        with pytest.raises(openai.BadRequestError) as refused:
            await api.chat.completions.create(model="x", messages=USER)
        assert refused.value.code == "context_length_exceeded"
        live.runner.script = lambda request: [ServerBusy("full")]
        with pytest.raises(openai.InternalServerError) as busy:
            await api.chat.completions.create(model="x", messages=USER, stream=True)
        assert busy.value.status_code == 503 and busy.value.response.headers["retry-after"] == "1"
        live.runner.state, live.runner.info = State.LOADING, None
        with pytest.raises(openai.InternalServerError) as loading:
            await api.chat.completions.create(model="x", messages=USER)
        assert loading.value.code == "model_loading" and int(loading.value.response.headers["retry-after"]) >= 1


@pytest.mark.asyncio
async def test_a_failure_inside_a_stream_is_raised() -> None:
    async with client() as (live, api):
        live.runner.script = lambda request: [Queued(1, 0, 5), Delta(1, "Hel"), RunnerDied("gone")]
        stream = await api.chat.completions.create(model="x", messages=USER, stream=True)
        with pytest.raises(openai.APIError, match="gone"):
            _ = [chunk async for chunk in stream]


@pytest.mark.asyncio
async def test_keys() -> None:
    async with running(api_key="right") as live:
        async with AsyncOpenAI(base_url=live.url + "/v1", api_key="wrong", max_retries=0) as api:
            with pytest.raises(openai.AuthenticationError):
                await api.models.list()
        async with AsyncOpenAI(base_url=live.url + "/v1", api_key="right", max_retries=0) as api:
            assert (await api.models.list()).data
