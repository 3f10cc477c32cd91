"""The hidden `runner` command: a child process that owns one model. Joins the engine with llama.cpp; everything else is theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from server.engine.process import Runtime, run
from server.protocol import RunnerSettings


def main(argv: Sequence[str] = ()) -> NoReturn:
    """Serve one model over stdin and stdout until stdin ends. Takes no arguments: the first command brings the settings."""
    run(_open_runtime)


def _open_runtime(settings: RunnerSettings, on_progress: Callable[[str, float], None]) -> Runtime:
    # Imported here: native code may be loaded only once stdout has been moved away.
    from server.llama.runtime import open_runtime

    return open_runtime(settings, on_progress)


if __name__ == "__main__":
    main()
