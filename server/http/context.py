"""What every handler may reach: the collaborators of this start, handed in from outside. Holds no logic."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aiohttp import web

from server.http.metrics import Metrics
from server.http.ports import Renderer, Runner
from server.settings import Settings


@dataclass(slots=True, kw_only=True)
class AppContext:
    settings: Settings
    origins: Mapping[str, str]
    """Setting -> flag, environment, embedded or default."""
    runner: Runner
    renderer: Renderer
    metrics: Metrics
    model_name: str
    """What clients see; `--alias`, else the model's own name."""
    launch_secret: str
    """Handed only to the browser that this start has opened."""
    quit: Callable[[], None]
    """Ask the program to end; returns at once."""
    licenses: Callable[[], str]
    page: bytes
    """The chat page, one HTML file."""
    version: str
    nonce: str = ""
    """Shown by /health, so that a second start of this file can tell that the port is still ours. No secret."""
    model_path: str = ""
    chat_template: str | None = None
    """The template in use, where it is not the model's own."""
    started: float = field(default_factory=time.monotonic)
    draining: bool = False
    """Set at shutdown: what runs may finish, nothing new is taken."""
    n_open: int = 0
    """Requests that have been taken and not been answered to the end, without those that only look (/health, /metrics, /slots, /queue)."""


CONTEXT = web.AppKey("context", AppContext)
