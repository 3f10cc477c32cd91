"""Messages in Anthropic's form become those that templates know: one text a turn, results behind their calls, nothing lost unsaid."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from server.api.anthropic.content import Block, WireMessage, to_messages
from server.api.opaque import mark, sealed
from server.errors import ClientError, Unsupported


def translate(*messages: dict[str, Any], system: Any = None) -> list[dict[str, Any]]:
    return to_messages(msgspec.convert(system, str | list[Block] | None), msgspec.convert(list(messages), list[WireMessage]))


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def text(words: str, **members: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **members}


CALL = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "sky", "n": [1]}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "blue"}


def test_text_as_string_and_as_blocks() -> None:
    assert translate(user("Hi")) == [{"role": "user", "content": "Hi"}]
    blocks = [text("a", cache_control={"type": "ephemeral"}), text("b", citations=None)]
    assert translate(user(blocks)) == [{"role": "user", "content": "a\nb"}]


def test_the_system_prompt() -> None:
    expected = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert translate(user("Hi"), system="Be brief.") == expected
    assert translate(user("Hi"), system=[text("Be brief.")]) == expected
    assert translate(user("Hi"), system=[text("Be"), text("brief.")])[0]["content"] == "Be\nbrief."
    assert translate(user("Hi"), system=[]) == translate(user("Hi"), system="") == expected[1:]
    assert translate({"role": "system", "content": "Be brief."}, user("Hi")) == expected


def test_the_line_that_changes_with_every_request_is_no_part_of_the_prompt() -> None:
    def of(cch: str) -> list[Any]:
        head = f"x-anthropic-billing-header: cc_version=2.1.37.{cch}; cc_entrypoint=cli; cch={cch};"
        as_blocks = translate(user("Hi"), system=[text(head), text("You are Claude Code.")])
        with_more = translate(user("Hi"), system=[text(f"{head}\nYou are Claude Code.")])
        as_text = translate(user("Hi"), system=f"{head}\n\nYou are Claude Code.")
        assert as_blocks == with_more == as_text
        assert translate(user("Hi"), system=head) == [{"role": "user", "content": "Hi"}]
        return as_blocks

    assert of("1a2b3") == of("fffff") == translate(user("Hi"), system="You are Claude Code.")
    kept = "What is an x-anthropic-billing-header: cch=1;"
    assert translate(user(kept), system=kept)[0]["content"] == kept


def test_neighbours_of_one_role_are_one_turn() -> None:
    found = translate(user("a"), user([text("b")]), assistant("c"), assistant([text("d")]), user("e"))
    assert found == [user("a\nb"), assistant("c\nd"), user("e")]


def test_a_call_and_its_result() -> None:
    found = translate(user("Sky?"), assistant([text("I look."), CALL]), user([RESULT]))
    call = found[1]["tool_calls"][0]
    assert json.loads(call["function"].pop("arguments")) == CALL["input"]
    assert found[1] == {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [{"id": "toolu_1", "type": "function", "function": {"name": "look"}}],
    }
    assert found[2] == {"role": "tool", "tool_call_id": "toolu_1", "name": "look", "content": "blue"}


def test_results_stand_behind_their_calls_and_texts_behind_results() -> None:
    other = {**CALL, "id": "toolu_2", "input": {}}
    second = {"type": "tool_result", "tool_use_id": "toolu_2", "content": [text("a"), text("b")]}
    found = translate(user("x"), assistant([CALL, other]), user([text("Now?"), RESULT, second]))
    assert [m["role"] for m in found] == ["user", "assistant", "tool", "tool", "user"]
    assert found[1]["content"] == "" and len(found[1]["tool_calls"]) == 2 and found[1]["tool_calls"][1]["function"]["arguments"] == "{}"
    assert found[3]["content"] == "a\nb" and found[4]["content"] == "Now?"


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"is_error": True, "content": "no such file"}, "Error: no such file"),
        ({"is_error": True, "content": "<tool_use_error>no</tool_use_error>"}, "<tool_use_error>no</tool_use_error>"),
        ({"is_error": True}, "Error"),
        ({"is_error": False, "content": "x"}, "x"),
        ({"content": None}, ""),
        ({"content": [{"type": "tool_reference", "tool_name": "grep"}]}, "grep"),
    ],
)
def test_results_that_went_wrong_or_say_nothing(result: dict[str, Any], expected: str) -> None:
    found = translate(user("x"), assistant([CALL]), user([{"type": "tool_result", "tool_use_id": "toolu_1", **result}]))
    assert found[-1]["content"] == expected


def test_thoughts_come_back() -> None:
    shown = {"type": "thinking", "thinking": "Hm.", "signature": mark("Hm.")}
    hidden = {"type": "thinking", "thinking": "", "signature": sealed("Hm.")}
    foreign = {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3p"}
    for thought in (shown, hidden, {"type": "redacted_thinking", "data": sealed("Hm.")}):
        found = translate(user("x"), assistant([thought, text("Yes.")]), user("y"))
        assert found[1] == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    assert translate(user("x"), assistant([foreign, text("Yes.")]), user("y"))[1] == assistant("Yes.")


def test_documents_and_search_results_that_are_text() -> None:
    document = {"type": "document", "title": "T", "context": "C", "source": {"type": "text", "media_type": "text/plain", "data": "D"}}
    assert translate(user([document]))[0]["content"] == "T\nC\nD"
    nested = {"type": "document", "source": {"type": "content", "content": [text("a"), text("b")]}}
    assert translate(user([nested]))[0]["content"] == "a\nb"
    found = {"type": "search_result", "title": "T", "source": "https://x", "content": [text("a")]}
    assert translate(user([found]))[0]["content"] == "T\nhttps://x\na"


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ([{"type": "image", "source": {"type": "base64", "data": "x"}}], "messages[0].content[0].type"),
        ([text("a"), {"type": "video"}], "messages[0].content[1].type"),
        ([{"type": "document", "source": {"type": "base64", "data": "x"}}], "messages[0].content[0].source.type"),
        ([{"type": "document", "source": {"type": "url"}}], "messages[0].content[0].source.type"),
        (
            [{"type": "document", "source": {"type": "text", "data": "x"}, "citations": {"enabled": True}}],
            "messages[0].content[0].citations",
        ),
        ([{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]}], "messages[0].content[0].content[0].type"),
        ([{"type": "server_tool_use", "id": "1", "name": "web_search", "input": {}}], "messages[0].content[0].type"),
    ],
)
def test_what_is_not_done_here_is_named(content: Any, param: str) -> None:
    with pytest.raises(Unsupported) as refused:
        translate(user(content))
    assert refused.value.param == param and param in refused.value.message


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "system", "content": []}], "messages"),
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([user("x"), {"role": "assistant", "content": None}], "messages[1].content"),
        ([user([{"type": "text"}])], "messages[0].content[0].text"),
        ([user([{"type": "tool_result", "content": "x"}])], "messages[0].content[0].tool_use_id"),
        ([user([{"type": "document"}])], "messages[0].content[0].source"),
        ([user([{"type": "document", "source": {"type": "text"}}])], "messages[0].content[0].source.data"),
        ([user("x"), assistant([{**CALL, "id": ""}])], "messages[1].content[0].id"),
        ([user("x"), assistant([{**CALL, "name": None}])], "messages[1].content[0].name"),
        ([user("x"), assistant([{**CALL, "input": None}])], "messages[1].content[0].input"),
        ([user("x"), assistant([{**CALL, "input": {"n": 2**70}}])], "messages[1].content[0].input.n"),
        ([user("x"), assistant([CALL])], "messages[1]"),
    ],
)
def test_what_is_wrong_is_named(messages: list[Any], param: str) -> None:
    with pytest.raises(ClientError) as refused:
        translate(*messages)
    assert refused.value.param == param and param in refused.value.message
