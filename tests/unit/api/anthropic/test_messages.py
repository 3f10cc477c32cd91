"""/v1/messages: strict order of blocks and events, the same whole and streamed; every member has its effect or is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.errors import ContextSizeExceeded, RunnerDied
from server.protocol import Delta, Queued, Started
from tests.unit.api.partwise import CALL, THOUGHTFUL, partwise
from tests.unit.http.fakes import HANG, finished, says
from tests.unit.http.live import Live, running

PATH = "/v1/messages"
BODY: dict[str, Any] = {"model": "claude", "max_tokens": 50, "messages": [{"role": "user", "content": "Hi"}]}
WEATHER = {"name": "get_weather", "description": "Weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
TIME = {"name": "get_time", "input_schema": {"type": "object"}}


async def ask(live: Live, **body: Any) -> dict[str, Any]:
    status, reply = await live.post(PATH, {**BODY, **body})
    assert status == 200, reply
    found: dict[str, Any] = reply
    return found


def named_events(content: bytes) -> list[dict[str, Any]]:
    """Every event's data; its name must be its type."""
    found = []
    for block in content.decode().split("\n\n"):
        if block.startswith("event: "):
            name, _, data = block.partition("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert found[-1]["type"] == name.removeprefix("event: ")
        else:
            assert not block.startswith("data"), "an event without a name is lost on Anthropic's clients"
    return found


async def streamed(live: Live, **body: Any) -> list[dict[str, Any]]:
    status, content = await live.post(PATH, {**BODY, "stream": True, **body})
    assert status == 200, content
    return named_events(content)


def assembled(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream adds up to; fails where the order of events is wrong."""
    assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop" and events[-2]["type"] == "message_delta"
    message: dict[str, Any] = events[0]["message"]
    assert message["content"] == [] and message["stop_reason"] is None
    block: dict[str, Any] | None = None
    arguments = ""
    for event in events[1:-2]:
        if event["type"] == "ping":
            continue
        assert event["index"] == len(message["content"])
        match event["type"]:
            case "content_block_start":
                assert block is None
                block, arguments = dict(event["content_block"]), ""
                assert block["type"] != "tool_use" or block["input"] == {}
            case "content_block_delta":
                assert block is not None
                delta = event["delta"]
                if delta["type"] == "input_json_delta":
                    arguments += delta["partial_json"]
                else:
                    member = delta["type"].removesuffix("_delta")
                    block[member] += delta[member]
            case "content_block_stop":
                assert block is not None
                if block["type"] == "tool_use":
                    block["input"] = json.loads(arguments)
                message["content"].append(block)
                block = None
            case _:
                raise AssertionError(event)
    assert block is None
    return {**message, **events[-2]["delta"], "usage": {**message["usage"], **events[-2]["usage"]}}


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
async def test_tools_reach_the_template_and_the_choice_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = partwise(monkeypatch)
    async with running() as live:
        for choice, expected in (
            (None, ("auto", ["get_weather", "get_time"], True)),
            ({"type": "auto"}, ("auto", ["get_weather", "get_time"], True)),
            ({"type": "auto", "disable_parallel_tool_use": True}, ("auto", ["get_weather", "get_time"], False)),
            ({"type": "any"}, ("required", ["get_weather", "get_time"], True)),
            ({"type": "tool", "name": "get_time"}, ("required", ["get_time"], True)),
            ({"type": "none"}, ("none", [], True)),
        ):
            await ask(live, tools=[{**WEATHER, "strict": True, "cache_control": {"type": "ephemeral"}}, TIME], tool_choice=choice)
            wish = chosen.wishes[-1]
            assert (wish.choice, [tool.name for tool in wish.tools], wish.parallel) == expected
            assert [tool["function"]["name"] for tool in live.renderer.calls[-1]["tools"]] == ["get_weather", "get_time"]
        assert live.renderer.calls[-1]["tools"][0]["function"]["parameters"] == WEATHER["input_schema"]
        assert chosen.wishes[0].tools[0].strict and not chosen.wishes[0].tools[1].strict
        assert live.runner.requests[-1].shown_tokens == ("<shown>",)
        absents: list[Any] = [[], None]
        for absent in absents:
            await ask(live, tools=absent, tool_choice={"type": "auto"})
            assert "tools" not in live.renderer.calls[-1] and chosen.wishes[-1].choice == "none"


@pytest.mark.asyncio
async def test_tools_that_others_would_run_are_left_out_and_that_is_said() -> None:
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    async with running() as live:
        for stream in (False, True):
            body = {**BODY, "tools": [search, TIME], "stream": stream}
            status, _, headers = await live.ask("POST", PATH, data=json.dumps(body))
            assert status == 200 and "tools[0]" in headers["X-Capsule-Warning"] and "web_search_20250305" in headers["X-Capsule-Warning"]
            assert [tool["function"]["name"] for tool in live.renderer.calls[-1]["tools"]] == ["get_time"]
        _, _, headers = await live.ask("POST", PATH, data=json.dumps(BODY))
        assert "X-Capsule-Warning" not in headers
        status, reply = await live.post(PATH, {**BODY, "tools": [search], "tool_choice": {"type": "tool", "name": "web_search"}})
        assert status == 400 and "tool_choice.name" in reply["error"]["message"]


@pytest.mark.asyncio
async def test_tools_that_the_client_runs_but_anthropic_has_described() -> None:
    async with running() as live:
        await ask(
            live,
            tools=[{"type": "bash_20250124", "name": "bash"}, {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}],
        )
        bash, editor = (tool["function"] for tool in live.renderer.calls[-1]["tools"])
        assert set(bash["parameters"]["properties"]) == {"command", "restart"} and bash["name"] == "bash"
        assert editor["parameters"]["required"] == ["command", "path"]


@pytest.mark.parametrize(
    ("thinking", "variables", "budget"),
    [
        (None, {"enable_thinking": False, "thinking": False}, -1),
        ({"type": "disabled"}, {"enable_thinking": False, "thinking": False}, 0),
        ({"type": "enabled", "budget_tokens": 2000}, {"enable_thinking": True, "thinking": True}, 2000),
        ({"type": "adaptive"}, {"enable_thinking": True, "thinking": True}, -1),
    ],
)
@pytest.mark.asyncio
async def test_how_much_it_thinks(monkeypatch: pytest.MonkeyPatch, thinking: Any, variables: dict[str, Any], budget: int) -> None:
    chosen = partwise(monkeypatch)
    async with running() as live:
        await ask(live, thinking=thinking)
        call = live.renderer.calls[-1]
        assert {name: call[name] for name in variables} == variables and "reasoning_effort" not in call
        assert chosen.wishes[-1].reasoning_budget == budget
        await ask(live, thinking=thinking, output_config={"effort": "max"})
        assert live.renderer.calls[-1]["reasoning_effort"] == "high"


@pytest.mark.asyncio
async def test_a_schema_for_the_answer() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "schema": schema}
    async with running() as live:
        for body, name in (
            ({"output_config": {"format": form}}, "output_config.format.schema"),
            ({"output_format": form}, "output_format.schema"),
        ):
            await ask(live, **body)
            constraint = live.runner.requests[-1].constraint
            assert constraint is not None and constraint.kind == "json_schema" and json.loads(constraint.source) == schema
            assert constraint.param == name


@pytest.mark.asyncio
async def test_a_begun_answer_is_continued() -> None:
    async with running() as live:
        await ask(live, messages=[*BODY["messages"], {"role": "assistant", "content": [{"type": "text", "text": "So"}]}])
        assert (live.renderer.calls[-1]["add"], live.renderer.calls[-1]["continue"]) == (False, True)
        await ask(live)
        assert (live.renderer.calls[-1]["add"], live.renderer.calls[-1]["continue"]) == (True, False)


@pytest.mark.asyncio
async def test_sampling_session_and_scheduling() -> None:
    async with running() as live:
        await ask(live, temperature=0.5, top_p=0.25, top_k=7, metadata={"user_id": "u1"}, priority="batch", timeout=9, max_tokens=0)
        request = live.runner.requests[-1]
        assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (0.5, 0.25, 7)
        assert (request.flow.session, request.priority, request.timeout_s, request.max_tokens) == ("u1", "batch", 9, 0)
        await ask(live, metadata={"user_id": None})
        assert live.runner.requests[-1].flow.session == ""


@pytest.mark.asyncio
async def test_nulls_unknown_members_and_what_means_nothing_here() -> None:
    names = (
        "system stop_sequences metadata thinking tools tool_choice output_config output_format container mcp_servers service_tier speed "
        "stream temperature top_p top_k context_management inference_geo diagnostics cache_control betas"
    )
    async with running() as live:
        await ask(live, **dict.fromkeys(names.split()))
        await ask(
            live, n=3, response_format={"type": "json_object"}, n_predict=1, logprobs=True, x_unknown=[1], service_tier="auto",
            cache_control={"type": "ephemeral"}, mcp_servers=[],
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        )  # fmt: skip
        assert len(live.runner.requests) == 2 and live.runner.requests[-1].max_tokens == 50


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url"}}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0]"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"system": 5}, "system"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 65}, "stop_sequences"),
        ({"metadata": {"user_id": "x" * 257}}, "metadata.user_id"),
        ({"temperature": -1}, "temperature"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [TIME, TIME]}, "tools[1].name"),
        ({"tools": [{"name": "x", "input_schema": {"n": 2**70}}]}, "tools[0].input_schema.n"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [TIME], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tools": [TIME], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TIME], "tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"mcp_servers": [{"url": "https://x"}]}, "mcp_servers"),
        ({"container": "c"}, "container"),
    ],
)
@pytest.mark.asyncio
async def test_what_is_wrong_or_not_done_is_named(body: dict[str, Any], name: str) -> None:
    async with running() as live:
        status, reply = await live.post(PATH, {**BODY, **body})
        assert status == 400 and reply["error"]["type"] == "invalid_request_error" and reply["type"] == "error"
        assert name in reply["error"]["message"] and not live.runner.requests


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
