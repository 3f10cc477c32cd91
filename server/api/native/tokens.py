"""POST /tokenize, /detokenize and /apply-template: text, tokens and prompts without generating."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from server.api.openai.chat import render
from server.api.openai.chat_wire import ChatBody, parse_chat
from server.api.prompts import check_tokens
from server.api.respond import json_response
from server.errors import ClientError
from server.http.body import read_json
from server.http.context import CONTEXT
from server.http.readiness import require_model


class TokenizeBody(msgspec.Struct, kw_only=True):
    content: str | list[int | str] | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    tokens: list[int] | None = None


async def tokenize(request: web.Request) -> web.Response:
    context = request.app[CONTEXT]
    info = require_model(context)
    body = await read_json(request, TokenizeBody)
    if body.content is None:
        raise ClientError("content is missing", param="content")
    content = check_tokens(body.content, info.n_vocab, "content") if isinstance(body.content, list) and body.content else body.content
    if not content:
        return json_response({"tokens": []})
    found = await context.runner.tokenize(content, bool(body.add_special), body.parse_special is not False)
    if not body.with_pieces:
        return json_response({"tokens": found.tokens})
    return json_response({"tokens": [{"id": t, "piece": piece_json(p)} for t, p in zip(found.tokens, found.pieces, strict=True)]})


def piece_json(piece: bytes) -> Any:
    """Text, or a list of byte values where the piece is not text on its own."""
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return list(piece)


async def detokenize(request: web.Request) -> web.Response:
    context = request.app[CONTEXT]
    info = require_model(context)
    body = await read_json(request, DetokenizeBody)
    if body.tokens is None:
        raise ClientError("tokens is missing", param="tokens")
    if body.tokens:
        check_tokens(body.tokens, info.n_vocab, "tokens")
    return json_response({"content": await context.runner.detokenize(body.tokens) if body.tokens else ""})


async def apply_template(request: web.Request) -> web.Response:
    context = request.app[CONTEXT]
    info = require_model(context)
    call = parse_chat(await read_json(request, ChatBody), context.settings, info)
    return json_response({"prompt": await render(context, call)})
