"""The runner process on fakes: nothing but frames on its stdout, an end for everybody, and gone as soon as its stdin is."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from server.engine.process import EXIT_BROKEN
from server.protocol import Cancel, Failed, Fatal, Finished, GetSlots, Loading, Ready, RunnerSettings, Slots, Started, Tokenize, Tokens
from tests.runner_child import RunnerChild
from tests.unit.engine.fakes import BOS, POISON

ARGV = ["-m", "tests.unit.engine.child"]


def child(path: str = "model", **settings: object) -> RunnerChild:
    return RunnerChild(ARGV, RunnerSettings(path=path, **settings))  # type: ignore[arg-type]


def test_loading_then_ready_then_requests_with_noise_kept_out_of_the_frames() -> None:
    with child() as runner:
        runner.wait_ready()
        kinds = [type(message) for message in runner.messages]
        assert kinds == [Loading] * (len(kinds) - 1) + [Ready] and 100 <= len(kinds) <= 103, "one message a percent"
        request = runner.submit("hello", max_tokens=20)
        assert runner.finished(request).n_predicted <= 20
        runner.close_stdin()
        assert runner.process.returncode == 0
    assert "native noise on stdout" in runner.log and "a stray print while loading" in runner.log


def test_a_closed_stdin_ends_it_while_loading_and_in_the_middle_of_a_step() -> None:
    with child("slow") as runner:
        runner.wait_for(Loading)
        runner.close_stdin()
        assert runner.process.returncode == 0
    with child() as runner:
        runner.wait_ready()
        request = runner.submit([BOS])
        runner.wait(lambda: any(isinstance(event, Started) for event in runner.events(request)))
        runner.send(GetSlots(9))
        assert [slot.state for slot in runner.wait_for(Slots).slots] == ["prefill", "idle", "idle"], "it answers inside a step"
        runner.close_stdin()
        assert runner.process.returncode == 0


@pytest.mark.parametrize(("path", "message", "code"), [("operator", "the file is no model", 2), ("crash", "no idea", EXIT_BROKEN)])
def test_a_model_that_cannot_be_loaded_is_a_fatal_message(path: str, message: str, code: int) -> None:
    with child(path) as runner:
        fatal = runner.wait_for(Fatal)
        assert message in fatal.message and fatal.hint
        assert runner.process.wait(30) == code


def test_an_unknown_policy_is_a_fatal_message() -> None:
    with child(policy="lottery") as runner:
        assert "lottery" in runner.wait_for(Fatal).message
        assert runner.process.wait(30) == 2


def test_a_loop_that_breaks_down_ends_every_request_and_the_process() -> None:
    with child() as runner:
        runner.wait_ready()
        running = [runner.submit("x" * 50) for _ in range(5)]
        runner.wait(lambda: bool(runner.events(running[0])))
        bad = runner.submit([POISON])
        for request in [*running, bad]:
            end = runner.terminal(request)
            assert isinstance(end, Finished) or end.kind == "internal"
        assert isinstance(runner.terminal(bad), Failed)
        assert runner.process.wait(30) == EXIT_BROKEN
    assert "an error nobody expected" in runner.log and "Traceback" in runner.log


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_signals_of_the_console_are_not_for_it() -> None:
    with child() as runner:
        runner.wait_ready()
        for number in (signal.SIGINT, signal.SIGTERM):
            os.kill(runner.process.pid, number)
        request = runner.submit("still here", max_tokens=3)
        assert runner.finished(request)


def test_nonsense_on_the_pipe_ends_it() -> None:
    with child() as runner:
        runner.wait_ready()
        assert runner.process.stdin is not None
        runner.process.stdin.write(b"\x03\0\0\0abc")
        runner.process.stdin.flush()
        assert runner.process.wait(30) == EXIT_BROKEN
    assert "command pipe" in runner.log


def test_many_requests_come_and_go_through_the_pipes() -> None:
    with child(max_queue=500) as runner:
        runner.wait_ready()
        kept = [runner.submit(f"{i}" * (1 + i % 40), max_tokens=3) for i in range(60)]
        dropped = [runner.submit("gone" * 50) for _ in range(60)]
        runner.send(*(Cancel(request) for request in dropped))
        for request in kept:
            assert runner.finished(request).reason in ("stop", "length")
        for request in dropped:
            assert runner.finished(request).reason in ("cancelled", "stop", "length")
        runner.send(Tokenize(5000, "ab"), GetSlots(5001))
        assert runner.wait_for(Tokens).tokens == (97, 98)
        slots = runner.wait_for(Slots)
        assert [slot.state for slot in slots.slots] == ["idle"] * 3 and slots.n_waiting == 0
        started = [request for request in kept if any(isinstance(event, Started) for event in runner.events(request))]
        assert started == kept
