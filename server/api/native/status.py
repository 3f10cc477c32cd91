"""GET /health, /metrics, /slots: how the server is doing. None of them waits for the model's answer to a prompt."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from server.api.respond import json_response
from server.errors import NotFound, RunnerStalled, Unavailable
from server.http.context import CONTEXT, AppContext
from server.http.errors import error_response
from server.http.metrics import CONTENT_TYPE
from server.http.readiness import hindrance
from server.protocol import SlotState


async def health(request: web.Request) -> web.Response:
    context = request.app[CONTEXT]
    why = hindrance(context)
    nonce: dict[str, Any] = {"nonce": context.nonce} if context.nonce else {}
    if why is None:
        age = context.runner.step_age_s
        working = {"last_step_age_seconds": round(age, 1)} if age >= 1 else {}
        return json_response({"status": "ok", **working, **nonce})
    return error_response(why, **_state(context, why), **nonce)


def _state(context: AppContext, why: Unavailable) -> dict[str, Any]:
    if context.draining:
        return {"status": "draining"}
    if isinstance(why, RunnerStalled):
        return {"status": "stalled", "last_step_age_seconds": round(context.runner.step_age_s, 1)}
    state = context.runner.state.name
    if state != "LOADING" and (state != "RESTARTING" or context.runner.loading.progress == 0):
        return {"status": state.lower()}
    return {"status": state.lower(), "stage": context.runner.loading.stage, "progress": context.runner.loading.progress}


async def metrics(request: web.Request) -> web.Response:
    context = request.app[CONTEXT]
    if not context.settings.metrics:
        raise NotFound("metrics are switched off; start the server with --metrics")
    return web.Response(body=context.metrics.render(), headers={"Content-Type": CONTENT_TYPE})


async def slots(request: web.Request) -> web.Response:
    context = request.app[CONTEXT]
    if not context.settings.slots:
        raise NotFound("the slots are not shown; start the server with --slots")
    found = (await context.runner.slots()).slots
    if request.query.get("fail_on_no_slot") and all(slot.state != "idle" for slot in found):
        raise Unavailable("no slot is free", retry_after=context.runner.stats.retry_after_s)
    return json_response([slot_json(slot) for slot in found])


def slot_json(slot: SlotState) -> dict[str, Any]:
    busy = slot.state != "idle"
    return {
        "id": slot.id,
        "n_ctx": slot.n_ctx,
        "speculative": False,
        "is_processing": busy,
        "state": slot.state,
        "id_task": slot.request,
        "n_prompt_tokens": slot.n_prompt_tokens,
        "n_prompt_tokens_processed": slot.n_prompt_processed,
        "n_prompt_tokens_cache": slot.n_cached_tokens,
        "n_kv_tokens": slot.n_kv_tokens,
        "next_token": [{"has_next_token": busy, "n_remain": slot.n_remain, "n_decoded": slot.n_decoded}],
    }
