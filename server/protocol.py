"""What the front process and a runner say to each other: typed messages in length-prefixed msgpack frames.

A frame is a 4-byte little-endian length followed by one msgpack value (msgspec tagged union). Front -> runner: `Command`;
runner -> front: `Message`. The first command is `Start`; afterwards a runner answers with `Loading`* then `Ready` or `Fatal`.
Every accepted `Submit` gets exactly one terminal event (`Finished` or `Failed`), also on cancel and on an engine fault;
when the runner itself dies, the front makes the terminal events up. Times are seconds of a monotonic clock unless `_ms`.
This module knows neither HTTP nor llama.cpp.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from server.figures import EngineStats as EngineStats
from server.figures import KeyShare as KeyShare
from server.figures import QueuedRequest as QueuedRequest
from server.figures import SlotState as SlotState
from server.framing import HEADER as HEADER
from server.framing import MAX_FRAME_BYTES as MAX_FRAME_BYTES
from server.requests import RANDOM_SEED as RANDOM_SEED
from server.requests import Constraint as Constraint
from server.requests import Flow as Flow
from server.requests import GenerationRequest as GenerationRequest
from server.requests import Priority as Priority
from server.requests import SamplingParams as SamplingParams

FinishReason = Literal["stop", "length", "cancelled"]
StopType = Literal["eos", "word", "limit", "timeout", "none"]
"""`timeout`: the deadline passed while it ran (the finish reason is then `length`)."""


# ---- front -> runner -----------------------------------------------------------------------------------------------


class RunnerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All that one runner needs to load its model and plan its steps. None = decided in the runner from the hardware."""

    path: str
    """File that holds the GGUF: the GGUF itself or a capsule executable."""
    offset: int = 0
    """Where the GGUF starts in `path`, bytes."""
    size: int = 0
    """Length of the GGUF, bytes; 0 = up to the end of the file."""
    ctx_size: int = 0
    """Total KV cells over all slots; 0 = chosen from the model and the free memory."""
    parallel: int | None = None
    batch_size: int = 2048
    ubatch_size: int = 512
    threads: int | None = None
    n_gpu_layers: int | None = None
    device: str = "auto"
    cpu_variant: str | None = None
    deterministic: bool = False
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    kv: str = "auto"
    """`streams`: cells of its own for each slot; `unified`: one pool for all; `auto`: by the fit."""
    kv_reserve: float = 0.25
    """Pool only: the part of what a request may still generate that is kept free for it when it is admitted."""
    cache_ram: int | None = None
    """Bytes of host memory for saved states; None = from the free memory, 0 = none."""
    policy: str = "fair"
    max_queue: int = 1024
    max_queue_tokens: int = 0
    """Prompt tokens that may wait; 0 = any number."""
    max_preemptions: int = 3
    """Times that one request may be put aside for another."""
    itl_target: float = 0.15
    """Seconds between two tokens of a stream that prefill may not exceed."""
    batch_window: float = 0.0
    """Seconds that an idle engine gathers arrivals before it starts."""
    spec: str = "auto"
    """`ngram`, `draft`, `off`; `auto`: a draft model if there is one, else n-grams."""
    spec_draft_max: int = 8
    draft_path: str | None = None
    draft_offset: int = 0
    draft_size: int = 0
    cache_dir: str | None = None
    verbose: bool = False


class Start(msgspec.Struct, frozen=True, tag=True):
    settings: RunnerSettings


class Submit(msgspec.Struct, frozen=True, tag=True):
    id: int
    request: GenerationRequest


class Cancel(msgspec.Struct, frozen=True, tag=True):
    id: int


class Pause(msgspec.Struct, frozen=True, tag=True):
    """The reader of this request is slow: keep its sequence, decode no further until `Resume`."""

    id: int


class Resume(msgspec.Struct, frozen=True, tag=True):
    id: int


class Tokenize(msgspec.Struct, frozen=True, tag=True):
    id: int
    content: str | list[int | str]
    add_special: bool = False
    parse_special: bool = True


class Detokenize(msgspec.Struct, frozen=True, tag=True):
    id: int
    tokens: list[int]


class GetSlots(msgspec.Struct, frozen=True, tag=True):
    id: int


class GetQueue(msgspec.Struct, frozen=True, tag=True):
    id: int
    most: int = 1000
    """Waiting requests to list, next ones first."""


Command = Start | Submit | Cancel | Pause | Resume | Tokenize | Detokenize | GetSlots | GetQueue


