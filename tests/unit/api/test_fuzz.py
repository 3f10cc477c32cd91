"""No JSON that a client may send makes a 5xx: what is accepted runs, the rest is a 4xx in the one shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.api.native.completion_wire import NativeBody
from server.api.openai.chat_wire import ChatBody
from server.api.openai.completions_wire import CompletionBody
from server.protocol import Submit, decode_command
from tests.unit.http.live import Live, running

_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-2, 5),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["user", "assistant", "text", "\ud800", "\x00", "none", "batch", "x" * 257]),
)
_JSON = st.recursive(
    _SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "5", "include_usage", "include_queue", "n_max", "prompt_string", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
_NAMES = sorted(
    {
        *ChatBody.__struct_encode_fields__,
        *CompletionBody.__struct_encode_fields__,
        *NativeBody.__struct_encode_fields__,
        "content",
        "tokens",
        "unknown",
    }
)
_SCHEDULING = [
    "priority", "timeout", "session", "session_id", "user", "safety_identifier", "prompt_cache_key", "cache_salt", "speculative.n_max",
    "speculative", "n_keep", "return_queue", "stream_options",
]  # fmt: skip
_MEMBERS = st.dictionaries(st.sampled_from(_NAMES), _JSON, max_size=6)
_USABLE = st.fixed_dictionaries(
    {}, optional={"messages": st.just([{"role": "user", "content": "x"}]), "prompt": st.just("x"), "n": st.just(2)}
)
_PLAUSIBLE = st.sampled_from(["batch", "é" * 256, 5, 0.5, {"n_max": 4}, {"include_queue": True}, True])
_HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "X-Priority": st.sampled_from(["batch", "interactive", "5", "\udcff"]),
        "X-Request-Timeout": st.sampled_from(["1", "1e3", "-0", "nan", "1_0", "\udcff"]),
        "X-Session-Id": st.text(st.characters(codec="latin-1", exclude_categories=["Cc"])) | st.sampled_from(["\udcff", "x" * 257]),
    },
)
_PATHS = ("/v1/chat/completions", "/v1/completions", "/completion", "/tokenize", "/detokenize", "/apply-template")


async def _try(live: Live, path: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
    status, reply, _ = await live.ask("POST", path, data=data, headers=headers)
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
        _check_wire(live)


@pytest.mark.asyncio
async def test_scheduling_members_and_headers_of_any_value() -> None:
    async with running() as live:
        cases: list[tuple[bytes, dict[str, str]]] = []

        @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(st.dictionaries(st.sampled_from(_SCHEDULING), _PLAUSIBLE | _JSON, max_size=3), _HEADERS)
        def gather(members: dict[str, Any], headers: dict[str, str]) -> None:
            data = json.dumps({"prompt": "x", "stream": len(cases) % 2 == 0, **members}).encode("utf-8", "surrogatepass")
            cases.append((data, headers))

        gather()
        for i, (data, headers) in enumerate(cases):
            await _try(live, ("/v1/completions", "/completion")[i % 2], data, headers)
        assert live.runner.requests
        _check_wire(live)


def _check_wire(live: Live) -> None:
    """Whatever is accepted can be said to the runner."""
    for request in live.runner.requests:
        assert decode_command(msgspec.msgpack.encode(Submit(1, request))) == Submit(1, request)


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
