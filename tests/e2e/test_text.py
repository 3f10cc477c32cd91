"""What is streamed is what a whole answer says, to the byte, whatever the characters and wherever the stop string."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.harness import Server

EMOJI = "👩‍👩‍👧‍👦 🇩🇪 漢字かな 😀é"


def _complete(server: Server, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    status, reply = server.post("/completion", body)
    assert status == 200, reply
    return reply["content"], reply


def _streamed(server: Server, body: dict[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    status, content = server.request("POST", "/completion", {**body, "stream": True})
    assert status == 200, content
    text = content.decode("utf-8")  # strict: every line must be valid UTF-8
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ") and line != "data: [DONE]"]
    return "".join(chunk["content"] for chunk in chunks), chunks


def _repeating(sample: str) -> dict[str, Any]:
    return {"prompt": (sample + "\n") * 12, "n_predict": 120, "temperature": 0, "ignore_eos": True}


@pytest.mark.parametrize("sample", [EMOJI, "日本語のテキスト。", "🙂🙃🙂🙃", "naïve café – “quoted”"])
def test_stream_equals_whole_for_multibyte_text(server: Server, sample: str) -> None:
    whole, _ = _complete(server, _repeating(sample))
    streamed, chunks = _streamed(server, _repeating(sample))
    assert streamed == whole
    assert any(ord(c) > 127 for c in whole), "the model did not repeat the sample, the test would prove nothing"
    assert len(chunks) > 5
    assert "\ufffd" not in whole[:60]
    for chunk in chunks[:-2]:
        chunk["content"].encode("utf-8")


def test_stop_string_at_every_position(deterministic_server: Server) -> None:
    body = {"prompt": "The quick brown fox jumps over the lazy dog. " * 6, "n_predict": 24, "temperature": 0, "ignore_eos": True}
    whole, _ = _complete(deterministic_server, body)
    assert len(whole) > 30
    for start in range(0, 24):
        for length in (1, 3, 7):
            stop = whole[start : start + length]
            expected = whole[: whole.index(stop)]
            text, reply = _complete(deterministic_server, {**body, "stop": [stop]})
            assert text == expected, (stop, text)
            assert reply["stop_type"] == "word" and reply["stopping_word"] == stop
            if length == 3 and start % 4 == 0:
                streamed, _ = _streamed(deterministic_server, {**body, "stop": [stop]})
                assert streamed == expected


def test_chat_stream_shape(server: Server) -> None:
    body = {
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 12,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    status, content = server.request("POST", "/v1/chat/completions", body)
    assert status == 200
    lines = [line for line in content.decode().split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    chunks = [json.loads(line[6:]) for line in lines[:-1]]
    assert len({chunk["id"] for chunk in chunks}) == 1
    roles = [choice["delta"].get("role") for chunk in chunks for choice in chunk["choices"]]
    assert roles[0] == "assistant" and roles.count("assistant") == 1
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] > 0
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert reasons[-1] in {"stop", "length"} and not any(reasons[:-1])
    streamed = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    status, reply = server.post("/v1/chat/completions", {**body, "stream": False, "stream_options": None})
    assert reply["choices"][0]["message"]["content"] == streamed


def test_logprobs_line_up_with_the_text(server: Server) -> None:
    status, reply = server.post(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, "temperature": 0, "logprobs": True, "top_logprobs": 3},
    )
    assert status == 200, reply
    entries = reply["choices"][0]["logprobs"]["content"]
    content = reply["choices"][0]["message"]["content"]
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode("utf-8", "replace").startswith(content)
    for entry in entries:
        assert entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 3
        values = [top["logprob"] for top in entry["top_logprobs"]]
        assert values == sorted(values, reverse=True)
        assert abs(values[0] - entry["logprob"]) < 1e-4, "greedy takes the most likely token"


def test_tokenize_round_trip(server: Server) -> None:
    status, reply = server.post("/tokenize", {"content": EMOJI})
    assert status == 200 and reply["tokens"]
    status, back = server.post("/detokenize", {"tokens": reply["tokens"]})
    assert status == 200 and back["content"] == EMOJI
    status, pieces = server.post("/tokenize", {"content": EMOJI, "with_pieces": True})
    joined = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces["tokens"])
    assert joined.decode() == EMOJI
