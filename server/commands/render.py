"""The hidden `render` command: the killable child in which a model's chat template runs. Knows no settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from server import spawn


def main(argv: Sequence[str]) -> int:
    """Arguments: the time limit of one render in seconds, and how much memory it may use in MiB."""
    spawn.enter_child()
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a stray print must not get between the frames
    from server.chat.worker import serve

    timeout_s, memory_mib = argv
    with replies:
        serve(sys.stdin.buffer, replies, float(timeout_s), int(memory_mib))
    return 0
