"""The promises of the scheduler on the program itself: shared beginnings, classes, keys, deadlines, too little memory, the same words."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Server

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
SYSTEM = "You are a careful assistant. Answer every question in one short sentence, and never speak of anything else. " * 4


def complete(server: Server, prompt: str, n: int, *, headers: dict[str, str] | None = None, **members: Any) -> tuple[int, dict[str, Any]]:
    body = {**GREEDY, "prompt": prompt, "max_tokens": n, **members}
    status, reply = server.post("/v1/completions", body, headers=headers)
    assert isinstance(reply, dict), reply
    return status, reply


def text(answer: tuple[int, dict[str, Any]]) -> str:
    status, reply = answer
    assert status == 200, reply
    return str(reply["choices"][0]["text"])


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    """Four slots with the deterministic cache."""
    with Server("-np", "4", "-c", "4096", "--deterministic") as server:
        yield server


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as executor:
        yield executor


def _crowd(server: Server, pool: ThreadPoolExecutor, n_tokens: int) -> list[Future[tuple[int, dict[str, Any]]]]:
    """A full house of the lowest class, all of them decoding."""
    before = server.metric("capsule_generated_tokens_total")
    jobs = [pool.submit(complete, server, f"Story {i} begins", n_tokens, priority="batch", cache_prompt=False) for i in range(4)]
    server.wait_busy(4)
    while server.metric("capsule_generated_tokens_total") < before + 12:
        time.sleep(0.02)
    return jobs


def test_who_arrives_together_computes_a_common_beginning_once(small: Server, pool: ThreadPoolExecutor) -> None:
    computed = small.metric("capsule_prompt_tokens_total")
    answers = list(pool.map(lambda i: complete(small, f"{SYSTEM}{i}?", 4), range(4)))
    cached = sorted(reply["usage"]["prompt_tokens_details"]["cached_tokens"] for _, reply in answers)
    n_prompt = answers[0][1]["usage"]["prompt_tokens"]
    assert cached[0] == 0 and min(cached[1:]) >= n_prompt - 8
    assert small.metric("capsule_prompt_tokens_total") - computed <= n_prompt + 3 * 8
    _, salted = complete(small, f"{SYSTEM}0?", 4, cache_salt="mine")
    _, private = complete(small, f"{SYSTEM}0?", 4, cache_prompt=False)
    assert [reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in (salted, private)] == [0, 0]
    assert len({text(answer) for answer in (answers[0], (200, salted), (200, private))}) == 1


def test_a_higher_class_takes_a_slot_and_who_made_room_says_the_same_words(small: Server, pool: ThreadPoolExecutor) -> None:
    alone = [text(complete(small, f"Story {i} begins", 120, cache_prompt=False)) for i in range(4)]
    preempted = small.metric("capsule_preemptions_total")
    crowd = _crowd(small, pool, 120)
    urgent = [complete(small, f"Quick {i}", 2, priority="interactive") for i in range(3)]
    assert all(status == 200 for status, _ in urgent)
    assert not all(job.done() for job in crowd), "nobody waited for the crowd"
    assert small.metric("capsule_preemptions_total") > preempted
    answers = [job.result() for job in crowd]
    assert [text(answer) for answer in answers] == alone
    assert any(reply["timings"].get("n_preemptions") for _, reply in answers)
    small.wait_idle()


def test_a_deadline_ends_who_runs_with_what_there_is_and_who_waits_with_an_error(small: Server, pool: ThreadPoolExecutor) -> None:
    crowd = _crowd(small, pool, 300)
    waiting = pool.submit(complete, small, "I wait", 5, priority="batch", timeout=0.3)
    status, reply = waiting.result()
    assert (status, reply["error"]["code"]) == (503, "deadline_exceeded")
    status, reply = complete(small, "I run", 2000, priority="interactive", timeout=1.0)
    assert status == 200 and reply["choices"][0]["finish_reason"] == "length" and reply["choices"][0]["stop_type"] == "timeout"
    assert 0 < reply["usage"]["completion_tokens"] < 900
    for job in crowd:
        job.result()


def test_guesses_do_not_change_the_words(small: Server) -> None:
    prompt = "Repeat: one two three four five six seven eight nine ten. " * 3 + "Repeat: one two"
    guessed = complete(small, prompt, 60)
    members: dict[str, Any] = {"speculative.n_max": 0}
    plain = complete(small, prompt, 60, **members)
    assert text(guessed) == text(plain)
    assert guessed[1]["timings"]["draft_n_accepted"] > 0 and "draft_n" not in plain[1]["timings"]


def test_keys_share_fairly_and_see_no_more_than_they_should(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text("secret-heavy heavy\nsecret-light light 1 - - queued=0\nsecret-low low 1 normal\nsecret-admin chief 1 - admin\n")
    heavy, light, low, chief = ({"Authorization": f"Bearer secret-{name}"} for name in ("heavy", "light", "low", "admin"))
    with Server("-np", "2", "-c", "2048", "--api-key-file", str(keys)) as server:
        flood = [pool.submit(complete, server, f"Flood {i}", 80, headers=heavy) for i in range(10)]
        while True:
            status, content = server.get("/queue", headers=chief)
            assert status == 200
            queue = json.loads(content)
            if queue["n_running"] == 2 and queue["n_waiting"] == 8 and queue["waiting"]:
                break
            time.sleep(0.05)
        assert {entry["key"] for entry in queue["waiting"]} == {"heavy"}
        assert {entry["key"] for entry in json.loads(server.get("/queue", headers=light)[1])["waiting"]} == {"other"}
        status, refused = complete(server, "Too many", 2, headers=light)
        assert (status, refused["error"]["code"], refused["error"]["limit"]) == (429, "rate_limit_exceeded", 0)
        status, refused = complete(server, "Too high", 2, headers=low, priority="interactive")
        assert (status, refused["error"]["param"]) == (403, "priority")
        status, _ = complete(server, "Me too", 2, headers=chief)
        assert status == 200 and sum(job.done() for job in flood) < 8, "a key that has had nothing goes before the rest of the flood"
        assert all(job.result()[0] == 200 for job in flood)


def test_three_times_more_cells_wanted_than_the_pool_has(pool: ThreadPoolExecutor) -> None:
    with Server("-np", "8", "-c", "1024", "--kv", "unified", "--kv-reserve", "0") as server:
        prompts = [f"Number {i}: " + f"word{i} " * 90 for i in range(12)]
        answers = list(pool.map(lambda prompt: complete(server, prompt, 100, cache_prompt=False), prompts))
        assert all(status == 200 and reply["usage"]["completion_tokens"] == 100 for status, reply in answers)
        assert sum(reply["usage"]["total_tokens"] for _, reply in answers) > 3 * 1024
        server.wait_idle()
