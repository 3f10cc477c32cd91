"""A client's mistake is a 4xx that says what is wrong; the next request works."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.harness import Server

USER = [{"role": "user", "content": "Hi"}]


def _nested(depth: int) -> bytes:
    return b'{"messages": ' + b"[" * depth + b"]" * depth + b"}"


RAW: list[tuple[str, bytes, int]] = [
    ("empty body", b"", 400),
    ("open brace", b"{", 400),
    ("not json", b"hello", 400),
    ("null", b"null", 400),
    ("a list", b"[]", 400),
    ("200-deep", _nested(200), 400),
    ("100,000-deep", _nested(100_000), 400),
    ("invalid UTF-8", b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', 400),
    ("lone surrogate", b'{"messages": [{"role": "user", "content": "\\ud800"}], "max_tokens": 1}', 400),
    ("NaN", b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', 400),
]

FIELDS: list[tuple[str, dict[str, Any], str]] = [
    ("messages missing", {}, "messages"),
    ("messages empty", {"messages": []}, "messages"),
    ("messages a string", {"messages": "hi"}, "messages"),
    ("message a number", {"messages": [1]}, "messages"),
    ("role missing", {"messages": [{"content": "x"}]}, "messages"),
    ("content a number", {"messages": [{"role": "user", "content": 5}]}, "messages"),
    ("temperature a string", {"messages": USER, "temperature": "hot"}, "temperature"),
    ("temperature negative", {"messages": USER, "temperature": -1}, "temperature"),
    ("top_p above one", {"messages": USER, "top_p": 2}, "top_p"),
    ("max_tokens negative", {"messages": USER, "max_tokens": -5}, "max_tokens"),
    ("max_tokens a list", {"messages": USER, "max_tokens": []}, "max_tokens"),
    ("n zero", {"messages": USER, "n": 0}, "n"),
    ("n enormous", {"messages": USER, "n": 10**6}, "n"),
    ("stop a number", {"messages": USER, "stop": 3}, "stop"),
    ("stop too many", {"messages": USER, "stop": ["x"] * 1000}, "stop"),
    ("logit_bias out of range", {"messages": USER, "logit_bias": {"99999999": 1}}, "logit_bias"),
    ("top_logprobs too many", {"messages": USER, "logprobs": True, "top_logprobs": 1000}, "top_logprobs"),
    ("stream a string", {"messages": USER, "stream": "yes"}, "stream"),
    ("seed a string", {"messages": USER, "seed": "x"}, "seed"),
    ("huge integer", {"messages": USER, "max_tokens": 10**30}, "max_tokens"),
    ("tools not done here", {"messages": USER, "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ("json schema not done here", {"messages": USER, "response_format": {"type": "json_object"}}, "response_format"),
]


@pytest.mark.parametrize(("name", "body", "status"), RAW, ids=[case[0] for case in RAW])
def test_broken_bodies(server: Server, name: str, body: bytes, status: int) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/completion", "/tokenize"):
        if name == "lone surrogate" and path != "/v1/chat/completions":
            continue
        answered, reply = server.post(path, raw=body)
        assert answered == status, (path, answered, reply)
        assert reply["error"]["message"] and reply["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(("name", "body", "param"), FIELDS, ids=[case[0] for case in FIELDS])
def test_wrong_fields_are_named(server: Server, name: str, body: dict[str, Any], param: str) -> None:
    status, reply = server.post("/v1/chat/completions", body)
    assert status == 400, reply
    assert param in (reply["error"]["param"] or ""), reply


@pytest.mark.parametrize("tokens", [[-1], [10**9], [2**31], [2**70], ["x", -3], []])
def test_bad_token_prompts(server: Server, tokens: list[Any]) -> None:
    for path, key in (("/completion", "prompt"), ("/v1/completions", "prompt"), ("/detokenize", "tokens")):
        if key == "tokens" and not tokens:
            continue
        status, reply = server.post(path, {key: tokens, "n_predict": 1, "max_tokens": 1})
        assert status == 400, (path, tokens, reply)


def test_a_prompt_of_a_megabyte_is_refused_with_its_numbers(server: Server) -> None:
    status, reply = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 210_000}]})
    assert status == 400
    error = reply["error"]
    assert error["type"] == "exceed_context_size_error"
    assert error["n_prompt_tokens"] > 200_000 and error["n_ctx"] == 2048


def test_a_body_over_the_limit_is_413(server: Server) -> None:
    status, reply = server.post("/v1/chat/completions", raw=b'{"messages": "' + b"x" * (33 * 2**20) + b'"}')
    assert status in (413, 0), reply  # 0: the server may close while the client still sends


def test_unknown_keys_and_nulls_are_fine(server: Server) -> None:
    body = {
        "messages": USER,
        "max_tokens": 2,
        "temperature": None,
        "stop": None,
        "tools": [],
        "user": "me",
        "x_unknown": {"a": [1]},
        "n": None,
    }
    status, reply = server.post("/v1/chat/completions", body)
    assert status == 200, reply


def test_routes(server: Server) -> None:
    status, reply = server.post("/v1/nothing", {})
    assert status == 404 and reply["error"]["type"] == "not_found_error"
    status, content = server.get("/v1/chat/completions")
    assert status == 405
    status, _ = server.post("/health", {})
    assert status == 405


def test_hundred_impossible_requests_then_a_normal_one(server: Server) -> None:
    for _ in range(100):
        status, _ = server.post("/completion", {"prompt": [1] * 5000, "n_predict": 1})
        assert status == 400
    status, _ = server.post("/completion", {"prompt": "ok", "n_predict": 1})
    assert status == 200
