"""A child can be started before any event loop; what it says waits for its owner; it never outlives the front process."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from server.errors import OperatorError
from server.pipes import FrameWriter, printable
from server.protocol import Cancel, Loading, Ready, RunnerSettings, Step, Submit
from server.runners.process import Delivery, Ended, describe_exit, launch
from server.runners.runner import Runner
from tests.unit.runners.harness import ARGV, ask, settings, spawn, text_of

ROOT = Path(__file__).resolve().parents[3]


def gone(pid: int, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.01)
    return False


def test_messages_wait_for_their_owner_and_end_with_one_ended(tmp_path: Path) -> None:
    process = spawn(settings(tmp_path))
    process.send(Submit(7, ask("two")))
    process.close_stdin()
    process._reader.join(60)
    seen: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
    process.adopt(seen.put)
    messages = [seen.get_nowait() for _ in range(seen.qsize())]
    assert [type(m) for m in messages] == [Loading, Ready, Step, Step, Ended]
    assert messages[-1] == Ended("ended with exit code 0", 0, ())
    process.send(Cancel(7))  # to a process that is gone: nothing happens
    process.kill()
    process.stop()


def test_a_process_started_early_is_adopted(tmp_path: Path) -> None:
    process = spawn(settings(tmp_path))

    async def main() -> None:
        runner = Runner(settings(tmp_path), process, spawn=spawn)
        await runner.start()
        await runner.wait_ready(60)
        assert runner.pid == process.pid
        assert await text_of(runner, "count 2") == "0 1 "
        await runner.stop()

    asyncio.run(main())
    assert gone(process.pid)


def test_a_process_that_nobody_adopted_can_be_stopped(tmp_path: Path) -> None:
    process = spawn(settings(tmp_path, "deaf"))
    process.stop(grace_s=0.05)
    assert gone(process.pid, 0.1)
    other = spawn(settings(tmp_path))

    async def main() -> None:
        await Runner(settings(tmp_path), other).stop()

    asyncio.run(main())
    assert gone(other.pid, 0.1)


def test_log_lines_are_bounded_printable_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "capsule.runner"):
        process = spawn(settings(tmp_path, "noise"))
        process.stop(grace_s=60)
    ended = process._waiting[-1]
    assert isinstance(ended, Ended)
    assert ended.last_lines == ("plain", "ERROR it broke: 5 %d", "\\x1b[31mred\\x07 \\xff \\u202e", "x" * 4096, "last")
    assert [r.getMessage() for r in caplog.records] == ["plain", "it broke: 5 %d", *ended.last_lines[2:]]
    assert [r.levelno for r in caplog.records] == [logging.INFO, logging.ERROR] + [logging.INFO] * 3


def test_printable_keeps_letters_of_any_script() -> None:
    assert printable("Grüße 你好 🙂 ‏\r\n\tx") == "Grüße 你好 🙂 \\u200f\\r\\n x"


def test_a_full_pipe_never_blocks_the_sender(tmp_path: Path) -> None:
    process = spawn(settings(tmp_path, "deaf"))
    sent = threading.Event()

    def send() -> None:
        for i in range(200):
            process.send(Submit(i, ask("x" * 100_000)))
        sent.set()

    threading.Thread(target=send, daemon=True).start()
    assert sent.wait(60)
    assert process.backlog > 10_000_000
    process.stop(grace_s=0.05)
    assert process.backlog == 0


def test_the_writer_survives_a_reader_that_left() -> None:
    read_end, write_end = os.pipe()
    writer = FrameWriter(os.fdopen(write_end, "wb"), "test-writer")
    os.close(read_end)
    for _ in range(1000):
        writer.put(b"x" * 1000)
    writer.close()
    writer.close()
    writer.join(20)
    assert writer.backlog == 0


@pytest.mark.parametrize("when", ["idle", "busy"])
def test_killing_the_front_ends_its_children(tmp_path: Path, when: str) -> None:
    argv = [sys.executable, "-m", "tests.unit.runners.fake_front", str(tmp_path), when]
    front = subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE)
    assert front.stdout is not None
    with front, front.stdout:
        children = json.loads(front.stdout.readline())
        assert len(children) == 3
        assert all(psutil.pid_exists(pid) for pid in children)
        front.kill()
    assert all(gone(pid) for pid in children)


def test_importing_the_launching_side_loads_no_web_server_and_no_event_loop() -> None:
    code = "import sys, server.runners.process; print([m for m in ('aiohttp', 'asyncio', 'jinja2', 'llama_cpp') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_exits_are_described() -> None:
    assert describe_exit(-11) == "was ended by signal 11 (SIGSEGV)"
    assert "memory" in describe_exit(-9)
    assert describe_exit(-250) == "was ended by signal 250 (unknown)"
    assert describe_exit(0xC0000005) == "crashed with status 0xC0000005"
    assert describe_exit(2) == "ended with exit code 2"


def test_a_path_that_is_no_unicode_is_the_operators_error() -> None:
    with pytest.raises(OperatorError, match="Unicode"):
        launch(RunnerSettings(path="/tmp/\udcff.gguf"), ARGV)

    async def main() -> None:
        runner = Runner(RunnerSettings(path="/tmp/\udcff.gguf"), spawn=spawn)
        await runner.start()
        with pytest.raises(OperatorError, match="Unicode"):
            await runner.wait_ready(60)
        await runner.stop()

    asyncio.run(main())
