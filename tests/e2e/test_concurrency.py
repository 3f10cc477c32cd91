"""Sixteen at once: all finish, nobody's text depends on the neighbours, nobody hears another's words."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from server.llama.model import load_model
from tests.e2e.clients import TOPICS, chat_all
from tests.e2e.harness import Server
from tests.native import NEAR, TALE, greedy_distances, loaded

GREEDY: dict[str, Any] = {"temperature": 0, "seed": 1}


def _prompts() -> list[str]:
    # Unequal neighbours: from a few words to several hundred tokens.
    return [f"Tell me about {topic}. " + f"Think of {topic} in the rain. " * (i * i // 4) for i, topic in enumerate(TOPICS)]


def _lengths() -> list[dict[str, Any]]:
    return [{**GREEDY, "max_tokens": 8 + 5 * i} for i in range(len(TOPICS))]


def test_sixteen_streams_of_different_lengths_equal_their_solo_runs(deterministic_server: Server) -> None:
    together = chat_all(deterministic_server, _prompts(), _lengths(), together=True)
    alone = chat_all(deterministic_server, _prompts(), _lengths(), together=False)
    assert all(answer.finish_reason in {"stop", "length"} for answer in together)
    assert [answer.text for answer in together] == [answer.text for answer in alone]
    assert [answer.n_completion_tokens for answer in together] == [answer.n_completion_tokens for answer in alone]
    assert len({answer.text for answer in together}) == len(TOPICS)


def _complete_together(server: Server, prompts: list[list[int]], n_predict: int) -> list[list[int]]:
    """Greedy token ids for every prompt, all asked for at the same time."""

    def one(prompt: list[int]) -> list[int]:
        body = {
            "prompt": prompt,
            "n_predict": n_predict,
            "temperature": 0,
            "ignore_eos": True,
            "return_tokens": True,
            "cache_prompt": False,
        }
        status, reply = server.post("/completion", body)
        assert status == 200, reply
        tokens: list[int] = reply["tokens"]
        return tokens

    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(one, prompts))


def test_sixteen_at_once_are_near_greedy_without_the_deterministic_mode(server: Server, smollm2: Path) -> None:
    loaded()
    model = load_model(str(smollm2))
    tale = model.vocab.tokenize(TALE * 10, add_special=False, parse_special=False)
    starts = [model.vocab.tokenize(f"All about {topic}. ", add_special=True, parse_special=False) for topic in TOPICS]
    prompts = [start + tale[: 15 * i] for i, start in enumerate(starts)]
    answers = _complete_together(server, prompts, 24)
    for prompt, tokens in zip(prompts, answers, strict=True):
        assert len(tokens) == 24
        assert max(greedy_distances(model, prompt, tokens)) <= NEAR
    # The check would notice another request's text.
    assert max(greedy_distances(model, prompts[0], answers[-1])) > NEAR
    model.close()


@pytest.mark.timeout(600)
def test_long_prompts_say_the_same_alone_and_together(deterministic_server: Server) -> None:
    """f16 attention takes other paths from 512 cells and from chunks of 64 rows on; the q8_0 cache of this mode has one path."""
    status, reply = deterministic_server.post("/tokenize", {"content": TALE * 80})
    tokens: list[int] = reply["tokens"]
    prompts = [tokens[shift : shift + length] for shift, length in enumerate((1500, 700, 480, 100, 33, 7))]
    together = _complete_together(deterministic_server, prompts, 16)
    alone = [_complete_together(deterministic_server, [prompt], 16)[0] for prompt in prompts]
    assert together == alone


def test_no_answer_holds_another_requests_secret(server: Server) -> None:
    words = [f"{a}{b}" for a in ("zephyr", "quartz", "marble", "tundra") for b in ("fox", "owl", "elk", "carp")]
    prompts = [f"The secret word is {word}. Remember: {word}. What is the secret word? Repeat it three times." for word in words]
    answers = chat_all(server, prompts, [{"temperature": 0.2, "seed": i, "max_tokens": 40} for i in range(16)], together=True)
    for own, answer in zip(words, answers, strict=True):
        foreign = [word for word in words if word != own and word in answer.text.lower()]
        assert not foreign, f"{own!r} heard {foreign}: {answer.text!r}"
    told = sum(word in answer.text.lower() for word, answer in zip(words, answers, strict=True))
    assert told >= 8, "the model repeats too few of its own words for this test to mean anything"


def test_more_requests_than_slots_wait_and_finish(server: Server) -> None:
    prompts = [f"Count from {i} upwards." for i in range(40)]
    answers = chat_all(server, prompts, [{**GREEDY, "max_tokens": 6}] * 40, together=True)
    assert all(answer.n_completion_tokens >= 1 for answer in answers)
    server.wait_idle()


def test_choices_of_one_request_run_side_by_side(server: Server) -> None:
    status, reply = server.post(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Name an animal."}], "n": 3, "max_tokens": 8, "temperature": 1.5, "seed": 7},
    )
    assert status == 200, reply
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2]
    assert reply["usage"]["completion_tokens"] <= 24


def test_second_turn_reuses_the_idle_slots_prefix(server: Server) -> None:
    first = "Here is a story. " + "The wind went over the hill and the tree bent low. " * 20
    turn = [{"role": "user", "content": first}]
    status, reply = server.post("/v1/chat/completions", {"messages": turn, "max_tokens": 8, **GREEDY})
    assert status == 200
    turn += [{"role": "assistant", "content": reply["choices"][0]["message"]["content"]}, {"role": "user", "content": "Go on."}]
    status, reply = server.post("/v1/chat/completions", {"messages": turn, "max_tokens": 8, **GREEDY})
    assert status == 200
    cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= 200, reply["usage"]
    status, reply = server.post("/v1/chat/completions", {"messages": turn, "max_tokens": 8, "cache_prompt": False, **GREEDY})
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
