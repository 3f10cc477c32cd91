"""A runner's requests end exactly once, whatever its process does; a dead process is replaced and nobody else notices."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from server.errors import (
    CapsuleError,
    ClientError,
    ContextSizeExceeded,
    DeadlineExceeded,
    ModelLoading,
    OperatorError,
    RunnerDied,
    ServerBusy,
    ShuttingDown,
    Unavailable,
)
from server.protocol import Delta, Finished, Queued, Started
from server.runners.failures import Backoff
from server.runners.process import launch
from server.runners.runner import Runner, State
from tests.unit.runners.harness import ARGV, ask, commands, running, settings, spawn, text_of, until

pytestmark = pytest.mark.asyncio


async def test_events_arrive_in_order_and_end_with_finished(tmp_path: Path) -> None:
    async with running(tmp_path) as runner:
        async with runner.generate(ask("count 3")) as events:
            assert runner.n_active == 1
            seen = [event async for event in events]
            with pytest.raises(StopAsyncIteration):
                await anext(events)
        assert [type(e) for e in seen] == [Queued, Started, Delta, Delta, Delta, Finished]
        assert "".join(e.text for e in seen if isinstance(e, Delta)) == "0 1 2 "
        assert runner.n_active == 0
        assert runner.stats.n_steps == 1
        assert (runner.state, runner.info and runner.info.pid) == (State.READY, runner.pid)
    assert commands(tmp_path, "Cancel") == []
    assert runner.state is State.STOPPED


async def test_a_second_terminal_event_is_not_seen(tmp_path: Path) -> None:
    async with running(tmp_path) as runner, runner.generate(ask("two")) as events:
        assert [type(e) for e in [event async for event in events]] == [Queued, Started, Delta, Finished]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("invalid", ClientError),
        ("context", ContextSizeExceeded),
        ("busy", ServerBusy),
        ("timeout", DeadlineExceeded),
        ("internal", CapsuleError),
        ("died", RunnerDied),
    ],
)
async def test_failures_are_raised_as_their_class(tmp_path: Path, kind: str, error: type[CapsuleError]) -> None:
    async with running(tmp_path) as runner:
        async with runner.generate(ask(f"fail {kind}")) as events:
            with pytest.raises(CapsuleError) as caught:
                async for _ in events:
                    pass
            assert type(caught.value) is error
            if isinstance(caught.value, ContextSizeExceeded):
                assert (caught.value.n_prompt_tokens, caught.value.n_ctx) == (9, 5)
            elif kind == "invalid":
                assert caught.value.param == "prompt"
            elif isinstance(caught.value, ServerBusy | DeadlineExceeded):
                assert caught.value.retry_after == 7.0, "as the engine reckons"
            with pytest.raises(StopAsyncIteration):
                await anext(events)
        assert await text_of(runner, "count 1") == "0 "
    assert commands(tmp_path, "Cancel") == []


async def test_leaving_early_cancels_exactly_once(tmp_path: Path) -> None:
    async with running(tmp_path) as runner:
        async with runner.generate(ask("hold")) as events:
            await anext(events)
        with pytest.raises(ZeroDivisionError):
            async with runner.generate(ask("hold")):
                raise ZeroDivisionError
        await until(lambda: len(commands(tmp_path, "Cancel")) == 2)
        assert await text_of(runner, "count 2") == "0 1 "  # whatever else was sent has been read by now
        assert commands(tmp_path, "Cancel") == ["Cancel 1", "Cancel 2"]
        assert runner.n_active == 0


async def test_a_cancelled_consumer_cancels_exactly_once(tmp_path: Path) -> None:
    async with running(tmp_path) as runner:
        tasks = [asyncio.create_task(text_of(runner, "hold")) for _ in range(20)]
        await until(lambda: len(commands(tmp_path, "Submit")) == 20)
        for task in tasks:
            task.cancel()
        assert all(isinstance(r, asyncio.CancelledError) for r in await asyncio.gather(*tasks, return_exceptions=True))
        assert runner.n_active == 0
        await text_of(runner, "count 1")
        assert sorted(commands(tmp_path, "Cancel")) == sorted(f"Cancel {i}" for i in range(1, 21))


async def test_many_at_once_keep_their_own_text(tmp_path: Path) -> None:
    async with running(tmp_path) as runner:
        texts = await asyncio.gather(*(text_of(runner, f"count {n}") for n in range(64)))
        assert texts == ["".join(f"{i} " for i in range(n)) for n in range(64)]


@pytest.mark.parametrize("prompt", ["die", "garbage", "huge", "half", "exit 7", "exit 0"])
async def test_death_ends_every_request_and_the_next_one_works(tmp_path: Path, prompt: str) -> None:
    async with running(tmp_path) as runner:
        first = runner.pid
        others = [asyncio.create_task(text_of(runner, "hold")) for _ in range(3)]
        await until(lambda: len(commands(tmp_path, "Submit")) == 3)
        results = await asyncio.gather(*others, text_of(runner, prompt), return_exceptions=True)
        assert [type(r) for r in results] == [RunnerDied] * 4
        assert len({id(r) for r in results}) == 4
        assert runner.n_active == 0
        await runner.wait_ready(30)
        assert await text_of(runner, "count 2") == "0 1 "
        assert runner.pid != first
        assert runner.restarts == 1
        assert runner.last_death is not None
        expected = {"die": "SIGKILL", "exit 7": "code 7", "garbage": "not a message", "huge": "exceeds the limit"}.get(prompt, "code 0")
        assert expected in runner.last_death.reason
    assert commands(tmp_path, "Cancel") == []


async def test_a_request_right_after_a_death_waits_for_the_restart(tmp_path: Path) -> None:
    async with running(tmp_path, restart_wait_s=30.0) as runner:
        assert runner.pid is not None
        os.kill(runner.pid, signal.SIGKILL)
        await until(lambda: runner.state is State.RESTARTING)
        assert await text_of(runner, "count 2") == "0 1 "


async def test_events_before_a_death_are_still_handed_out(tmp_path: Path) -> None:
    async with running(tmp_path) as runner, runner.generate(ask("flood 5")) as finished, runner.generate(ask("hold")) as events:
        await until(lambda: (len(finished._buffer), len(events._buffer)) == (8, 2))
        assert runner.pid is not None
        os.kill(runner.pid, signal.SIGKILL)
        await until(lambda: runner.state is State.RESTARTING)
        assert isinstance([e async for e in finished][-1], Finished)
        assert [type(await anext(events)), type(await anext(events))] == [Queued, Started]
        with pytest.raises(RunnerDied) as caught:
            await anext(events)
        assert int(caught.value.headers["Retry-After"]) >= 1


async def test_back_off_doubles_up_to_its_cap_and_says_when_to_retry(tmp_path: Path) -> None:
    delays: list[float] = []

    async def sleep(seconds: float) -> None:
        delays.append(seconds)
        if len(delays) == 11:
            with pytest.raises(RunnerDied) as caught:
                async with runner.generate(ask("count 1")):
                    pass
            assert 28 <= caught.value.retry_after <= 60
            (tmp_path / "go").touch()

    runner = Runner(settings(tmp_path, "crash"), spawn=spawn, sleep=sleep)
    await runner.start()
    with pytest.raises(ModelLoading):
        async with runner.generate(ask("count 1")):
            pass
    await runner.wait_ready(120)
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0])
    assert await text_of(runner, "count 1") == "0 "
    await runner.stop()


async def test_a_program_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    attempts: list[int] = []

    def start(settings_: object) -> object:
        attempts.append(1)
        return launch(settings(tmp_path), [str(tmp_path / "missing")] if len(attempts) < 3 else ARGV)

    runner = Runner(settings(tmp_path), spawn=start, backoff=Backoff(first_s=0.001))  # type: ignore[arg-type]
    await runner.start()
    await runner.wait_ready(30)
    assert len(attempts) == 3
    await runner.stop()


async def test_loading_is_told_with_progress(tmp_path: Path) -> None:
    async with running(tmp_path, "slow", ready=False) as runner:
        await until(lambda: runner.loading.progress == 0.5)
        assert runner.state is State.LOADING
        with pytest.raises(ModelLoading, match="weights, 50 %") as caught:
            async with runner.generate(ask("count 1")):
                pass
        assert caught.value.retry_after >= 1
        with pytest.raises(ModelLoading):
            await runner.tokenize("x")
        with pytest.raises(ModelLoading):
            await runner.wait_ready(0.01)
        (tmp_path / "go").touch()
        await runner.wait_ready(30)


async def test_a_fatal_model_is_not_tried_again(tmp_path: Path) -> None:
    async with running(tmp_path, "fatal", ready=False) as runner:
        with pytest.raises(OperatorError, match="the file is broken") as caught:
            await runner.wait_ready(30)
        assert caught.value.hint == "use another"
        await until(lambda: runner.last_death is not None)
        assert (runner.state, runner.restarts, runner.fatal and runner.fatal.message) == (State.FAILED, 0, "the file is broken")
        with pytest.raises(Unavailable):
            async with runner.generate(ask("count 1")):
                pass
    assert len(list(tmp_path.glob("started-*"))) == 1


async def test_queries(tmp_path: Path) -> None:
    async with running(tmp_path) as runner:
        assert (await runner.tokenize("é")).tokens == (0xC3, 0xA9)
        assert await runner.detokenize([0x68, 0x69]) == "hi"
        assert (await runner.slots()).n_waiting == 3
        assert (await runner.queue(5)).n_waiting == 5
        with pytest.raises(ClientError) as caught:
            await runner.tokenize("bad")
        assert caught.value.param == "content"
        with pytest.raises(Unavailable, match="did not answer"):
            await runner.tokenize("silence", timeout=0.01)
        (tmp_path / "die-on-slots").touch()
        with pytest.raises(RunnerDied):
            await runner.slots()
        assert runner._queries == {}


@pytest.mark.parametrize(("prompt", "tokens"), [("\ud800", [1]), ("x", [2**70])])
async def test_what_cannot_be_encoded_is_the_clients_error(tmp_path: Path, prompt: str, tokens: list[int]) -> None:
    async with running(tmp_path) as runner:
        with pytest.raises(ClientError):
            await text_of(runner, prompt) if prompt != "x" else await runner.detokenize(tokens)
        assert runner.n_active == 0
        assert await text_of(runner, "count 1") == "0 "


async def test_drain_waits_for_the_open_ones_and_refuses_new_ones(tmp_path: Path) -> None:
    async with running(tmp_path) as runner, runner.generate(ask("count 2")) as events:
        draining = asyncio.create_task(runner.drain(60))
        await asyncio.sleep(0)
        with pytest.raises(ShuttingDown):
            async with runner.generate(ask("count 1")):
                pass
        assert isinstance([e async for e in events][-1], Finished)
        assert not draining.done()
        await events.__aexit__(None, None, None)
        await draining
        assert runner.state is State.STOPPED


async def test_drain_ends_what_takes_too_long(tmp_path: Path) -> None:
    async with running(tmp_path) as runner:
        holding = asyncio.create_task(text_of(runner, "hold"))
        await until(lambda: runner.n_active == 1)
        await runner.drain(0.01)
        with pytest.raises(ShuttingDown):
            await holding


async def test_stop_kills_a_child_that_does_not_listen(tmp_path: Path) -> None:
    runner = Runner(settings(tmp_path, "deaf"), spawn=spawn)
    await runner.start()
    await runner.wait_ready(30)
    pid = runner.pid
    assert pid is not None
    await runner.stop(grace_s=0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    await runner.stop()


async def test_stop_while_backing_off_does_not_start_another(tmp_path: Path) -> None:
    runner = Runner(settings(tmp_path, "crash"), spawn=spawn, backoff=Backoff(first_s=3600, cap_s=3600))
    await runner.start()
    await until(lambda: runner.restarts == 1)
    await runner.stop()
    assert len(list(tmp_path.glob("started-*"))) == 1
