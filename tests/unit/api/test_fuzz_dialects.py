"""No JSON that a client may send to /v1/messages or /v1/responses makes a 5xx, or costs more than its length."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.api.anthropic.content import Block, WireMessage
from server.api.anthropic.content import to_messages as anthropic_messages
from server.api.anthropic.messages_wire import MessagesBody
from server.api.openai.responses_items import Item
from server.api.openai.responses_items import to_messages as responses_messages
from server.api.openai.responses_wire import ResponsesBody
from tests.unit.http.live import Live, running

_KINDS = (
    "text thinking redacted_thinking tool_use tool_result document search_result tool_reference image message reasoning function_call "
    "function_call_output custom_tool_call custom_tool_call_output item_reference web_search_call input_text output_text refusal "
    "reasoning_text summary_text content base64 function custom auto any tool none required enabled disabled json_schema json_object"
).split()
_WORDS = ["user", "assistant", "system", "developer", "x", "", "auto", "none", "required", "\ud800", "\u2028", "{}", '{"a": 1', *_KINDS]
_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(-2, 5), st.floats(), st.text(max_size=5), st.sampled_from(_WORDS)
)
_MEMBERS = sorted({*Block.__struct_fields__, *Item.__struct_fields__, "parameters", "input_schema", "schema", "format", "effort", "mode"})
_JSON = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(_MEMBERS), inner, max_size=4)
        | st.builds(
            lambda kind, members: {**members, "type": kind}, st.sampled_from(_KINDS), st.dictionaries(st.sampled_from(_MEMBERS), inner)
        )
    ),
    max_leaves=10,
)
_TURN = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": _JSON})
_NAMES = sorted({*MessagesBody.__struct_encode_fields__, *ResponsesBody.__struct_encode_fields__} - {"stream"})
_SIMPLE = st.dictionaries(st.sampled_from(_NAMES), _JSON, max_size=3)
_CONVERSATIONS = st.fixed_dictionaries(
    {
        "messages": st.lists(_TURN, min_size=1, max_size=3),
        "input": st.lists(_TURN | _JSON, max_size=3) | st.just("x"),
    }
)
_PATHS = ("/v1/messages", "/v1/responses", "/v1/messages/count_tokens", "/v1/responses/input_tokens")


async def _try(live: Live, path: str, data: bytes) -> int:
    status, reply, _ = await live.ask("POST", path, data=data)
    assert status == 200 or 400 <= status < 500, (path, data, reply)
    if status != 200:
        assert reply["error"]["message"] and (reply.get("type") == "error") == path.startswith("/v1/messages")
    return status


@pytest.mark.parametrize("members", [_SIMPLE, _CONVERSATIONS])
@pytest.mark.asyncio
async def test_members_of_any_value(members: st.SearchStrategy[dict[str, Any]]) -> None:
    async with running() as live:
        cases: list[bytes] = []

        @settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(members)
        def gather(found: dict[str, Any]) -> None:
            usable = {"max_tokens": 5, "messages": [{"role": "user", "content": "x"}], "input": "x"}
            cases.append(json.dumps({**usable, **found, "stream": len(cases) % 3 == 0}).encode("utf-8", "surrogatepass"))

        gather()
        found = [await _try(live, _PATHS[i % len(_PATHS)], data) for i, data in enumerate(cases)]
        assert 200 in found and 400 in found


USER = {"role": "user", "content": "x" * 200}
THOUGHT = {"type": "thinking", "thinking": "x" * 200}
REASONING = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x" * 200}]}


@pytest.mark.parametrize(
    ("message", "items"),
    [
        (USER, USER),
        ({"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "x" * 200}]}, REASONING),
        ({"role": "assistant", "content": [THOUGHT] * 10}, {"role": "assistant", "content": "x" * 200}),
    ],
)
def test_many_small_pieces_cost_no_more_than_few_large_ones(message: dict[str, Any], items: dict[str, Any]) -> None:
    n = 30_000
    messages = msgspec.convert([message] * n, list[WireMessage])
    given_items = msgspec.convert([*[items] * n, USER], list[Item])
    start = time.process_time()
    anthropic_messages(None, messages)
    responses_messages(None, given_items)
    assert time.process_time() - start < 2, "joined one by one, these take ten times as long"
