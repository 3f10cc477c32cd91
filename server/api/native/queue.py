"""GET /queue: who waits, in which order and how long, and how fast things move. Numbers and key names; never text or addresses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from aiohttp import web

from server.api.respond import json_response
from server.errors import NotFound
from server.http.auth import API_KEY
from server.http.context import CONTEXT
from server.http.keys import ApiKey
from server.protocol import KeyShare, Queue, QueuedRequest
from server.requests import CLASSES

OTHER = "other"
"""Stands for every key but the asking one, unless an admin asks."""


async def queue(request: web.Request) -> web.Response:
    context = request.app[CONTEXT]
    if not context.settings.slots:
        raise NotFound("the queue is not shown; start the server with --slots")
    found = await context.runner.queue()
    return json_response(queue_json(found, _names(request.get(API_KEY)), context.runner.stats.retry_after_s))


def queue_json(queue: Queue, shown: Callable[[str], str], retry_after_s: float) -> dict[str, Any]:
    """`shown`: a key's name as the asking one may see it."""
    classes = Counter(entry.priority for entry in queue.waiting)
    return {
        "policy": queue.policy,
        "n_running": queue.n_running,
        "n_waiting": queue.n_waiting,
        "n_waiting_tokens": queue.n_waiting_tokens,
        "retry_after_seconds": retry_after_s,
        "rates": {
            "prompt_tokens_per_second": queue.prompt_rate,
            "generated_tokens_per_second": queue.generation_rate,
            "requests_per_second": queue.finish_rate,
        },
        "classes": [{"priority": name, "n_listed": classes[name]} for name in CLASSES],
        "keys": _shares_json(queue.keys, shown),
        "waiting": [_entry_json(entry, shown(entry.key)) for entry in queue.waiting],
    }


def _names(key: ApiKey | None) -> Callable[[str], str]:
    if key is None or key.admin:
        return lambda name: name
    return lambda name: name if name == key.name else OTHER


def _shares_json(shares: Iterable[KeyShare], shown: Callable[[str], str]) -> list[dict[str, Any]]:
    """One row a name; what is shown under the same name is added up."""
    rows: dict[str, dict[str, Any]] = {}
    for share in shares:
        name = shown(share.key)
        row = rows.setdefault(name, {"key": name, "n_running": 0, "n_waiting": 0, "served": 0.0})
        row["n_running"] += share.n_running
        row["n_waiting"] += share.n_waiting
        row["served"] += share.served
    return list(rows.values())


def _entry_json(entry: QueuedRequest, key: str) -> dict[str, Any]:
    return {
        "id": entry.id,
        "position": entry.position,
        "priority": entry.priority,
        "key": key,
        "n_prompt_tokens": entry.n_prompt_tokens,
        "waited_seconds": entry.waited_s,
        "eta_seconds": entry.eta_s,
        "is_preempted": entry.is_preempted,
    }
