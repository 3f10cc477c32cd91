"""POST /completion, the handler: parse, submit, respond."""

from __future__ import annotations

from aiohttp import web

from server.api.generate import collect, stream, with_text_bias
from server.api.native.completion_render import NativeStreamView, native_response
from server.api.native.completion_wire import NativeBody, parse_native
from server.api.options import expand
from server.api.prompts import prompt_text
from server.api.respond import json_response
from server.api.scheduling import admitted
from server.http.body import read_json
from server.http.context import CONTEXT
from server.http.limits import check
from server.http.readiness import require_model

FIELD = "prompt"


async def completion(request: web.Request) -> web.StreamResponse:
    context = request.app[CONTEXT]
    info = require_model(context)
    check(request)
    body = await read_json(request, NativeBody)
    call = parse_native(body, context.settings, info)
    options = admitted(request, body, call.options, n_prompts=len(call.prompts))
    options = await with_text_bias(context.runner, options)
    requests = expand(options.base, call.prompts, options.n)
    texts = [await prompt_text(context.runner, prompt) for prompt in call.prompts for _ in range(options.n)]
    if options.stream:
        view = NativeStreamView(call, requests, texts, context.model_name)
        return await stream(request, requests, view, ping_interval=options.ping_interval, prompt_field=FIELD)
    answers = await collect(request, requests, prompt_field=FIELD)
    return json_response(native_response(call, answers, requests, texts, context.model_name))
