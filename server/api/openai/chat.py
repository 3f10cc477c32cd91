"""POST /v1/chat/completions, the handler: parse, render the prompt, submit, respond."""

from __future__ import annotations

import msgspec
from aiohttp import web

from server.api.generate import collect, stream, with_text_bias
from server.api.identity import Identity
from server.api.openai.chat_render import ChatStreamView, chat_response
from server.api.openai.chat_wire import ChatBody, ChatCall, parse_chat
from server.api.options import Options, expand
from server.api.respond import json_response
from server.api.scheduling import admitted
from server.http.body import read_json
from server.http.context import CONTEXT, AppContext
from server.http.limits import check
from server.http.readiness import require_model
from server.protocol import GenerationRequest

FIELD = "messages"


async def chat_completions(request: web.Request) -> web.StreamResponse:
    context = request.app[CONTEXT]
    info = require_model(context)
    check(request)
    body = await read_json(request, ChatBody)
    call = parse_chat(body, context.settings, info)
    options = admitted(request, body, call.options, n_prompts=1)
    prompt = await render(context, call)
    options = await with_text_bias(context.runner, options)
    requests = chat_requests(options, prompt, info.bos_token)
    identity = Identity.of(context, "chatcmpl-")
    if options.stream:
        view = ChatStreamView(identity, options)
        return await stream(request, requests, view, ping_interval=options.ping_interval, prompt_field=FIELD)
    return json_response(chat_response(identity, options, await collect(request, requests, prompt_field=FIELD)))


async def render(context: AppContext, call: ChatCall) -> str:
    return await context.renderer.render(
        call.messages,
        add_generation_prompt=call.add_generation_prompt,
        continue_final=call.continue_final,
        **call.template_variables,
    )


def chat_requests(options: Options, prompt: str, bos_token: str) -> list[GenerationRequest]:
    """One per choice. A template may have written the model's BOS already; then the tokenizer must not add another."""
    has_bos = bool(bos_token) and prompt.startswith(bos_token)
    base = msgspec.structs.replace(options.base, add_special=not has_bos)
    return expand(base, [prompt], options.n, field="n")
