"""Whose a request is: its key, the client's address, and who it shares cached prefixes with. Promotes nobody. Knows no dialect."""

from __future__ import annotations

import msgspec
from aiohttp import web

from server.addresses import Proxies, client_label
from server.errors import Forbidden
from server.http.auth import API_KEY, KEYS
from server.http.context import CONTEXT
from server.http.keys import ApiKey
from server.protocol import Flow, GenerationRequest

PROXIES = web.AppKey("proxies", Proxies)


def attributed(request: web.Request, generation_request: GenerationRequest, *, explicit_priority: bool) -> GenerationRequest:
    """The request with its flow, namespace and class as its key allows; session and cache salt (`namespace`) are kept.

    `explicit_priority`: whether the client has named a class. A default above the key's highest class becomes that class.

    Raises:
        Forbidden: the class that the client has named is above the highest one of its key.
    """
    key = request.get(API_KEY)
    given = generation_request
    flow = Flow(address=client_label(client_address(request)), session=given.flow.session)
    if key is None:
        return msgspec.structs.replace(given, flow=flow)
    return msgspec.structs.replace(
        given,
        flow=msgspec.structs.replace(flow, key=key.name, weight=key.weight, max_running=key.running or 0),
        namespace=f"{key.name}\n{given.namespace}" if _isolates(request) else given.namespace,
        priority=given.priority if key.allows(given.priority) else _capped(given, key, explicit_priority),
    )


def client_address(request: web.Request) -> str:
    """Where the request came from: its peer, or who a trusted proxy says is behind it."""
    headers = request.headers
    return request.app[PROXIES].client(request.remote or "", headers.getall("X-Forwarded-For", ()), headers.getall("Forwarded", ()))


def _capped(given: GenerationRequest, key: ApiKey, explicit: bool) -> str:
    if explicit:
        raise Forbidden(f"priority: this API key may use {key.max_class} at most, not {given.priority}", param="priority")
    return key.max_class


def _isolates(request: web.Request) -> bool:
    match request.app[CONTEXT].settings.cache_isolation:
        case "key":
            return True
        case "none":
            return False
        case _:
            return request.app[KEYS].n_accounts > 1
