"""/v1/responses, the handlers: parse, render the prompt, submit, respond; and what is kept of earlier responses."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
from aiohttp import web

from server.api.chatting import count_tokens, prepare
from server.api.generate import run, stream
from server.api.identity import Identity
from server.api.openai.responses_items import REFERENCE, Item, kind_of, listed, stored_form
from server.api.openai.responses_render import ResponsesView
from server.api.openai.responses_store import ResponseStore, Stored
from server.api.openai.responses_wire import ResponsesBody, ResponsesCall, parse_responses
from server.api.respond import json_response
from server.api.sampling import check_range
from server.api.scheduling import admitted
from server.errors import ClientError, NotFound
from server.http.auth import API_KEY
from server.http.body import read_json
from server.http.context import CONTEXT
from server.http.limits import check
from server.http.notices import notify
from server.http.readiness import require_model

RESPONSES = web.AppKey("responses", ResponseStore)
MAX_PAGE = 100


async def create(request: web.Request) -> web.StreamResponse:
    context = request.app[CONTEXT]
    require_model(context)
    check(request)
    body = await read_json(request, ResponsesBody)
    call, items = _parsed(request, body)
    options = admitted(request, call.fields, call.options, n_prompts=1)
    options = dataclasses.replace(options, base=msgspec.structs.replace(options.base, return_tokens=True))
    prepared = await prepare(request, dataclasses.replace(call.chat, options=options))
    store, owner = request.app[RESPONSES], _owner(request)

    def keep(response: dict[str, Any]) -> bool:
        return store.put(owner, response, [stored_form(item) for item in items])

    view = ResponsesView(Identity.of(context, "resp_"), prepared, call, keep if body.store is not False and store.most else None)
    field = call.chat.field_name
    if options.stream:
        return await stream(request, prepared.requests, view, ping_interval=options.ping_interval, prompt_field=field)
    await run(request, prepared.requests, view, prompt_field=field)
    return json_response(view.response)


async def input_tokens(request: web.Request) -> web.Response:
    context = request.app[CONTEXT]
    require_model(context)
    call, _ = _parsed(request, await read_json(request, ResponsesBody))
    return json_response({"object": "response.input_tokens", "input_tokens": await count_tokens(context, call.chat)})


async def retrieve(request: web.Request) -> web.Response:
    if request.query.get("stream") == "true":
        raise ClientError("stream: a response that is over cannot be streamed", param="stream")
    return json_response(_stored(request).response)


async def delete(request: web.Request) -> web.Response:
    response_id = request.match_info["id"]
    if not request.app[RESPONSES].delete(_owner(request), response_id):
        raise _not_found(response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


async def input_items(request: web.Request) -> web.Response:
    items = _stored(request).input_items
    limit, order, after = request.query.get("limit", "20"), request.query.get("order", "desc"), request.query.get("after")
    if not limit.isascii() or not limit.isdigit():
        raise ClientError("limit must be a whole number", param="limit")
    most = int(check_range("limit", int(limit[:9]), 1, MAX_PAGE))
    if order not in ("asc", "desc"):
        raise ClientError("order must be asc or desc", param="order")
    if order == "desc":
        items.reverse()
    if after:
        place = next((i for i, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            raise ClientError("after: there is no item of this id", param="after")
        items = items[place + 1 :]
    page = items[:most]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    return json_response({"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": len(items) > most})


def _parsed(request: web.Request, body: ResponsesBody) -> tuple[ResponsesCall, list[Item]]:
    """The call, and all items that it is made from."""
    context = request.app[CONTEXT]
    earlier = _earlier(request, body.previous_response_id)
    items = [*earlier, *(_resolved(request, item, f"input[{i}]") for i, item in enumerate(listed(body.input)))]
    call = parse_responses(body, items, len(earlier), context.settings, require_model(context))
    notify(request, call.notices)
    return call, items


def _earlier(request: web.Request, previous: str | None) -> list[Item]:
    if previous is None:
        return []
    store = request.app[RESPONSES]
    if not store.most:
        raise ClientError(
            "previous_response_id: this server keeps no responses (--responses-store 0); send the whole conversation in input",
            param="previous_response_id",
        )
    stored = store.get(_owner(request), previous)
    if stored is None:
        raise _not_found(previous, "previous_response_id")
    return [_item(item) for item in stored.items]


def _resolved(request: web.Request, item: Item, where: str) -> Item:
    if kind_of(item) != REFERENCE:
        return item
    found = request.app[RESPONSES].item(_owner(request), item.id or "")
    if found is None:
        raise NotFound(f"{where}: there is no item of the id {(item.id or '')[:80]!r} any more", param=where)
    return _item(found)


def _item(stored: dict[str, Any]) -> Item:
    return msgspec.convert(stored, Item)


def _stored(request: web.Request) -> Stored:
    response_id = request.match_info["id"]
    found = request.app[RESPONSES].get(_owner(request), response_id)
    if found is None:
        raise _not_found(response_id)
    return found


def _not_found(response_id: str, param: str = "id") -> NotFound:
    return NotFound(f"{param}: there is no response of the id {response_id[:80]!r}, or it is no longer kept", param=param)


def _owner(request: web.Request) -> str:
    key = request.get(API_KEY)
    return key.name if key is not None else ""
