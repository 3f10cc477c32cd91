"""Whatever dies, the rest serves on; nothing is left behind."""

from __future__ import annotations

import json
import signal
import threading
import time
from typing import Any

import psutil

from tests.e2e.harness import Server, raw_request, wait_gone


def _stream(server: Server, result: list[bytes], n_tokens: int = 1500) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "stream": True,
        "max_tokens": n_tokens,
        "ignore_eos": True,
    }
    _, content = server.request("POST", "/v1/chat/completions", body)
    result.append(content)


def test_a_killed_runner_fails_its_requests_and_comes_back() -> None:
    with Server("--parallel", "4", "--ctx-size", "8192") as server:
        results: list[bytes] = []
        threads = [threading.Thread(target=_stream, args=(server, results)) for _ in range(3)]
        for thread in threads:
            thread.start()
        server.wait_busy(3)
        runner = server.find("runner")
        killed_at = time.monotonic()
        runner.kill()
        for thread in threads:
            thread.join(10)
        assert len(results) == 3, "a stream did not end when its runner died"
        assert time.monotonic() - killed_at < 8
        for content in results:
            last = [line for line in content.decode().splitlines() if line.startswith("data: ")][-1]
            assert last != "data: [DONE]"
            assert json.loads(last[6:])["error"]["code"] == "runner_died"
        status, _ = server.get("/props")
        assert status == 200
        server.wait_ready(30)
        status, reply = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4})
        assert status == 200, reply
        assert server.find("runner").pid != runner.pid


def test_killing_the_front_leaves_no_orphan() -> None:
    with Server("--parallel", "4", "--ctx-size", "4096") as server:
        family = server.tree()
        server.front().send_signal(signal.SIGKILL)
        wait_gone(family)


def test_killing_the_first_process_leaves_no_orphan() -> None:
    """In the frozen file this is PyInstaller's parent, which by itself would leave its child serving."""
    with Server("--parallel", "4", "--ctx-size", "4096") as server:
        family = server.tree()
        server.process.kill()
        server.process.wait(5)
        wait_gone(family)


def test_sigterm_lets_running_answers_finish() -> None:
    with Server("--parallel", "4", "--ctx-size", "4096", "--drain-timeout", "30") as server:
        results: list[bytes] = []
        thread = threading.Thread(target=_stream, args=(server, results, 60))
        thread.start()
        server.wait_busy()
        assert server.terminate(40) == 0, server.log
        thread.join(5)
        assert results and results[0].rstrip().endswith(b"data: [DONE]"), results


def test_a_second_signal_ends_at_once() -> None:
    with Server("--parallel", "4", "--ctx-size", "8192", "--drain-timeout", "60") as server:
        results: list[bytes] = []
        thread = threading.Thread(target=_stream, args=(server, results))
        thread.start()
        server.wait_busy()
        family = server.tree()
        server.process.send_signal(signal.SIGINT)
        time.sleep(1.0)
        assert server.process.poll() is None, "ended before the running answer"
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(10) == 0
        thread.join(5)
        wait_gone(family)


def test_drain_timeout_ends_a_long_answer() -> None:
    with Server("--parallel", "4", "--ctx-size", "8192", "--drain-timeout", "1") as server:
        results: list[bytes] = []
        thread = threading.Thread(target=_stream, args=(server, results))
        thread.start()
        server.wait_busy()
        assert server.terminate(20) == 0
        thread.join(5)
        assert results


def test_a_slow_reader_holds_up_nobody_else() -> None:
    with Server("--parallel", "4", "--ctx-size", "16384") as server:
        body = {"messages": [{"role": "user", "content": "Write."}], "stream": True, "max_tokens": 3000, "ignore_eos": True}
        with raw_request(server, "/v1/chat/completions", body):
            server.wait_busy()
            status, reply = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8})
            assert status == 200, reply
        server.wait_idle()


def test_two_servers_do_not_share_a_fate() -> None:
    with Server("--parallel", "4", "--ctx-size", "4096") as one, Server("--parallel", "4", "--ctx-size", "4096") as two:
        psutil.Process(one.process.pid).kill()
        time.sleep(2)
        status, _ = two.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4})
        assert status == 200
