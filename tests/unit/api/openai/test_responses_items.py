"""Items become messages: an answer's items one message again, texts joined, neighbours of one role one turn; nothing lost unsaid."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from server.api.opaque import sealed
from server.api.openai.responses_items import Item, kind_of, listed, stored_form, to_messages
from server.errors import ClientError, Unsupported


def translate(*items: dict[str, Any], instructions: str | None = None) -> list[dict[str, Any]]:
    messages, notices = to_messages(instructions, msgspec.convert(list(items), list[Item]))
    assert not notices
    return messages


def said(role: str, content: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": content}


CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": "sky"}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "blue"}
TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sky"}'}}


def test_text() -> None:
    assert to_messages(None, listed("Hi")) == ([{"role": "user", "content": "Hi"}], [])
    assert translate({"role": "user", "content": "Hi"}) == [{"role": "user", "content": "Hi"}]
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert translate(said("user", parts)) == [{"role": "user", "content": "a\nb"}]
    refusal = [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}, {"type": "refusal", "refusal": "no"}]
    assert translate(said("user", "x"), said("assistant", refusal))[1] == {"role": "assistant", "content": "a\nno"}


def test_instructions_and_neighbours() -> None:
    found = translate(said("developer", "b"), said("user", "c"), said("user", "d"), instructions="a")
    assert found == [{"role": "system", "content": "a\n\nb"}, {"role": "user", "content": "c\n\nd"}]
    assert translate(said("developer", "b"), said("user", "c"))[0]["role"] == "developer"


def test_an_answers_items_are_one_message() -> None:
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    second = {**CALL, "call_id": "c2", "arguments": ""}
    found = translate(said("user", "Sky?"), thought, said("assistant", "I look."), CALL, second, OUTPUT, {**OUTPUT, "call_id": "c2"})
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "tool"]
    assert found[1]["content"] == "I look." and found[1]["reasoning_content"] == "Hm." and found[1]["tool_calls"][0] == TOOL_CALL
    assert found[1]["tool_calls"][1]["function"]["arguments"] == "{}"
    assert found[2] == {"role": "tool", "tool_call_id": "c1", "name": "look", "content": "blue"}
    found = translate(said("user", "Sky?"), CALL, OUTPUT, {**CALL, "call_id": "c2"}, {**OUTPUT, "call_id": "c2"})
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "assistant", "tool"]


@pytest.mark.parametrize(
    "thought",
    [
        {"content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"summary": [{"type": "summary_text", "text": "Hm."}]},
        {"summary": [], "encrypted_content": sealed("Hm.")},
        {"content": [{"type": "reasoning_text", "text": "Hm."}], "summary": [{"type": "summary_text", "text": "Short."}]},
    ],
)
def test_reasoning_in_every_form(thought: dict[str, Any]) -> None:
    found = translate(said("user", "x"), {"type": "reasoning", "id": "rs_1", **thought}, said("assistant", "Yes."), said("user", "y"))
    assert found[1] == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}


def test_reasoning_that_nobody_here_can_read_or_that_led_to_nothing() -> None:
    foreign = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAAAB"}
    assert translate(said("user", "x"), foreign, said("assistant", "Yes."))[1] == {"role": "assistant", "content": "Yes."}
    lonely = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}
    assert translate(said("user", "x"), lonely, said("user", "y")) == [{"role": "user", "content": "x\n\ny"}]


def test_outputs_as_parts_and_calls_of_free_form() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    assert translate(said("user", "x"), CALL, {**OUTPUT, "output": parts})[-1]["content"] == "a\nb"
    custom = {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": '"+x"'}
    found = translate(said("user", "x"), custom, {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"})
    assert found[1]["tool_calls"][0]["function"]["arguments"] == '{"input":"\\"+x\\""}' and found[2]["name"] == "patch"


def test_traces_of_tools_that_others_run_are_left_out_and_that_is_said() -> None:
    items = msgspec.convert([said("user", "x"), {"type": "web_search_call", "id": "ws_1", "status": "completed"}], list[Item])
    messages, notices = to_messages(None, items)
    assert len(messages) == 1 and notices == ["input[1]: an item of type 'web_search_call' was left out"]


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([], "input"),
        ([{"type": "message", "content": "x"}], "input[0].role"),
        ([said("tool", "x")], "input[0].role"),
        ([said("user", None)], "input[0].content"),
        ([said("user", [{"type": "input_text"}])], "input[0].content[0].text"),
        ([said("user", "x"), {**CALL, "call_id": None}], "input[1].call_id"),
        ([said("user", "x"), {**CALL, "name": ""}], "input[1].name"),
        ([said("user", "x"), {**CALL, "arguments": None}], "input[1].arguments"),
        ([said("user", "x"), CALL, {**OUTPUT, "output": None}], "input[2].output"),
        ([said("user", "x"), CALL, {**OUTPUT, "call_id": None}], "input[2].call_id"),
        ([said("user", "x"), CALL], "input"),
    ],
)
def test_what_is_wrong_is_named(items: list[Any], param: str) -> None:
    with pytest.raises(ClientError) as refused:
        translate(*items)
    assert refused.value.param == param and param in refused.value.message


@pytest.mark.parametrize(
    ("item", "param"),
    [
        (said("user", [{"type": "input_image", "image_url": "x"}]), "input[0].content[0].type"),
        (said("user", [{"type": "input_file", "file_id": "x"}]), "input[0].content[0].type"),
        ({**OUTPUT, "output": [{"type": "input_image"}]}, "input[0].output[0].type"),
        ({"type": "compaction", "encrypted_content": "x"}, "input[0].type"),
    ],
)
def test_what_is_not_done_here_is_named(item: dict[str, Any], param: str) -> None:
    with pytest.raises(Unsupported) as refused:
        translate(item)
    assert refused.value.param == param and param in refused.value.message


def test_items_of_earlier_responses_do_not_shift_the_numbers() -> None:
    items = msgspec.convert([said("user", "x"), said("assistant", "y"), said("tool", "z")], list[Item])
    with pytest.raises(ClientError) as refused:
        to_messages(None, items, 2)
    assert refused.value.param == "input[0].role"


def test_the_kept_form_is_complete_and_says_the_same() -> None:
    items = msgspec.convert([{"role": "user", "content": "Hi"}, said("assistant", "Yes."), CALL, OUTPUT], list[Item])
    kept = [stored_form(item) for item in items]
    assert all(item["id"] and item["status"] == "completed" for item in kept) and len({item["id"] for item in kept}) == 4
    assert kept[0]["content"] == [{"type": "input_text", "text": "Hi"}] and kept[1]["content"][0]["type"] == "output_text"
    assert to_messages(None, msgspec.convert(kept, list[Item])) == to_messages(None, items)
    assert kind_of(Item(id="msg_1")) == "item_reference" and kind_of(Item(id="msg_1", role="user")) == "message"
