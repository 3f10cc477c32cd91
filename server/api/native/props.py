"""GET /props: what this server is, how it was started, and where its model really runs."""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web

from server.api.native.completion_render import generation_settings
from server.api.respond import json_response
from server.api.sampling import defaults
from server.http.context import CONTEXT, AppContext
from server.http.readiness import require_model
from server.options import shown, table
from server.protocol import GenerationRequest, ModelInfo
from server.settings import Settings


async def props(request: web.Request) -> web.Response:
    context = request.app[CONTEXT]
    return json_response(props_json(context, require_model(context)))


def props_json(context: AppContext, info: ModelInfo) -> dict[str, Any]:
    settings = context.settings
    plain = GenerationRequest(prompt="", max_tokens=settings.n_predict, sampling=defaults(settings))
    return {
        "default_generation_settings": {"params": generation_settings(plain, stream=False), "n_ctx": info.n_ctx_slot},
        "total_slots": info.n_slots,
        "n_ctx_total": info.n_ctx,
        "model_alias": context.model_name,
        "model_path": context.model_path,
        "model_ftype": info.ftype,
        "model": {"name": info.name, "architecture": info.architecture, "description": info.description, "n_params": info.n_params},
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": settings.slots,
        "endpoint_props": False,
        "endpoint_metrics": settings.metrics,
        "chat_template": context.chat_template or info.chat_template or "",
        "bos_token": info.bos_token,
        "eos_token": info.eos_token,
        "build_info": f"capsule-{context.version}",
        "is_sleeping": False,
        "deterministic": deterministic_json(settings, info),
        "scheduling": scheduling_json(context, info),
        "hardware": hardware_json(info),
        "settings": settings_json(context),
        "uptime_seconds": time.monotonic() - context.started,
    }


def deterministic_json(settings: Settings, info: ModelInfo) -> dict[str, Any]:
    """Whether the promise holds as the model was loaded, and if not, why."""
    why_not = None if info.deterministic else _why_not(settings, info)
    promise = "a greedy answer is the same alone and among others, guessed ahead or not, bit for bit"
    return {"on": info.deterministic, "promise": None if why_not else promise, "why_not": why_not, "speculation": info.spec}


def _why_not(settings: Settings, info: ModelInfo) -> str:
    if not settings.deterministic:
        return "the server was started without --deterministic"
    if info.kv_unified:
        return "the KV cache is one pool, not a stream for each slot"
    if {info.kv_type_k, info.kv_type_v} != {"q8_0"}:
        return f"the KV cache is {info.kv_type_k} and {info.kv_type_v}, not q8_0"
    return f"not promised on {', '.join(info.devices)}, only on the CPU alone"


def scheduling_json(context: AppContext, info: ModelInfo) -> dict[str, Any]:
    """What was decided where a setting says auto."""
    settings = context.settings
    return {
        "policy": settings.policy,
        "kv": "unified" if info.kv_unified else "streams",
        "can_rewind": info.can_rewind,
        "cache_ram_bytes": info.cache_ram,
        "speculation": info.spec,
        "draft_max": settings.spec_draft_max if info.spec != "off" else 0,
        "itl_target_ms": settings.itl_target,
        "max_queue": settings.max_queue,
        "max_queue_tokens": settings.max_queue_tokens or None,
        "request_timeout": settings.request_timeout or None,
    }


def hardware_json(info: ModelInfo) -> dict[str, Any]:
    return {
        "cpu_variant": info.cpu_variant,
        "cpu_variant_reason": info.cpu_variant_reason,
        "devices": info.devices,
        "n_layers": info.n_layers,
        "n_gpu_layers": info.n_gpu_layers,
        "n_threads": info.n_threads,
        "kv_type_k": info.kv_type_k,
        "kv_type_v": info.kv_type_v,
        "kv_bytes": info.kv_bytes,
        "weights_bytes": info.size,
        "load_seconds": info.load_seconds,
        "runner_pid": info.pid,
    }


def settings_json(context: AppContext) -> dict[str, Any]:
    """name -> value and origin; a secret shows as `set`."""
    return {
        option.name: {"value": shown(option, getattr(context.settings, option.name)), "origin": context.origins.get(option.name, "default")}
        for option in table()
    }
