"""Where a runner is between its start and its end."""

from __future__ import annotations

import enum


class State(enum.Enum):
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    """A process died; waiting to start the next one, or it is loading."""
    FAILED = "failed"
    """The model cannot be served (`fatal` says why); not tried again."""
    STOPPED = "stopped"
