"""No JSON that a client may send makes a 5xx: what is accepted runs, the rest is a 4xx in the one shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.api.native.completion_wire import NativeBody
from server.api.openai.chat_wire import ChatBody
from server.api.openai.completions_wire import CompletionBody
from tests.unit.http.live import Live, running

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-2, 5),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["user", "assistant", "text", "\ud800", "\x00", "none"]),
)
_JSON = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "5", "include_usage", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
_NAMES = sorted(
    {*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__, *NativeBody.__struct_fields__, "content", "tokens", "unknown"}
)
_MEMBERS = st.dictionaries(st.sampled_from(_NAMES), _JSON, max_size=6)
_USABLE = st.fixed_dictionaries(
    {}, optional={"messages": st.just([{"role": "user", "content": "x"}]), "prompt": st.just("x"), "n": st.just(2)}
)
_PATHS = ("/v1/chat/completions", "/v1/completions", "/completion", "/tokenize", "/detokenize", "/apply-template")


async def _try(live: Live, path: str, data: bytes) -> None:
    status, reply, _ = await live.ask("POST", path, data=data)
    if status == 200:
        assert b'"error"' not in (reply if isinstance(reply, bytes) else b"")
    else:
        assert 400 <= status < 500, (path, data, reply)
        assert reply["error"]["message"] and reply["error"]["type"]


@pytest.mark.asyncio
async def test_members_of_any_value() -> None:
    async with running() as live:
        cases: list[bytes] = []

        @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(_USABLE, _MEMBERS)
        def gather(usable: dict[str, Any], members: dict[str, Any]) -> None:
            cases.append(json.dumps({**usable, **members}).encode("utf-8", "surrogatepass"))

        gather()
        for i, data in enumerate(cases):
            await _try(live, _PATHS[i % len(_PATHS)], data)
        assert any(live.runner.requests)


@pytest.mark.asyncio
async def test_any_bytes() -> None:
    async with running() as live:
        cases: list[bytes] = []

        @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(st.binary(max_size=40) | st.text('{}[]":,\\u0e1-+.ntfabrs ', max_size=40).map(str.encode))
        def gather(data: bytes) -> None:
            cases.append(data)

        gather()
        for i, data in enumerate(cases):
            await _try(live, _PATHS[i % len(_PATHS)], data)
