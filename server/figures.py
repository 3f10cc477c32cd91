"""Numbers about a runner as others see them: slots, queue, counters. Numbers and names, never text; knows no pipe and no engine."""

from __future__ import annotations

from typing import Literal

import msgspec

from server.requests import Priority


class SlotState(msgspec.Struct, frozen=True, kw_only=True):
    """One slot as `/slots` shows it: numbers only, never text."""

    id: int
    n_ctx: int
    state: Literal["idle", "prefill", "decode", "paused"]
    request: int = -1
    n_prompt_tokens: int = 0
    n_prompt_processed: int = 0
    n_cached_tokens: int = 0
    n_decoded: int = 0
    n_remain: int = -1
    n_kv_tokens: int = 0


class QueuedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One waiting request as `/queue` shows it: numbers and names, never text."""

    id: int
    position: int
    priority: Priority
    key: str
    n_prompt_tokens: int
    waited_s: float
    eta_s: float | None = None
    is_preempted: bool = False


class KeyShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one key has in work and has been served. `served` is in weighted tokens: (prompt computed + 2 x generated) / weight."""

    key: str
    n_running: int
    n_waiting: int
    served: float


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the runner started and gauges of now; the front turns them into metrics."""

    n_running: int = 0
    n_waiting: int = 0
    kv_used_tokens: int = 0
    kv_total_tokens: int = 0
    n_steps: int = 0
    n_prompt_tokens: int = 0
    n_cached_tokens: int = 0
    n_predicted_tokens: int = 0
    decode_seconds: float = 0.0
    """Wall time inside llama_decode, in all."""
    step_seconds: float = 0.0
    """Wall time of whole steps, in all."""
    sample_seconds: float = 0.0
    n_waiting_tokens: int = 0
    n_swapped: int = 0
    """Requests that were put aside and wait to go on; part of `n_waiting`."""
    n_preemptions: int = 0
    n_moves: int = 0
    """Running sequences moved to another slot so that slots stay dense."""
    n_shared_tokens: int = 0
    """Of the cached tokens: copied from another sequence or a saved state."""
    n_recomputed_tokens: int = 0
    """Prompt or generated tokens computed again after a preemption or a fault."""
    n_saved_states: int = 0
    cache_ram_bytes: int = 0
    cache_ram_limit: int = 0
    n_draft_tokens: int = 0
    n_draft_accepted: int = 0
    n_threads: int = 0
    retry_after_s: float = 1.0
    """When a slot may be free for somebody who comes now."""
