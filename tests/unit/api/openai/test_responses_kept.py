"""/v1/responses, what is kept: answers are built upon by id or by items, are their owner's alone, and can be deleted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.api.openai.reading import PATH, WEATHER, ask, assembled, streamed
from tests.unit.api.partwise import partwise
from tests.unit.http.fakes import says
from tests.unit.http.live import running


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
