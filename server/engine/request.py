"""One request's lives: waiting (tokenised, owns nothing), running (owns a slot), put aside (its cells are saved). Knows no queue,
no decoder, no clock.

A prompt and what was generated are one list of tokens; `n_computed` of them are in the slot's cells. Whatever is missing is
computed next, so prefill, decode and starting over after a fault are the same thing: catching up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from server.engine.ports import Matcher, State
from server.protocol import Failed, GenerationRequest, SamplingParams

Phase = Literal["prefill", "decode", "paused"]


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """Tokenised, checked, in the queue. `submitted_at` is in seconds; `order` counts submissions, so it is unique."""

    id: int
    request: GenerationRequest
    tokens: list[int]
    submitted_at: float
    order: int
    position: int = -1
    """Last position told to the client."""
    paused: bool = False
    n_passed: int = 0
    """How often another of its own queue went first; bounded by the policy."""
    matcher: Matcher | None = None
    """What its text is held to."""

    def __post_init__(self) -> None:
        # The text has become tokens; nothing needs it any more.
        self.request = msgspec.structs.replace(self.request, prompt="")

    @property
    def deadline(self) -> float:
        """On the clock of `submitted_at`; infinite if there is none."""
        return deadline_of(self.submitted_at, self.request)


@dataclass(frozen=True, slots=True)
class Follow:
    """Somebody who runs is about to compute the first `n_tokens` of this prompt: they are taken over instead of computed twice."""

    leader: Sequence
    n_tokens: int


@dataclass(slots=True, eq=False)
class Sequence:
    """Running in `slot`. `tokens` = prompt + generated; the first `n_computed` are in the slot's cells."""

    id: int
    request: GenerationRequest
    slot: int
    tokens: list[int]
    n_prompt: int
    n_cached: int
    submitted_at: float
    order: int = 0
    n_computed: int = 0
    paused: bool = False
    drafts: list[int] = field(default_factory=list)
    """Guessed tokens that the next step is to verify; not part of `tokens`."""
    follows: Follow | None = None
    n_preemptions: int = 0
    n_highest: int = 0
    """Most tokens that were ever computed of it: what is below and missing is computed a second time."""
    matcher: Matcher | None = None
    last_step: int = 0
    """The last step that computed something of it; the longest waiting go first where a step cannot take all."""

    @property
    def n_pending(self) -> int:
        """Tokens still to be computed; 1 = the next sample hangs on one row."""
        return len(self.tokens) - self.n_computed

    @property
    def is_runnable(self) -> bool:
        """Whether a step may compute something of it: its reader keeps up, and it waits for nobody's prompt."""
        return not self.paused and self.follows is None

    @property
    def n_predicted(self) -> int:
        return len(self.tokens) - self.n_prompt

    @property
    def is_decoding(self) -> bool:
        return self.n_pending == 1 and len(self.tokens) > self.n_prompt

    @property
    def deadline(self) -> float:
        return deadline_of(self.submitted_at, self.request)

    @property
    def phase(self) -> Phase:
        if self.paused:
            return "paused"
        return "decode" if len(self.tokens) > self.n_prompt else "prefill"

    @property
    def wants_token(self) -> bool:
        """Whether the last row is to be sampled (`max_tokens` 0 = the prompt is evaluated, nothing more)."""
        return self.request.max_tokens != 0

    def n_remain(self, n_ctx: int) -> int:
        """Tokens it may still generate in a slot of `n_ctx` cells (the last one needs no cell of its own)."""
        room = n_ctx - len(self.tokens)
        limit = self.request.max_tokens
        return room if limit < 0 else min(room, limit - self.n_predicted)


@dataclass(slots=True, eq=False)
class PutAside:
    """A sequence that was preempted: it owns no slot, `state` holds its cells (None: they are computed again). It queues by its old
    `order`, so it is at the head of its own queue."""

    sequence: Sequence
    state: State | None
    position: int = -1
    n_passed: int = 0

    @property
    def id(self) -> int:
        return self.sequence.id

    @property
    def request(self) -> GenerationRequest:
        return self.sequence.request

    @property
    def tokens(self) -> list[int]:
        return self.sequence.tokens

    @property
    def order(self) -> int:
        return self.sequence.order

    @property
    def submitted_at(self) -> float:
        return self.sequence.submitted_at

    @property
    def deadline(self) -> float:
        return self.sequence.deadline

    @property
    def paused(self) -> bool:
        return self.sequence.paused


Entry = WaitingRequest | PutAside
"""What a queue holds."""


def deadline_of(submitted_at: float, request: GenerationRequest) -> float:
    return math.inf if request.timeout_s is None else submitted_at + request.timeout_s


def start(waiting: WaitingRequest, slot: int, n_cached: int) -> Sequence:
    """The one way from waiting to running: in `slot`, whose first `n_cached` cells hold the prompt's beginning."""
    return Sequence(
        id=waiting.id,
        request=waiting.request,
        slot=slot,
        tokens=waiting.tokens,
        n_prompt=len(waiting.tokens),
        n_cached=n_cached,
        submitted_at=waiting.submitted_at,
        order=waiting.order,
        n_computed=n_cached,
        n_highest=n_cached,
        paused=waiting.paused,
        matcher=waiting.matcher,
    )


def context_refusal(request_id: int, n_prompt: int, n_ctx: int) -> Failed | None:
    """The refusal of a prompt that can never fit: it and one generated token need `n_prompt` + 1 of `n_ctx` cells."""
    if n_prompt + 1 <= n_ctx:
        return None
    message = f"the request needs {n_prompt} prompt tokens, but the context of one request is {n_ctx} tokens"
    return Failed(id=request_id, kind="context", message=message, n_prompt_tokens=n_prompt, n_ctx=n_ctx)


def penalty_window(sampling: SamplingParams, n_ctx: int) -> int:
    """How many of the last prompt tokens the penalties look at; 0 = none is active."""
    window = 0
    if sampling.repeat_penalty != 1.0 or sampling.presence_penalty or sampling.frequency_penalty:
        window = n_ctx if sampling.repeat_last_n < 0 else sampling.repeat_last_n
    if sampling.dry_multiplier:
        window = max(window, n_ctx if sampling.dry_penalty_last_n < 0 else sampling.dry_penalty_last_n)
    return window
