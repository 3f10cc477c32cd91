"""/v1/completions: every form of a prompt, echo, log-probabilities in their old shape; streamed and whole say the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.http.fakes import says
from tests.unit.http.live import events, running

PATH = "/v1/completions"


@pytest.mark.asyncio
async def test_whole_answer() -> None:
    async with running() as live:
        status, reply = await live.post(PATH, {"prompt": "Once", "max_tokens": 4})
        request = live.runner.requests[0]
    assert status == 200 and reply["object"] == "text_completion" and reply["id"].startswith("cmpl-")
    assert reply["choices"] == [{"index": 0, "text": "Hello", "finish_reason": "stop", "logprobs": None}]
    assert reply["usage"]["total_tokens"] == 7 and reply["timings"]["cache_n"] == 2
    assert (request.prompt, request.max_tokens, request.add_special) == ("Once", 4, True)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ["a"]),
        ("", [""]),
        ([5, 6], [[5, 6]]),
        ([5, "x"], [[5, "x"]]),
        (["a", "b"], ["a", "b"]),
        ([[5], [6, 7]], [[5], [6, 7]]),
        ([[5], "b"], [[5], "b"]),
        ({"prompt_string": "a"}, ["a"]),
        ([{"prompt_string": "a", "multimodal_data": []}, "b", [5]], ["a", "b", [5]]),
    ],
)
@pytest.mark.asyncio
async def test_forms_of_a_prompt(prompt: Any, expected: list[Any]) -> None:
    async with running() as live:
        status, reply = await live.post(PATH, {"prompt": prompt})
        assert status == 200, reply
        assert [r.prompt for r in live.runner.requests] == expected
    assert [c["index"] for c in reply["choices"]] == list(range(len(expected)))
    assert reply["usage"]["prompt_tokens"] == 5 * len(expected)


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        [],
        [[]],
        [-1],
        [1000],
        [2**31],
        [2**70],
        ["x", -3],
        [5, [6]],
        [[[5]]],
        5,
        {},
        {"prompt_string": 5},
        [5, {"prompt_string": "x"}],
        [None],
        [True],
        [1.5],
    ],
)
@pytest.mark.asyncio
async def test_prompts_that_are_none(prompt: Any) -> None:
    async with running() as live:
        for path in (PATH, "/completion"):
            status, reply = await live.post(path, {"prompt": prompt})
            assert status == 400 and reply["error"]["param"].startswith("prompt"), reply
        assert not live.runner.requests


@pytest.mark.asyncio
async def test_prompts_times_choices() -> None:
    async with running() as live:
        live.runner.script = lambda request: says(f"{request.prompt}{request.sampling.seed}")(request)
        _, reply = await live.post(PATH, {"prompt": ["a", "b"], "n": 2, "seed": 1})
        assert [c["text"] for c in reply["choices"]] == ["a1", "a2", "b1", "b2"]
        assert reply["usage"]["prompt_tokens"] == 10 and reply["usage"]["completion_tokens"] == 4
        status, reply = await live.post(PATH, {"prompt": ["a"] * 9, "n": 128})
        assert status == 400 and reply["error"]["param"] == "prompt"


@pytest.mark.asyncio
async def test_stream_equals_whole() -> None:
    async with running() as live:
        body = {"prompt": ["ab", [104, 105]], "echo": True}
        _, whole = await live.post(PATH, body)
        assert [c["text"] for c in whole["choices"]] == ["abHello", "hiHello"]
        _, content = await live.post(PATH, {**body, "stream": True, "stream_options": {"include_usage": True}})
    found = events(content)
    assert found.pop() == "[DONE]"
    assert found[-1]["choices"] == [] and found.pop()["usage"] == whole["usage"]
    texts = ["", ""]
    for chunk in found:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == [c["text"] for c in whole["choices"]]
    assert len({chunk["id"] for chunk in found}) == 1


@pytest.mark.asyncio
async def test_logprobs_in_the_old_shape() -> None:
    async with running() as live:
        live.runner.script = says("ab", "é", "c")
        _, reply = await live.post(PATH, {"prompt": "x", "logprobs": 2})
        shown = reply["choices"][0]["logprobs"]
        assert shown["tokens"] == ["ab", "é", "c"] and shown["text_offset"] == [0, 2, 3]
        assert shown["token_logprobs"] == [-0.5] * 3
        assert shown["top_logprobs"][0] == {"ab": -0.5, "bytes:\\xf0\\x9f": -1.5}
        _, content = await live.post(PATH, {"prompt": "x", "logprobs": 2, "stream": True})
        chunks = [c["choices"][0]["logprobs"] for c in events(content)[:-1] if c["choices"][0]["logprobs"]]
        assert [offset for c in chunks for offset in c["text_offset"]] == shown["text_offset"]


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("suffix", "x"),
        ("best_of", 2),
        ("logprobs", 21),
        ("logprobs", -1),
        ("response_format", {"type": "json_object"}),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("functions", [{}]),
    ],
)
@pytest.mark.asyncio
async def test_refused_members(member: str, value: Any) -> None:
    async with running() as live:
        status, reply = await live.post(PATH, {"prompt": "x", member: value})
        assert status == 400 and reply["error"]["param"] == member
        status, _ = await live.post(PATH, {"prompt": "x", "suffix": None, "best_of": 1, "echo": False})
        assert status == 200


@pytest.mark.asyncio
async def test_echo_with_logprobs_is_refused() -> None:
    async with running() as live:
        status, reply = await live.post(PATH, {"prompt": "x", "echo": True, "logprobs": 1})
    assert status == 400 and reply["error"]["param"] == "echo"
