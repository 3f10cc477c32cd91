"""Starts runners over the scripted child and looks into what it was told."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from server.protocol import Delta, Finished, GenerationRequest, RunnerSettings
from server.runners.process import RunnerProcess, launch
from server.runners.runner import Runner

ARGV = [sys.executable, str(Path(__file__).with_name("fake_runner.py"))]


def settings(home: Path, mode: str = "ok") -> RunnerSettings:
    return RunnerSettings(path=mode, cache_dir=str(home))


def spawn(settings: RunnerSettings) -> RunnerProcess:
    return launch(settings, ARGV)


def ask(prompt: str) -> GenerationRequest:
    return GenerationRequest(prompt=prompt)


@asynccontextmanager
async def running(home: Path, mode: str = "ok", *, ready: bool = True, **options: Any) -> AsyncIterator[Runner]:
    runner = Runner(settings(home, mode), spawn=spawn, **options)
    await runner.start()
    try:
        if ready:
            await runner.wait_ready(60)
        yield runner
    finally:
        await runner.stop()


async def text_of(runner: Runner, prompt: str) -> str:
    text = ""
    async with runner.generate(ask(prompt)) as events:
        async for event in events:
            if isinstance(event, Delta):
                text += event.text
            elif isinstance(event, Finished):
                assert event.reason == "stop"
    return text


def commands(home: Path, kind: str) -> list[str]:
    path = home / "commands"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if line.startswith(kind + " ")]


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for something that happens on its own; `seconds` only bounds a failing test."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.005)
