"""What the streams of chat and completions share: order of chunks, the end of each choice, usage and timings. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from server.api.identity import Identity
from server.api.options import Options
from server.api.timing import LiveTimings, joined, timings_json, usage_json
from server.http.ports import Progress
from server.protocol import Delta, Finished, Prefilled, Queued, TokenLogprob


class OpenAIStreamView(ABC):
    """Usage comes only if it was asked for: last, without choices. Timings come with the last chunk. Subclasses make choices."""

    done_line = True

    def __init__(self, identity: Identity, kind: str, options: Options, n_sequences: int) -> None:
        self._head = identity.members(kind)
        self._options = options
        self._n_sequences = n_sequences
        self._opened: set[int] = set()
        self._finished: dict[int, Finished] = {}
        self._clocks = [LiveTimings() for _ in range(n_sequences)] if options.timings_per_token else []

    @abstractmethod
    def opening(self, index: int) -> dict[str, Any] | None:
        """The choice that comes before all others of its index."""

    @abstractmethod
    def choice(self, index: int, text: str | None, logprobs: Sequence[TokenLogprob] = ()) -> dict[str, Any]:
        """`text` None: this chunk is about something else."""

    def event(self, index: int, event: Progress) -> list[Any]:
        chunks: list[Any] = []
        if index not in self._opened:
            self._opened.add(index)
            opening = self.opening(index)
            if opening is not None:
                chunks.append(self._chunk(opening))
        if self._clocks:
            self._clocks[index].event(event)
        match event:
            case Delta() if event.text or event.logprobs or (event.tokens and self._options.show_tokens):
                chunks.append(self._delta(index, event))
            case Queued() if self._options.show_queue:
                chunks.append(self._chunk(self.choice(index, None), queue=queue_json(event)))
            case Queued() if self._options.base.return_progress:
                chunks.append(self._chunk(self.choice(index, None), queue_position=event.position))
            case Prefilled():
                chunks.append(self._chunk(self.choice(index, None), prompt_progress=progress_json(event)))
            case Finished():
                self._finished[index] = event
                chunks.append(self._chunk({**self.choice(index, None), **ending_json(event)}))
                if len(self._finished) == self._n_sequences and not self._options.include_usage:
                    chunks[-1]["timings"] = self._timings()
        return chunks

    def closing(self) -> list[Any]:
        if not self._options.include_usage:
            return []
        finished = [self._finished[i] for i in sorted(self._finished)]
        return [{**self._head, "choices": [], "usage": usage_json(finished, self._options.n), "timings": self._timings()}]

    def _delta(self, index: int, event: Delta) -> dict[str, Any]:
        choice = self.choice(index, event.text, event.logprobs)
        if self._options.show_tokens:
            choice["tokens"] = event.tokens
        return self._chunk(choice, **({"timings": self._clocks[index].now()} if self._clocks else {}))

    def _chunk(self, choice: dict[str, Any], **members: Any) -> dict[str, Any]:
        return {**self._head, "choices": [choice], **members}

    def _timings(self) -> dict[str, Any]:
        return timings_json(joined([f.timings for f in self._finished.values()]))


def ending_json(finished: Finished) -> dict[str, Any]:
    """How a choice ended. That its time was up is `length` to OpenAI's clients, and said in a member of its own."""
    timeout = {"stop_type": "timeout"} if finished.stop_type == "timeout" else {}
    return {"finish_reason": finished.reason, **timeout}


def queue_json(event: Queued) -> dict[str, Any]:
    return {"position": event.position, "eta_s": event.eta_s}


def progress_json(event: Prefilled) -> dict[str, Any]:
    return {"total": event.total, "cache": event.cached, "processed": event.processed, "time_ms": event.time_ms}
