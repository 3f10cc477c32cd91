"""A slow consumer pauses its own request and loses nothing; one that stalls is ended; memory stays bounded either way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from server.errors import CapsuleError, RequestTimeout
from server.protocol import Delta, Finished
from server.runners.flow import FlowLimits
from tests.unit.runners.harness import ask, commands, running, text_of, until

pytestmark = pytest.mark.asyncio

SMALL = FlowLimits(coalesce_events=4, pause_deltas=16, pause_bytes=64 * 1024)


async def test_a_slow_reader_pauses_its_own_request_only(tmp_path: Path) -> None:
    async with running(tmp_path, limits=SMALL) as runner, runner.generate(ask("flood 3000")) as slow:
        await until(lambda: commands(tmp_path, "Pause") == ["Pause 1"])
        assert await text_of(runner, "count 10") == "".join(f"{i} " for i in range(10))
        held = len(slow._buffer)
        assert 16 < held < 3000
        text, n_deltas = "", 0
        async for event in slow:
            await asyncio.sleep(0)
            if isinstance(event, Delta):
                text += event.text
                n_deltas += 1
                assert event.tokens == tuple(int(event.text[k : k + 100]) for k in range(0, len(event.text), 100))
        assert isinstance(event, Finished)
        assert text == "".join(f"{i:0100d}" for i in range(3000))
        assert n_deltas < 3000
    pauses, resumes = commands(tmp_path, "Pause"), commands(tmp_path, "Resume")
    assert len(pauses) - len(resumes) in (0, 1)
    assert set(pauses) == {"Pause 1"}
    assert commands(tmp_path, "Cancel") == []


async def test_a_stalled_reader_is_ended_and_its_slot_freed(tmp_path: Path) -> None:
    limits = FlowLimits(pause_deltas=16, stall_timeout_s=0.05)
    stalled: list[bool] = []
    async with running(tmp_path, limits=limits) as runner, runner.generate(ask("flood 100000")) as events:
        events.on_stall = lambda: stalled.append(True)
        await until(lambda: commands(tmp_path, "Cancel") == ["Cancel 1"])
        await until(lambda: stalled == [True])
        assert len(events._buffer) == 0
        with pytest.raises(RequestTimeout):
            await anext(events)
        with pytest.raises(StopAsyncIteration):
            await anext(events)
    assert commands(tmp_path, "Cancel") == ["Cancel 1"]


async def test_a_slow_reader_that_takes_something_is_not_stalled(tmp_path: Path) -> None:
    limits = FlowLimits(pause_deltas=16, stall_timeout_s=2.0, coalesce_events=1_000_000)
    async with running(tmp_path, limits=limits) as runner, runner.generate(ask("flood 60")) as events:
        loop = asyncio.get_running_loop()
        began, n = loop.time(), 0
        async for event in events:
            n += isinstance(event, Delta)
            await asyncio.sleep(0.05)
        assert loop.time() - began > limits.stall_timeout_s  # longer in all than one stall may be
        assert n == 60


async def test_a_runner_that_does_not_pause_cannot_fill_the_memory(tmp_path: Path) -> None:
    limits = FlowLimits(pause_deltas=16, hard_bytes=100_000)
    async with running(tmp_path, limits=limits) as runner, runner.generate(ask("rush 1000000")) as events:
        await until(lambda: commands(tmp_path, "Cancel") == ["Cancel 1"])
        with pytest.raises(CapsuleError, match="ran ahead"):
            async for _ in events:
                assert events._buffer.n_bytes <= limits.hard_bytes
        assert await text_of(runner, "count 1") == "0 "
    assert commands(tmp_path, "Cancel") == ["Cancel 1"]


async def test_a_generation_is_used_as_documented(tmp_path: Path) -> None:
    async with running(tmp_path) as runner:
        outside = runner.generate(ask("count 1"))
        with pytest.raises(RuntimeError, match="async with"):
            await anext(outside)
        async with outside:
            pass
        with pytest.raises(RuntimeError, match="has been left"):
            await anext(outside)
        with pytest.raises(RuntimeError, match="entered once"):
            await outside.__aenter__()
