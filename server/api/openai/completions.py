"""POST /v1/completions, the handler: parse, submit, respond."""

from __future__ import annotations

from aiohttp import web

from server.api.generate import collect, stream, with_text_bias
from server.api.identity import Identity
from server.api.openai.completions_render import CompletionStreamView, completion_response
from server.api.openai.completions_wire import CompletionBody, CompletionCall, parse_completion
from server.api.options import expand
from server.api.prompts import prompt_text
from server.api.respond import json_response
from server.api.scheduling import admitted
from server.http.body import read_json
from server.http.context import CONTEXT, AppContext
from server.http.limits import check
from server.http.readiness import require_model

FIELD = "prompt"


async def completions(request: web.Request) -> web.StreamResponse:
    context = request.app[CONTEXT]
    info = require_model(context)
    check(request)
    body = await read_json(request, CompletionBody)
    call = parse_completion(body, context.settings, info)
    options = admitted(request, body, call.options, n_prompts=len(call.prompts))
    options = await with_text_bias(context.runner, options)
    requests = expand(options.base, call.prompts, options.n)
    prefixes = await _prefixes(context, call)
    identity = Identity.of(context, "cmpl-")
    if options.stream:
        view = CompletionStreamView(identity, options, prefixes)
        return await stream(request, requests, view, ping_interval=options.ping_interval, prompt_field=FIELD)
    answers = await collect(request, requests, prompt_field=FIELD)
    return json_response(completion_response(identity, options, answers, prefixes))


async def _prefixes(context: AppContext, call: CompletionCall) -> list[str]:
    texts = [await prompt_text(context.runner, prompt) if call.echo else "" for prompt in call.prompts]
    return [text for text in texts for _ in range(call.options.n)]
