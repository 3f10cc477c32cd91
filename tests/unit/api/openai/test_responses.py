"""/v1/responses: the full sequence of events, the same whole and streamed; a bounded memory of one's own; all else refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from server.errors import ContextSizeExceeded, RunnerDied
from server.protocol import Delta, Queued, Started
from tests.unit.api.partwise import CALL, THOUGHTFUL, partwise
from tests.unit.http.fakes import HANG, says
from tests.unit.http.live import Live, running

PATH = "/v1/responses"
WEATHER: dict[str, Any] = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}, "strict": True}
TIME: dict[str, Any] = {"type": "function", "name": "get_time"}


async def ask(live: Live, **body: Any) -> dict[str, Any]:
    status, reply = await live.post(PATH, {"input": "Hi", **body})
    assert status == 200, reply
    found: dict[str, Any] = reply
    return found


async def streamed(live: Live, **body: Any) -> list[dict[str, Any]]:
    status, content = await live.post(PATH, {"input": "Hi", "stream": True, **body})
    assert status == 200, content
    found = []
    for block in content.decode().split("\n\n"):
        if block and not block.startswith(":"):
            name, _, data = block.partition("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert name == f"event: {found[-1]['type']}" and found[-1]["sequence_number"] == len(found) - 1
    return found


def assembled(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The response that a stream ends with; fails where the events before it do not add up to it."""
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert events[0]["response"]["status"] == "in_progress" and events[0]["response"]["output"] == []
    response: dict[str, Any] = events[-1]["response"]
    is_open, texts = False, ""
    parts: list[Any] = []
    items: list[Any] = []
    for event in events[2:-1]:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert not is_open and event["output_index"] == len(items)
            is_open, texts, parts, item_id = True, "", [], event["item"]["id"]
            assert event["item"]["status"] == "in_progress"
            continue
        assert is_open and event["output_index"] == len(items) and event.get("item_id", item_id) == item_id
        if kind.endswith("part.added"):
            assert event["part"]["text"] == ""
        elif kind.endswith(".delta"):
            texts += event["delta"]
        elif kind.endswith(("text.done", "arguments.done")):
            assert texts == event.get("text", event.get("arguments"))
        elif kind.endswith("part.done"):
            assert event["part"]["text"] == texts
            parts.append(event["part"])
        else:
            assert kind == "output_item.done" and event["item"]["id"] == item_id
            item = event["item"]
            assert parts == (item.get("content") or item.get("summary") or [])
            assert item.get("arguments", texts) == texts
            items.append(item)
            is_open = False
    assert not is_open and items == response["output"]
    return response


