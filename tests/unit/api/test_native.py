"""llama-server's own routes in its own shapes: /completion, /tokenize, /detokenize, /apply-template."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.http.fakes import says
from tests.unit.http.live import events, running


@pytest.mark.asyncio
async def test_completion() -> None:
    async with running() as live:
        live.runner.script = says("a\n", "b", stop_type="word", word="STOP")
        for path in ("/completion", "/completions"):
            status, reply = await live.post(path, {"prompt": "Once", "n_predict": 5, "temperature": 0.5, "return_tokens": True})
            assert status == 200
    settings = reply.pop("generation_settings")
    timings = reply.pop("timings")
    assert reply == {
        "index": 0, "content": "a\nb", "tokens": [0, 1], "id_slot": 3, "stop": True, "model": "tiny", "tokens_predicted": 2,
        "tokens_evaluated": 5, "prompt": "Once", "has_new_line": True, "truncated": False, "stop_type": "word", "stopping_word": "STOP",
        "tokens_cached": 2,
    }  # fmt: skip
    assert settings["temperature"] == 0.5 and settings["n_predict"] == settings["max_tokens"] == 5 and settings["top_k"] == 40
    assert {"cache_n", "prompt_n", "prompt_ms", "predicted_n", "predicted_ms", "predicted_per_second"} <= timings.keys()


@pytest.mark.asyncio
async def test_stream_ends_without_done_and_equals_the_whole() -> None:
    async with running() as live:
        _, content = await live.post("/completion", {"prompt": "Once", "stream": True, "return_tokens": True})
    found = events(content)
    assert "".join(chunk["content"] for chunk in found) == "Hello"
    assert [chunk["stop"] for chunk in found] == [False, False, True]
    assert [chunk["tokens_predicted"] for chunk in found] == [1, 2, 2] and found[0]["id_slot"] == 3 and found[1]["tokens"] == [1]
    assert found[-1]["stop_type"] == "eos" and found[-1]["generation_settings"]["stream"] is True and found[-1]["prompt"] == "Once"


@pytest.mark.asyncio
async def test_several_prompts_are_a_list() -> None:
    async with running() as live:
        _, reply = await live.post("/completion", {"prompt": ["a", [104, 105]]})
        assert [(r["index"], r["prompt"], r["content"]) for r in reply] == [(0, "a", "Hello"), (1, "hi", "Hello")]
        _, reply = await live.post("/completion", {"prompt": ["a"]})
        assert isinstance(reply, list)
        _, reply = await live.post("/completion", {"prompt": "a", "n_cmpl": 2})
        assert len(reply) == 2
        _, reply = await live.post("/completion", {"prompt": {"prompt_string": "a"}, "n_keep": -1, "n_discard": 0})
        assert reply["prompt"] == "a"


@pytest.mark.asyncio
async def test_probabilities_and_chosen_fields() -> None:
    async with running() as live:
        _, reply = await live.post("/completion", {"prompt": "a", "n_probs": 2})
        first = reply["completion_probabilities"][0]
        assert first["token"] == "Hel" and first["id"] == 0 and len(first["top_logprobs"]) == 2
        _, content = await live.post("/completion", {"prompt": "a", "n_probs": 1, "stream": True})
        assert [c["completion_probabilities"][0]["token"] for c in events(content)[:-1]] == ["Hel", "lo"]
        _, reply = await live.post(
            "/completion", {"prompt": "a", "response_fields": ["content", "generation_settings/top_k", "nothing/here"]}
        )
        assert reply == {"content": "Hello", "top_k": 40}


@pytest.mark.asyncio
async def test_logit_bias_forms() -> None:
    async with running() as live:
        for given, expected in (
            ({"5": 2}, ((5, 2.0),)),
            ([[5, -1.5], [6, False]], ((5, -1.5), (6, float("-inf")))),
            ({"AB": 1}, ((65, 1.0), (66, 1.0))),
            ([["A", False], [7, 1]], ((7, 1.0), (65, float("-inf")))),
            ({}, ()),
            ([], ()),
        ):
            status, reply = await live.post("/completion", {"prompt": "x", "logit_bias": given})
            assert status == 200, reply
            assert live.runner.requests[-1].sampling.logit_bias == expected
        assert (await live.post("/completion", {"prompt": "x", "logit_bias": [[6, False]]}))[1]["generation_settings"]["logit_bias"] == [
            [6, False]
        ]
        for wrong in ({"1000": 1}, {"-1": 1}, {"5": True}, {"5": "x"}, [[5]], [5], {"5": 1e9}, "x", {"1" + "0" * 30: 1e7}):
            status, reply = await live.post("/completion", {"prompt": "x", "logit_bias": wrong})
            assert status == 400 and reply["error"]["param"].startswith("logit_bias"), (wrong, reply)


@pytest.mark.asyncio
async def test_tokenize() -> None:
    async with running() as live:
        assert (await live.post("/tokenize", {"content": "hé"})) == (200, {"tokens": [104, 0xC3, 0xA9]})
        assert (await live.post("/tokenize", {"content": [7, "h"], "add_special": True})) == (200, {"tokens": [1, 7, 104]})
        assert (await live.post("/tokenize", {"content": ""})) == (200, {"tokens": []})
        _, reply = await live.post("/tokenize", {"content": "hé", "with_pieces": True})
        assert reply["tokens"] == [{"id": 104, "piece": "h"}, {"id": 0xC3, "piece": [0xC3]}, {"id": 0xA9, "piece": [0xA9]}]


@pytest.mark.asyncio
async def test_detokenize() -> None:
    async with running() as live:
        assert (await live.post("/detokenize", {"tokens": [104, 0xC3, 0xA9]})) == (200, {"content": "hé"})
        assert (await live.post("/detokenize", {"tokens": []})) == (200, {"content": ""})


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "content"),
        ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": [-1]}, "content[0]"),
        ("/tokenize", {"content": "x", "with_pieces": "yes"}, "with_pieces"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": ["x"]}, "tokens[0]"),
        ("/detokenize", {"tokens": [2**70]}, "tokens[0]"),
        ("/apply-template", {}, "messages"),
        ("/completion", {"prompt": "x", "id_slot": 0}, "id_slot"),
        ("/completion", {"prompt": "x", "n_probs": 101}, "n_probs"),
        ("/completion", {"prompt": "x", "n_predict": -2}, "n_predict"),
        ("/completion", {"prompt": "x", "n_keep": "all"}, "n_keep"),
        ("/completion", {"prompt": "x", "n_keep": -2}, "n_keep"),
        ("/completion", {"prompt": "x", "n_discard": 2**40}, "n_discard"),
        ("/completion", {"prompt": "x", "tools": [{}]}, "tools"),
        ("/completion", {"prompt": "x", "response_format": {"type": "json_object"}}, "response_format"),
        ("/completion", {"prompt": {"prompt_string": "x", "multimodal_data": ["aGk="]}}, "prompt.multimodal_data"),
        ("/completion", {"prompt": ["x", {"prompt_string": "x", "multimodal_data": [""]}]}, "prompt[1].multimodal_data"),
    ],
)
@pytest.mark.asyncio
async def test_wrong_members_are_named(path: str, body: dict[str, Any], param: str) -> None:
    async with running() as live:
        status, reply = await live.post(path, body)
        assert status == 400 and reply["error"]["param"] == param, reply


@pytest.mark.asyncio
async def test_apply_template() -> None:
    async with running() as live:
        messages = [{"role": "user", "content": "Hi"}]
        assert (await live.post("/apply-template", {"messages": messages})) == (200, {"prompt": "<user>Hi<assistant>"})
        assert not live.runner.requests
