"""/v1/messages, the request: every member has its effect or is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.api.anthropic.reading import BODY, PATH, TIME, WEATHER, ask
from tests.unit.api.partwise import partwise
from tests.unit.http.live import running


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