def plain(response: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from one response to the next."""
    output = [{**item, "id": ""} for item in response["output"]]
    return {**response, "id": "", "created_at": 0, "completed_at": 0, "output": output}


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
async def test_an_answer_is_built_upon_by_its_id_or_by_its_items(monkeypatch: pytest.MonkeyPatch) -> None:
    partwise(monkeypatch)
    async with running() as live:
        live.runner.script = says('|rHm.|cI look.|tget_weather|a{"city":"Paris"}')
        first = await ask(live, tools=[WEATHER], instructions="Be brief.", include=["reasoning.encrypted_content"])
        result = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
        expected = [
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": "I look.",
                "reasoning_content": "Hm.",
                "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}}],
            },
            {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": "rain"},
        ]
        live.runner.script = says("It rains.")
        second = await ask(live, input=[result], previous_response_id=first["id"])
        assert live.renderer.calls[-1]["messages"] == expected and second["previous_response_id"] == first["id"]
        await ask(live, input=[{"role": "user", "content": "Hi"}, *first["output"], result], store=False)
        assert live.renderer.calls[-1]["messages"] == expected
        sealed_alone = {**first["output"][0], "content": None}
        await ask(live, input=[{"role": "user", "content": "Hi"}, sealed_alone, *first["output"][1:], result], store=False)
        assert live.renderer.calls[-1]["messages"] == expected
        references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
        await ask(live, input=[{"role": "user", "content": "Hi"}, *references, result])
        assert live.renderer.calls[-1]["messages"] == expected
        await ask(live, input="And now?", previous_response_id=second["id"])
        assert live.renderer.calls[-1]["messages"] == [
            *expected,
            {"role": "assistant", "content": "It rains."},
            {"role": "user", "content": "And now?"},
        ]
        _, page = await live.get(f"{PATH}/{second['id']}/input_items?order=asc&limit=2")
        assert [item["type"] for item in page["data"]] == ["message", "reasoning"] and page["has_more"]
        _, page = await live.get(f"{PATH}/{second['id']}/input_items?order=asc&limit=9&after={page['last_id']}")
        assert [item["type"] for item in page["data"]] == ["message", "function_call", "function_call_output"] and not page["has_more"]
        _, page = await live.get(f"{PATH}/{second['id']}/input_items")
        assert page["data"][0]["type"] == "function_call_output" and page["first_id"] == page["data"][0]["id"]


@pytest.mark.asyncio
async def test_a_streamed_answer_is_kept_before_its_end_is_told() -> None:
    async with running() as live:
        response = assembled(await streamed(live))
        assert response["store"] is True
        status, kept = await live.get(f"{PATH}/{response['id']}")
        assert status == 200 and kept == response
        status, gone, _ = await live.ask("DELETE", f"{PATH}/{response['id']}")
        assert status == 200 and gone == {"id": response["id"], "object": "response", "deleted": True}
        assert (await live.get(f"{PATH}/{response['id']}"))[0] == 404


@pytest.mark.asyncio
async def test_what_is_not_to_be_kept_is_not() -> None:
    async with running() as live:
        reply = await ask(live, store=False)
        assert reply["store"] is False and (await live.get(f"{PATH}/{reply['id']}"))[0] == 404
    async with running(responses_store=0) as live:
        reply = await ask(live, store=True)
        assert reply["store"] is False and (await live.get(f"{PATH}/{reply['id']}"))[0] == 404
        status, refused = await live.post(PATH, {"input": "x", "previous_response_id": reply["id"]})
        assert status == 400 and refused["error"]["param"] == "previous_response_id" and "--responses-store" in refused["error"]["message"]
    async with running(responses_store=1) as live:
        first, second = await ask(live), await ask(live)
        assert (await live.get(f"{PATH}/{first['id']}"))[0] == 404 and (await live.get(f"{PATH}/{second['id']}"))[0] == 200


@pytest.mark.asyncio
async def test_others_find_nothing(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("k1 ann\nk2 ann\nk3 bob\n")
    file.chmod(0o600)
    async with running(api_key_file=str(file)) as live:

        async def at(method: str, path: str, key: str, body: Any = None) -> tuple[int, Any]:
            status, reply, _ = await live.ask(method, path, data=json.dumps(body) if body else None, headers={"X-Api-Key": key})
            return status, reply

        _, reply = await at("POST", PATH, "k1", {"input": "Hi"})
        where, item = f"{PATH}/{reply['id']}", reply["output"][0]["id"]
        for method, path, body in (
            ("GET", where, None),
            ("GET", where + "/input_items", None),
            ("DELETE", where, None),
            ("POST", PATH, {"input": "x", "previous_response_id": reply["id"]}),
            ("POST", PATH, {"input": [{"type": "item_reference", "id": item}]}),
        ):
            status, refused = await at(method, path, "k3", body)
            assert status == 404 and refused["error"]["type"] == "not_found_error", (method, path)
        assert (await at("GET", where, "k2"))[0] == 200, "keys of one name are one account"
        assert (await at("DELETE", where, "k2"))[0] == 200


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
async def test_counting_tokens() -> None:
    async with running() as live:
        status, reply = await live.post(PATH + "/input_tokens", {"input": "Hi", "tools": [WEATHER]})
        assert status == 200 and reply == {"object": "response.input_tokens", "input_tokens": len("<user>Hi<assistant>") + 1}
        assert live.renderer.calls[-1]["tools"] and not live.runner.requests


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


@pytest.mark.parametrize(
    ("path", "status", "param"),
    [
        ("/resp_none", 404, "id"),
        ("/resp_none/input_items", 404, "id"),
        ("/ID/input_items?limit=0", 400, "limit"),
        ("/ID/input_items?limit=x", 400, "limit"),
        ("/ID/input_items?limit=" + "9" * 5000, 400, "limit"),
        ("/ID/input_items?order=up", 400, "order"),
        ("/ID/input_items?after=none", 400, "after"),
        ("/ID?stream=true", 400, "stream"),
    ],
)
@pytest.mark.asyncio
async def test_wrong_questions_about_what_is_kept(path: str, status: int, param: str) -> None:
    async with running() as live:
        reply = await ask(live)
        found, refused = await live.get(PATH + path.replace("ID", reply["id"]))
        assert found == status and refused["error"]["param"] == param
