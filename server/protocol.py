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

from server.framing import HEADER as HEADER
from server.framing import MAX_FRAME_BYTES as MAX_FRAME_BYTES

RANDOM_SEED = 0xFFFFFFFF

FinishReason = Literal["stop", "length", "cancelled"]
StopType = Literal["eos", "word", "limit", "none"]


# ---- a request -----------------------------------------------------------------------------------------------------


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """llama.cpp's sampler settings with llama-server's defaults. Ranges are checked by the front (api/), not here."""

    seed: int = RANDOM_SEED
    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: Literal[0, 1, 2] = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    min_keep: int = 0
    samplers: tuple[str, ...] = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_eos: bool = False


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sequence to generate, in the engine's terms; dialects (api/) translate to it.

    `prompt` is text, token ids, or a mixed list of both; text is tokenised in the runner (`add_special`: BOS where the model
    wants one; `parse_special`: control tokens written out in the text count as such). `max_tokens` -1 = until the context
    is full; 0 = evaluate the prompt only. `n_logprobs` None = no log-probabilities, n = the chosen token's and n alternatives'.
    """

    prompt: str | list[int | str]
    add_special: bool = True
    parse_special: bool = True
    max_tokens: int = -1
    stop: tuple[str, ...] = ()
    sampling: SamplingParams = SamplingParams()
    n_logprobs: int | None = None
    cache_prompt: bool = True
    return_tokens: bool = False
    return_progress: bool = False


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
    policy: str = "fcfs"
    max_queue: int = 1024
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


Command = Start | Submit | Cancel | Pause | Resume | Tokenize | Detokenize | GetSlots


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


class Queued(msgspec.Struct, frozen=True, tag=True):
    """Tokenised and waiting. `position` 0 = next; sent again when it changes."""

    id: int
    position: int
    n_prompt_tokens: int


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
    kind: Literal["invalid", "context", "busy", "internal", "died"]
    message: str
    param: str | None = None
    n_prompt_tokens: int = 0
    n_ctx: int = 0


class Tokens(msgspec.Struct, frozen=True, tag=True):
    """Reply to `Tokenize`."""

    id: int
    tokens: tuple[int, ...]
    pieces: tuple[bytes, ...]


class Text(msgspec.Struct, frozen=True, tag=True):
    """Reply to `Detokenize`."""

    id: int
    text: str


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


class Slots(msgspec.Struct, frozen=True, tag=True):
    """Reply to `GetSlots`."""

    id: int
    slots: tuple[SlotState, ...]
    n_waiting: int


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


Event = Queued | Started | Prefilled | Delta | Finished | Failed
Terminal = Finished | Failed


class Step(msgspec.Struct, frozen=True, tag=True):
    """Everything one engine step has to say, in order."""

    events: tuple[Event, ...]
    stats: EngineStats


Message = Loading | Ready | Fatal | Step | Failed | Tokens | Text | Slots
"""`Failed` on its own answers a `Tokenize`, `Detokenize` or `GetSlots` that could not be done."""

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
