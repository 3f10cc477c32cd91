"""Speeds and counts of one or several sequences, with llama-server's names. Pure but for the clock of `LiveTimings`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from server.http.ports import Progress
from server.protocol import Delta, Finished, Started, Timings


def timings_json(timings: Timings) -> dict[str, Any]:
    t = timings
    return {
        "cache_n": t.cache_n,
        "prompt_n": t.prompt_n,
        "prompt_ms": t.prompt_ms,
        "prompt_per_token_ms": t.prompt_ms / t.prompt_n if t.prompt_n else 0.0,
        "prompt_per_second": 1000 * t.prompt_n / t.prompt_ms if t.prompt_ms else 0.0,
        "predicted_n": t.predicted_n,
        "predicted_ms": t.predicted_ms,
        "predicted_per_token_ms": t.predicted_ms / t.predicted_n if t.predicted_n else 0.0,
        "predicted_per_second": 1000 * t.predicted_n / t.predicted_ms if t.predicted_ms else 0.0,
        "queue_ms": t.queue_ms,
        **({"draft_n": t.draft_n, "draft_n_accepted": t.draft_n_accepted} if t.draft_n else {}),
        **({"n_preemptions": t.n_preemptions} if t.n_preemptions else {}),
    }


def joined(all_timings: Sequence[Timings]) -> Timings:
    """Sequences side by side: counts add up, the longest time counts."""
    if len(all_timings) == 1:
        return all_timings[0]
    return Timings(
        cache_n=sum(t.cache_n for t in all_timings),
        prompt_n=sum(t.prompt_n for t in all_timings),
        prompt_ms=max(t.prompt_ms for t in all_timings),
        predicted_n=sum(t.predicted_n for t in all_timings),
        predicted_ms=max(t.predicted_ms for t in all_timings),
        queue_ms=max(t.queue_ms for t in all_timings),
        draft_n=sum(t.draft_n for t in all_timings),
        draft_n_accepted=sum(t.draft_n_accepted for t in all_timings),
        n_preemptions=sum(t.n_preemptions for t in all_timings),
    )


def usage_json(finished: Sequence[Finished], n: int) -> dict[str, Any]:
    """`n` choices share a prompt, which counts once."""
    prompt = sum(f.n_prompt_tokens for f in finished[::n])
    cached = sum(f.n_cached_tokens for f in finished[::n])
    predicted = sum(f.n_predicted for f in finished)
    return {
        "completion_tokens": predicted,
        "prompt_tokens": prompt,
        "total_tokens": prompt + predicted,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class LiveTimings:
    """For clients that want speeds with every token: measured here, between the events of one sequence."""

    def __init__(self) -> None:
        self._submitted = time.monotonic()
        self._started = self._submitted
        self._first = 0.0
        self._n_prompt = self._n_cached = self._n_predicted = 0

    def event(self, event: Progress) -> None:
        match event:
            case Started():
                self._started = time.monotonic()
                self._n_prompt, self._n_cached = event.n_prompt_tokens, event.n_cached_tokens
            case Delta():
                self._first = self._first or time.monotonic()
                self._n_predicted += max(1, len(event.tokens))

    def now(self) -> dict[str, Any]:
        return timings_json(
            Timings(
                cache_n=self._n_cached,
                prompt_n=self._n_prompt - self._n_cached,
                prompt_ms=1000 * (self._first - self._started),
                predicted_n=self._n_predicted,
                predicted_ms=1000 * (time.monotonic() - self._first),
                queue_ms=1000 * (self._started - self._submitted),
            )
        )
