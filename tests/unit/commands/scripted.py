"""Starts over the scripted runner of tests/unit/runners: `python scripted.py MODE HOME COMMAND…` is the launcher with that child."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

import launcher  # noqa: E402
from models.resolve import Weights  # noqa: E402
from server.commands import chat  # noqa: E402
from server.commands.start import Start, read_options  # noqa: E402
from server.protocol import RunnerSettings  # noqa: E402
from server.runners.process import RunnerProcess  # noqa: E402

ARGV = [sys.executable, str(ROOT / "tests" / "unit" / "runners" / "fake_runner.py")]
TEMPLATE = "{{ messages[-1].content }}"
"""The scripted runner does what the prompt says, so the last message is the prompt."""


def start(mode: str, home: Path, argv: list[str], template: str = TEMPLATE) -> Start:
    """What `prepare` would give, for weights that nobody reads."""
    weights = Weights(home / "fake.gguf", 0, 1, "fake", None, None, [], cast(Any, None))
    return Start(read_options(argv, {}), weights, template, RunnerSettings(path=mode, cache_dir=str(home)))


def spawn(settings: RunnerSettings) -> RunnerProcess:
    return RunnerProcess(ARGV, settings)


def main() -> int:
    mode, home, *argv = sys.argv[1:]
    vars(chat)["launch"] = spawn
    vars(chat)["prepare"] = lambda options, flags, environment: start(mode, Path(home), list(flags))
    return launcher.main(argv)


if __name__ == "__main__":
    sys.exit(main())
