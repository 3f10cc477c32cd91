"""GET /v1/models: the one model that this server has."""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web

from server.api.anthropic import models as anthropic
from server.api.respond import json_response
from server.errors import NotFound
from server.http.context import CONTEXT, AppContext
from server.http.shapes import speaks_anthropic

ANY = "default"
"""What clients call the model of a server that has one; requests may name it as they like."""


def model_json(context: AppContext) -> dict[str, Any]:
    info = context.runner.info
    meta = info and {
        "vocab_type": info.vocab_type,
        "n_vocab": info.n_vocab,
        "n_ctx": info.n_ctx_slot,
        "n_ctx_train": info.n_ctx_train,
        "n_embd": info.n_embd,
        "n_params": info.n_params,
        "size": info.size,
        "ftype": info.ftype,
    }
    return {
        "id": context.model_name,
        "object": "model",
        "created": int(time.time() - (time.monotonic() - context.started)),
        "owned_by": "capsule",
        "aliases": [context.model_name],
        "meta": meta,
    }


async def models(request: web.Request) -> web.Response:
    if speaks_anthropic(request):
        is_first = not {"after_id", "before_id"} & set(request.query)
        return json_response(anthropic.page_json(request.app[CONTEXT], is_first=is_first))
    return json_response({"object": "list", "data": [model_json(request.app[CONTEXT])]})


async def model(request: web.Request) -> web.Response:
    context = request.app[CONTEXT]
    if request.match_info["id"] not in (context.model_name, ANY):
        raise NotFound(f"this server has no model of that name, only {context.model_name}", param="model")
    return json_response(anthropic.model_json(context) if speaks_anthropic(request) else model_json(context))
