"""Picks the KV store for a decoder. Knows nothing else."""

from __future__ import annotations

from server.engine.kv import KvStore
from server.engine.kv_pool import PoolStore
from server.engine.kv_streams import StreamStore
from server.engine.ports import Decoder


def store_for(decoder: Decoder, *, n_running: int, ram_limit: int) -> KvStore:
    """The store that fits the decoder's cells. `n_running`: most requests at once, where slots do not set it; `ram_limit`: bytes."""
    if decoder.unified:
        return PoolStore(decoder, n_running=n_running, ram_limit=ram_limit)
    return StreamStore(decoder, ram_limit=ram_limit)
