"""POST /v1/messages and /v1/messages/count_tokens, the handlers: parse, render the prompt, submit or count, respond."""

from __future__ import annotations

import dataclasses

import msgspec
from aiohttp import web

from server.api.anthropic.messages_render import MessagesView
from server.api.anthropic.messages_wire import MessagesBody, parse_messages
from server.api.chatting import count_tokens as count
from server.api.chatting import prepare
from server.api.generate import run, stream
from server.api.identity import Identity
from server.api.respond import json_response
from server.api.scheduling import admitted
from server.http.body import read_json
from server.http.context import CONTEXT
from server.http.limits import check
from server.http.notices import notify
from server.http.readiness import require_model


async def messages(request: web.Request) -> web.StreamResponse:
    context = request.app[CONTEXT]
    info = require_model(context)
    check(request)
    call = parse_messages(await read_json(request, MessagesBody), context.settings, info)
    notify(request, call.notices)
    options = admitted(request, call.fields, call.chat.options, n_prompts=1)
    options = dataclasses.replace(options, base=msgspec.structs.replace(options.base, return_tokens=True))
    prepared = await prepare(request, dataclasses.replace(call.chat, options=options))
    view = MessagesView(Identity.of(context, "msg_"), prepared, shows_thinking=call.shows_thinking)
    field = call.chat.field_name
    if options.stream:
        return await stream(request, prepared.requests, view, ping_interval=options.ping_interval, prompt_field=field)
    await run(request, prepared.requests, view, prompt_field=field)
    return json_response(view.message())


async def count_tokens(request: web.Request) -> web.Response:
    context = request.app[CONTEXT]
    info = require_model(context)
    call = parse_messages(await read_json(request, MessagesBody), context.settings, info, generates=False)
    notify(request, call.notices)
    return json_response({"input_tokens": await count(context, call.chat)})