# ---- runner -> front -----------------------------------------------------------------------------------------------


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the loaded model and its placement turned out to be."""

    name: str
    architecture: str
    description: str
    n_params: int
    size: int
    """Bytes of the tensors."""
    ftype: str
    n_vocab: int
    vocab_type: int
    n_embd: int
    n_ctx_train: int
    n_ctx: int
    """KV cells in all, over all slots."""
    n_ctx_slot: int
    """The limit of one request, tokens."""
    n_slots: int
    chat_template: str | None
    bos_token: str
    eos_token: str
    add_bos: bool
    cpu_variant: str
    cpu_variant_reason: str
    devices: tuple[str, ...]
    n_layers: int
    n_gpu_layers: int
    n_threads: int
    kv_type_k: str
    kv_type_v: str
    kv_bytes: int
    deterministic: bool
    """Whether the promise holds as loaded (streams, q8_0 cache, CPU), not whether it was asked for."""
    kv_unified: bool = False
    can_rewind: bool = True
    """False: only whole saved states can be reused (recurrent layers)."""
    cache_ram: int = 0
    """Bytes of host memory for saved states."""
    spec: str = "off"
    """`ngram`, `draft` or `off`."""
    load_seconds: float
    pid: int


class Loading(msgspec.Struct, frozen=True, tag=True):
    stage: str
    progress: float
    """0 to 1."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    info: ModelInfo


class Fatal(msgspec.Struct, frozen=True, tag=True):
    """The runner cannot serve (bad file, too little memory); one plain sentence and the way out. It exits afterwards."""

    message: str
    hint: str = ""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """`piece` is the token's bytes (it may be half a character); `top` holds (token, bytes, logprob) by falling logprob."""

    token: int
    piece: bytes
    logprob: float
    top: tuple[tuple[int, bytes, float], ...] = ()


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of tokens and milliseconds; `queue_ms` from submit to the first prefill row."""

    cache_n: int = 0
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    queue_ms: float = 0.0
    draft_n: int = 0
    """Tokens guessed ahead, and how many of them were right."""
    draft_n_accepted: int = 0
    n_preemptions: int = 0


class Queued(msgspec.Struct, frozen=True, tag=True):
    """Tokenised and waiting. `position` 0 = next; sent again when it changes. `eta_s`: seconds until it may start, None = unknown."""

    id: int
    position: int
    n_prompt_tokens: int
    eta_s: float | None = None


class Started(msgspec.Struct, frozen=True, tag=True):
    id: int
    slot: int
    n_prompt_tokens: int
    n_cached_tokens: int


class Prefilled(msgspec.Struct, frozen=True, tag=True):
    """Progress of the prompt, only where `return_progress` asked for it; `processed` includes cached tokens."""

    id: int
    processed: int
    total: int
    cached: int
    time_ms: float


class Delta(msgspec.Struct, frozen=True, tag=True):
    """New text of one sequence (possibly empty when only tokens or logprobs move on)."""

    id: int
    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


class Finished(msgspec.Struct, frozen=True, tag=True):
    """Terminal. `text` of the last delta is already sent; usage counts are exact."""

    id: int
    reason: FinishReason
    stop_type: StopType
    stopping_word: str
    n_prompt_tokens: int
    n_cached_tokens: int
    n_predicted: int
    timings: Timings
    slot: int = -1


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Terminal. `kind` picks the error class in the front."""

    id: int
    kind: Literal["invalid", "context", "busy", "timeout", "internal", "died"]
    """`timeout`: its deadline passed before it started."""
    message: str
    param: str | None = None
    n_prompt_tokens: int = 0
    n_ctx: int = 0
    retry_after_s: float | None = None


class Tokens(msgspec.Struct, frozen=True, tag=True):
    """Reply to `Tokenize`."""

    id: int
    tokens: tuple[int, ...]
    pieces: tuple[bytes, ...]


class Text(msgspec.Struct, frozen=True, tag=True):
    """Reply to `Detokenize`."""

    id: int
    text: str


class Slots(msgspec.Struct, frozen=True, tag=True):
    """Reply to `GetSlots`."""

    id: int
    slots: tuple[SlotState, ...]
    n_waiting: int


class Queue(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Reply to `GetQueue`."""

    id: int
    policy: str
    waiting: tuple[QueuedRequest, ...]
    keys: tuple[KeyShare, ...]
    n_running: int
    n_waiting: int
    n_waiting_tokens: int
    prompt_rate: float
    """Prompt tokens computed a second, lately; 0 = not known yet. `generation_rate`: tokens generated, `finish_rate`: requests ended."""
    generation_rate: float
    finish_rate: float


Event = Queued | Started | Prefilled | Delta | Finished | Failed
Terminal = Finished | Failed


class Step(msgspec.Struct, frozen=True, tag=True):
    """Everything one engine step has to say, in order."""

    events: tuple[Event, ...]
    stats: EngineStats


Message = Loading | Ready | Fatal | Step | Failed | Tokens | Text | Slots | Queue
"""`Failed` on its own answers a `Tokenize`, `Detokenize`, `GetSlots` or `GetQueue` that could not be done."""

_encoder = msgspec.msgpack.Encoder()
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_message = msgspec.msgpack.Decoder(Message).decode


def frame(value: Command | Message) -> bytes:
    """Encode one message with its length in front.

    Raises:
        ValueError: the message is larger than `MAX_FRAME_BYTES`.
    """
    body = _encoder.encode(value)
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {len(body)} bytes exceeds the frame limit of {MAX_FRAME_BYTES}")
    return HEADER.pack(len(body)) + body
