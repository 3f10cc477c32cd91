"""A process hangs where it neither steps nor computes for minutes while it has work; one that only takes long does not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from server.protocol import RunnerSettings
from server.runners.process import RunnerProcess
from server.runners.watch import IDLE_S, PATIENCE_S, StepWatch
from tests.unit.runners.harness import ask, running


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now


def test_neither_steps_nor_computing() -> None:
    clock = Clock()
    watch = StepWatch(clock)
    clock.now += PATIENCE_S
    assert not watch.is_stalled(lambda: 7.0), "seen idle for no time yet"
    clock.now += IDLE_S - 1
    assert not watch.is_stalled(lambda: 7.0)
    clock.now += 1
    assert watch.is_stalled(lambda: 7.01) and watch.age == PATIENCE_S + IDLE_S
    watch.stepped(1)
    assert watch.age == 0 and not watch.is_stalled(lambda: 7.01)


def test_a_long_step_is_no_stall() -> None:
    clock = Clock()
    watch = StepWatch(clock)
    for minute in range(60):
        clock.now += 60
        assert not watch.is_stalled(lambda used=minute * 30.0: used)  # type: ignore[misc]
    assert watch.age == 3600


def test_an_unknown_processor_time_is_no_proof() -> None:
    clock = Clock()
    watch = StepWatch(clock)
    for _ in range(10):
        clock.now += PATIENCE_S
        assert not watch.is_stalled(lambda: None)


def test_a_message_without_a_step_does_not_count() -> None:
    clock = Clock()
    watch = StepWatch(clock)
    watch.stepped(5)
    clock.now += 9
    watch.stepped(5)
    assert watch.age == 9
    watch.began()
    assert watch.age == 0


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not say it there")
def test_the_processor_time_of_a_child() -> None:
    child = RunnerProcess([sys.executable, "-c", "sum(range(10**7)); import time; time.sleep(60)"], RunnerSettings(path="x"))
    try:
        used = 0.0
        while used == 0:  # bounded by the sum, which takes longer than a tick of the clock
            found = child.cpu_seconds()
            assert found is not None
            used = found
    finally:
        child.kill()
        child.stop()
    assert child.cpu_seconds() is None


@pytest.mark.asyncio
async def test_only_work_that_waits_for_a_step_counts(tmp_path: Path) -> None:
    clock = Clock()
    async with running(tmp_path, clock=clock) as runner:
        clock.now += 500
        assert runner.step_age_s == 0 and not runner.stalled, "idle"
        async with runner.generate(ask("hold")) as events:
            await anext(events)
            clock.now += 500
            assert runner.step_age_s == 500 and not runner.stalled
            clock.now += 500
            assert runner.stalled
        assert runner.step_age_s == 0 and not runner.stalled
