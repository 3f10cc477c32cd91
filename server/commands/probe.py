"""The hidden `probe` command: the throw-away child that tries native libraries and may die of it. Knows no settings."""

from __future__ import annotations

from collections.abc import Sequence

from server import spawn


def main(argv: Sequence[str]) -> int:
    """Arguments as `server.llama.probe.child_main` takes them."""
    spawn.enter_child()
    from server.llama.probe import child_main

    return child_main(argv)
