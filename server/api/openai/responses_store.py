"""Responses that may be built upon or looked at again: in memory, bounded by count and bytes, each seen by its owner alone. Pure.

What is over the bounds goes oldest first, from the owner who holds most, so that nobody can push out what belongs to another.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import msgspec

MAX_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Stored:
    body: bytes
    """The response, as JSON."""
    inputs: bytes
    """All items that it was made from, those of earlier responses included, as JSON."""
    item_ids: frozenset[str]

    @property
    def response(self) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.body)
        return found

    @property
    def input_items(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = msgspec.json.decode(self.inputs)
        return found

    @property
    def items(self) -> list[dict[str, Any]]:
        """What a next response is built upon."""
        return [*self.input_items, *self.response["output"]]

    @property
    def n_bytes(self) -> int:
        return len(self.body) + len(self.inputs) + sum(map(len, self.item_ids))


class ResponseStore:
    """`most`: responses, of all owners together; 0 = nothing is ever kept."""

    def __init__(self, most: int, max_bytes: int = MAX_BYTES) -> None:
        self.most = most
        self._max_bytes = max_bytes
        self._by_owner: dict[str, OrderedDict[str, Stored]] = {}
        self._bytes: dict[str, int] = {}

    @property
    def n_responses(self) -> int:
        return sum(map(len, self._by_owner.values()))

    @property
    def n_bytes(self) -> int:
        return sum(self._bytes.values())

    def put(self, owner: str, response: dict[str, Any], inputs: list[dict[str, Any]]) -> bool:
        """Whether it is kept: not if it is too large, or nothing is."""
        ids = frozenset(item["id"] for item in (*inputs, *response["output"]) if item.get("id"))
        stored = Stored(msgspec.json.encode(response), msgspec.json.encode(inputs), ids)
        if self.most <= 0 or stored.n_bytes > self._max_bytes:
            return False
        self.delete(owner, response["id"])
        self._by_owner.setdefault(owner, OrderedDict())[response["id"]] = stored
        self._bytes[owner] = self._bytes.get(owner, 0) + stored.n_bytes
        while self.n_responses > self.most:
            self._drop_oldest(max(self._by_owner, key=lambda name: len(self._by_owner[name])))
        while self.n_bytes > self._max_bytes:
            self._drop_oldest(max(self._bytes, key=self._bytes.__getitem__))
        return response["id"] in self._by_owner.get(owner, {})

    def get(self, owner: str, response_id: str) -> Stored | None:
        mine = self._by_owner.get(owner)
        if mine is None or response_id not in mine:
            return None
        mine.move_to_end(response_id)
        return mine[response_id]

    def delete(self, owner: str, response_id: str) -> bool:
        mine = self._by_owner.get(owner)
        stored = mine.pop(response_id, None) if mine is not None else None
        if mine is None or stored is None:
            return False
        self._bytes[owner] -= stored.n_bytes
        if not mine:
            del self._by_owner[owner], self._bytes[owner]
        return True

    def item(self, owner: str, item_id: str) -> dict[str, Any] | None:
        """An item of any response of `owner`, newest first."""
        for stored in reversed(self._by_owner.get(owner, {}).values()):
            if item_id in stored.item_ids:
                return next((item for item in stored.items if item.get("id") == item_id), None)
        return None

    def _drop_oldest(self, owner: str) -> None:
        self.delete(owner, next(iter(self._by_owner[owner])))
