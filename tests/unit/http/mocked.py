"""Requests without a connection: the application around them is the real one, their peer and their key are chosen."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from unittest.mock import Mock

from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from multidict import CIMultiDict

from server.app import create_app
from server.http.auth import API_KEY, KEYS
from server.http.keys import ApiKey, KeyRing
from tests.unit.http.fakes import FakeRenderer, FakeRunner, make_context


class Site:
    def __init__(self, keys: tuple[ApiKey, ...] = (), **settings: Any) -> None:
        self.runner = FakeRunner()
        self.context = make_context(self.runner, FakeRenderer(), [], **settings)
        self.app = create_app(self.context)
        self.app[KEYS] = KeyRing(keys)

    def request(self, key: ApiKey | None = None, *, peer: str = "192.0.2.1", headers: Iterable[tuple[str, str]] = ()) -> web.Request:
        transport = Mock()
        transport.get_extra_info.side_effect = lambda name, default=None: (peer, 4711) if name == "peername" else default
        request = make_mocked_request("POST", "/", headers=CIMultiDict(headers), app=self.app, transport=transport)
        if key is not None:
            request[API_KEY] = key
        return request


def key(name: str, **values: Any) -> ApiKey:
    return ApiKey(name.encode(), name, **values)
