"""A closed socket frees its slot at once, at every stage, and leaves nothing behind."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

from tests.e2e.harness import Server, raw_request, rss_anon

LONG_PROMPT = "A long walk through many small villages in the hills. " * 150


def _body(i: int, *, stream: bool, long: bool) -> dict[str, Any]:
    content = f"{i}: {LONG_PROMPT if long else 'Tell me a very long story.'}"
    return {"messages": [{"role": "user", "content": content}], "stream": stream, "max_tokens": 1500, "ignore_eos": True}


def _drop(server: Server, i: int, delay: float) -> None:
    with raw_request(server, "/v1/chat/completions", _body(i, stream=i % 3 != 0, long=i % 2 == 0)) as connection:
        time.sleep(delay)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")  # RST, as a killed client does


def test_two_hundred_dropped_connections_leave_nothing(server: Server) -> None:
    def storm() -> None:
        threads = [threading.Thread(target=_drop, args=(server, i, 0.05 + (i % 10) * 0.15)) for i in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        server.wait_idle(60)

    storm()  # the first round fills allocator pools and caches
    front, runner = server.front(), server.find("runner")
    before = rss_anon(front), rss_anon(runner)
    storm()
    after = rss_anon(front), rss_anon(runner)
    assert after[0] - before[0] < 20 * 2**20, (before, after)
    assert after[1] - before[1] < 40 * 2**20, (before, after)
    status, reply = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4})
    assert status == 200 and reply["choices"][0]["message"]["content"]


def test_each_stage_frees_its_slot_within_a_step(server: Server) -> None:
    """A step may be slow on a busy machine, so it is counted in tokens: at most the micro-batch under way and one more are computed."""
    for stream in (True, False):
        for long in (True, False):
            server.wait_idle(60)
            computed = server.metric("capsule_prompt_tokens_total")
            body = {**_body(0, stream=stream, long=long), "cache_prompt": False}
            with raw_request(server, "/v1/chat/completions", body):
                server.wait_busy()
                assert server.busy_slots() == 1
            server.wait_idle(60)
            if long:
                assert server.metric("capsule_prompt_tokens_total") - computed <= 1024 < 1683


def test_a_request_dropped_in_the_queue_never_starts(server: Server) -> None:
    server.wait_idle(60)
    fillers = []
    try:
        for i in range(16):
            context = raw_request(server, "/v1/chat/completions", _body(i, stream=True, long=False))
            context.__enter__()
            fillers.append(context)
        deadline = time.monotonic() + 60
        while any(slot["state"] != "decode" for slot in server.slots()) and time.monotonic() < deadline:
            time.sleep(0.05)
        prompt_tokens = server.metric("capsule_prompt_tokens_total")
        with raw_request(server, "/v1/chat/completions", _body(99, stream=True, long=True)):
            deadline = time.monotonic() + 20
            while server.metric("capsule_requests_waiting") < 1 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert server.metric("capsule_requests_waiting") == 1
        deadline = time.monotonic() + 10
        while server.metric("capsule_requests_waiting") > 0 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server.metric("capsule_requests_waiting") == 0
        assert server.metric("capsule_prompt_tokens_total") == prompt_tokens
    finally:
        for context in fillers:
            context.__exit__(None, None, None)
    server.wait_idle(60)


def test_health_answers_while_a_long_prompt_is_prefilled(server: Server) -> None:
    server.wait_idle(60)
    with raw_request(server, "/v1/chat/completions", _body(1, stream=False, long=True)):
        seen_busy = 0
        for _ in range(20):
            status, _ = server.get("/health", timeout=5)
            assert status == 200
            seen_busy += server.busy_slots()
            time.sleep(0.02)
    assert seen_busy > 0
    server.wait_idle(60)
