"""/v1/responses, the request: every member has its effect or is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.api.openai.reading import PATH, TIME, WEATHER, ask, assembled, streamed
from tests.unit.api.partwise import partwise
from tests.unit.http.live import running


@pytest.mark.asyncio
async def test_tools_and_the_choice_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = partwise(monkeypatch)
    both = ["get_weather", "get_time"]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]}
    cases: list[tuple[Any, Any]] = [
        (None, ("auto", both)),
        ("auto", ("auto", both)),
        ("none", ("none", [])),
        ("required", ("required", both)),
        ({"type": "function", "name": "get_time"}, ("required", ["get_time"])),
        (allowed, ("required", ["get_time"])),
        ({**allowed, "mode": "auto"}, ("auto", ["get_time"])),
    ]
    async with running() as live:
        for choice, expected in cases:
            reply = await ask(live, tools=[WEATHER, TIME], tool_choice=choice, parallel_tool_calls=False)
            wish = chosen.wishes[-1]
            assert (wish.choice, [tool.name for tool in wish.tools]) == expected and wish.parallel is False
            assert [tool["function"]["name"] for tool in live.renderer.calls[-1]["tools"]] == both
            assert reply["tool_choice"] == (choice or "auto") and reply["parallel_tool_calls"] is False
        assert [tool["strict"] for tool in reply["tools"]] == [True, False] and wish.tools[0].parameters == {}
        await ask(live, tools=[])
        assert "tools" not in live.renderer.calls[-1] and chosen.wishes[-1].choice == "none" and chosen.wishes[-1].parallel


@pytest.mark.asyncio
async def test_what_codex_sends_is_taken() -> None:
    body = {
        "model": "gpt-oss", "instructions": "You are a coding agent.", "store": False, "stream": True, "parallel_tool_calls": True,
        "prompt_cache_key": "abc", "client_metadata": {"x": "y"}, "include": ["reasoning.encrypted_content"], "tool_choice": "auto",
        "reasoning": {"effort": "medium", "summary": "auto"}, "text": {"verbosity": "low"},
        "tools": [
            {"type": "function", "name": "shell", "description": "Runs", "strict": False, "parameters": {"type": "object"}},
            {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
            {"type": "web_search", "external_web_access": True}, {"type": "image_generation"},
            {"type": "namespace", "name": "mcp", "tools": []},
        ],
        "input": [
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "<permissions>"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment>"}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List files."}]},
            {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAAAAB"},
            {"type": "function_call", "name": "shell", "arguments": "{\"command\":[\"ls\"]}", "call_id": "call_1"},
            {"type": "function_call_output", "call_id": "call_1", "output": "a.txt"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "One file."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Thanks."}]},
        ],
    }  # fmt: skip
    async with running() as live:
        response = assembled(await streamed(live, **body))
        call = live.renderer.calls[-1]
        assert [message["role"] for message in call["messages"]] == ["system", "user", "assistant", "tool", "assistant", "user"]
        assert call["messages"][0]["content"] == "You are a coding agent.\n\n<permissions>"
        assert [tool["function"]["name"] for tool in call["tools"]] == ["shell"] and call["reasoning_effort"] == "medium"
        assert len(response["warnings"]) == 4 and [tool["name"] for tool in response["tools"]] == ["shell"]
        assert live.runner.requests[-1].flow.session == "abc"
        _, _, headers = await live.ask("POST", PATH, data=json.dumps({**body, "stream": False}))
        assert "tools[1]" in headers["X-Capsule-Warning"] and "custom" in headers["X-Capsule-Warning"]


@pytest.mark.asyncio
async def test_forms_of_the_answer_and_how_much_it_thinks(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = partwise(monkeypatch)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    async with running() as live:
        reply = await ask(live, text={"format": {"type": "json_schema", "name": "n", "strict": True, "schema": schema}})
        constraint = live.runner.requests[-1].constraint
        assert constraint is not None and json.loads(constraint.source) == schema and constraint.param == "text.format.schema"
        assert reply["text"]["format"]["schema"] == schema
        await ask(live, text={"format": {"type": "json_object"}})
        constraint = live.runner.requests[-1].constraint
        assert constraint is not None and json.loads(constraint.source) == {"type": "object"}
        await ask(live, text={"format": {"type": "text"}, "verbosity": "low"})
        assert live.runner.requests[-1].constraint is None and "enable_thinking" not in live.renderer.calls[-1]
        for effort, thinks, shown, budget in (("none", False, None, 0), ("minimal", True, "low", -1), ("high", True, "high", -1)):
            await ask(live, reasoning={"effort": effort})
            call = live.renderer.calls[-1]
            assert (call["enable_thinking"], call.get("reasoning_effort"), chosen.wishes[-1].reasoning_budget) == (thinks, shown, budget)


@pytest.mark.asyncio
async def test_nulls_unknown_members_and_what_means_nothing_here() -> None:
    names = (
        "background conversation include instructions max_output_tokens max_tool_calls metadata model parallel_tool_calls "
        "previous_response_id prompt prompt_cache_key reasoning safety_identifier service_tier store stream stream_options "
        "temperature text tool_choice tools "
        "top_logprobs top_p truncation user"
    )  # fmt: skip
    async with running() as live:
        await ask(live, **dict.fromkeys(names.split()))
        reply = await ask(
            live, n=3, response_format={"type": "json_object"}, max_tokens=3, x_unknown=[1], service_tier="auto", max_tool_calls=3,
            background=False, truncation="disabled", include=["file_search_call.results"], stream_options={"include_obfuscation": True},
        )  # fmt: skip
        assert len(live.runner.requests) == 2 and live.runner.requests[-1].max_tokens == -1 and "warnings" not in reply
        reply = await ask(live, truncation="auto")
        assert reply["truncation"] == "disabled" and "truncation" in reply["warnings"][0]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "middle"}, "truncation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"metadata": {"a": 1}}, "metadata[...]"),
        ({"temperature": -1}, "temperature"),
        ({"tools": [{"name": "x"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [TIME, TIME]}, "tools[1].name"),
        ({"tools": [{**TIME, "parameters": {"n": 2**70}}]}, "tools[0].parameters.n"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "some"}, "tool_choice"),
        ({"tools": [TIME], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"tools": [TIME], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tools": [TIME], "tool_choice": {"type": "allowed_tools", "mode": "x"}}, "tool_choice.mode"),
        ({"tools": [TIME], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.tools"),
        (
            {"tools": [TIME], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "x"}]}},
            "tool_choice.tools[0].name",
        ),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
    ],
)
@pytest.mark.asyncio
async def test_what_is_wrong_or_not_done_is_named(body: dict[str, Any], param: str) -> None:
    async with running() as live:
        status, reply = await live.post(PATH, {"input": "Hi", **body})
        assert status == 400 and reply["error"]["param"] == param, reply
        assert param in reply["error"]["message"] and not live.runner.requests
