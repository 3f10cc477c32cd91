"""GET /v1/models in Anthropic's shape. Pure."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from server.http.context import AppContext


def model_json(context: AppContext) -> dict[str, Any]:
    started = datetime.fromtimestamp(int(time.time() - (time.monotonic() - context.started)), UTC)
    info = context.runner.info
    return {
        "type": "model",
        "id": context.model_name,
        "display_name": context.model_name,
        "created_at": started.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": info.n_ctx_slot if info is not None else None,
        "max_tokens": info.n_ctx_slot if info is not None else None,
    }


def page_json(context: AppContext, *, is_first: bool) -> dict[str, Any]:
    """`is_first`: False where a client asks for what comes before or after the one model that there is."""
    data = [model_json(context)] if is_first else []
    name = context.model_name if data else None
    return {"data": data, "has_more": False, "first_id": name, "last_id": name}
