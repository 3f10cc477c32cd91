"""A runner that plays scripts, a renderer that joins messages, and the context around them."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

from server.http.context import AppContext
from server.http.metrics import Metrics
from server.http.ports import Progress
from server.protocol import (
    Delta,
    EngineStats,
    Fatal,
    Finished,
    GenerationRequest,
    KeyShare,
    Loading,
    ModelInfo,
    Queue,
    Queued,
    QueuedRequest,
    Slots,
    SlotState,
    Started,
    Timings,
    TokenLogprob,
    Tokens,
)
from server.settings import Settings

N_VOCAB = 1000
PAGE = b"<!doctype html><html><style>b{}</style><body><script>'use strict';\r\n1;\n</script></body></html>"
SECRET = "launch-secret"

INFO = ModelInfo(
    name="Tiny", architecture="llama", description="a tiny model", n_params=10, size=20, ftype="Q4_1", n_vocab=N_VOCAB, vocab_type=2,
    n_embd=8, n_ctx_train=2048, n_ctx=8192, n_ctx_slot=2048, n_slots=4, chat_template="{{ messages }}", bos_token="<s>", eos_token="</s>",
    add_bos=True, cpu_variant="haswell", cpu_variant_reason="it works", devices=("CPU",), n_layers=2, n_gpu_layers=0, n_threads=2,
    kv_type_k="f16", kv_type_v="f16", kv_bytes=1024, deterministic=False, load_seconds=0.5, pid=77,
)  # fmt: skip


class State(enum.Enum):
    LOADING = 1
    READY = 2
    RESTARTING = 3
    FAILED = 4
    STOPPED = 5


Step = Progress | Exception | float
"""An event, a failure to raise, or seconds to wait."""
Script = Callable[[GenerationRequest], Iterable[Step]]

HANG = 3600.0


def says(*texts: str, reason: str = "stop", stop_type: str = "eos", n_prompt: int = 5, n_cached: int = 2, word: str = "") -> Script:
    """A script: queued with a slot free, started, one delta per text, finished."""

    def script(request: GenerationRequest) -> Iterable[Step]:
        yield Queued(1, 0, n_prompt, 0.0)
        yield Started(1, 3, n_prompt, n_cached)
        for i, text in enumerate(texts):
            lp = None if request.n_logprobs is None else logprob(i, text, request.n_logprobs)
            yield Delta(1, text, (i,) if request.return_tokens else (), (lp,) if lp else ())
        yield finished(len(texts), reason=reason, stop_type=stop_type, n_prompt=n_prompt, n_cached=n_cached, word=word)

    return script


def logprob(token: int, text: str, n: int) -> TokenLogprob:
    alternatives = ((token, text.encode(), -0.5), (token + 1, b"\xf0\x9f", -1.5), (token + 2, b"z", float("-inf")))
    return TokenLogprob(token, text.encode(), -0.5, alternatives[:n])


def finished(n: int, *, reason: str = "stop", stop_type: str = "eos", n_prompt: int = 5, n_cached: int = 2, word: str = "") -> Finished:
    return Finished(
        1, reason, stop_type, word, n_prompt, n_cached, n,  # type: ignore[arg-type]
        Timings(cache_n=n_cached, prompt_n=n_prompt - n_cached, prompt_ms=30.0, predicted_n=n, predicted_ms=50.0, queue_ms=1.0), 3,
    )  # fmt: skip


class FakeGeneration:
    def __init__(self, runner: FakeRunner, request: GenerationRequest) -> None:
        self._runner = runner
        self._steps = iter(runner.script(request))
        self.request = request
        self.over = False

    async def __aenter__(self) -> Self:
        if self._runner.refusal is not None:
            raise self._runner.refusal
        self._runner.running.append(self)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._runner.running.remove(self)
        if not self.over:
            self._runner.cancelled.append(self.request)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Progress:
        for step in self._steps:
            if isinstance(step, float):
                await asyncio.sleep(step)
                continue
            await asyncio.sleep(0)
            if isinstance(step, Exception):
                self.over = True
                raise step
            self.over = isinstance(step, Finished)
            return step
        raise StopAsyncIteration


class FakeRunner:
    def __init__(self) -> None:
        self.state = State.READY
        self.loading = Loading("tensors", 0.25)
        self.info: ModelInfo | None = INFO
        self.stats = EngineStats(n_running=1, n_waiting=2, kv_used_tokens=30, kv_total_tokens=8192, n_prompt_tokens=7, n_predicted_tokens=9)
        self.fatal: Fatal | None = None
        self.restarts = 0
        self.step_age_s = 0.0
        self.stalled = False
        self.script: Script = says("Hel", "lo")
        self.refusal: Exception | None = None
        self.requests: list[GenerationRequest] = []
        self.running: list[FakeGeneration] = []
        self.cancelled: list[GenerationRequest] = []

    def generate(self, request: GenerationRequest) -> FakeGeneration:
        self.requests.append(request)
        return FakeGeneration(self, request)

    async def tokenize(self, content: str | list[int | str], add_special: bool = False, parse_special: bool = True) -> Tokens:
        """A token per byte, of that byte's value; ids stay; BOS is 1."""
        parts = [content] if isinstance(content, str) else content
        tokens = [1] if add_special else []
        for part in parts:
            tokens += [part] if isinstance(part, int) else list(part.encode())
        return Tokens(1, tuple(tokens), tuple(bytes([t % 256]) for t in tokens))

    async def detokenize(self, tokens: list[int]) -> str:
        return bytes(t % 256 for t in tokens).decode("utf-8", "replace")

    async def slots(self) -> Slots:
        busy = SlotState(id=0, n_ctx=2048, state="decode", request=9, n_prompt_tokens=5, n_decoded=2, n_kv_tokens=7)
        return Slots(1, (busy, SlotState(id=1, n_ctx=2048, state="idle")), 0)

    async def queue(self, most: int = 1000) -> Queue:
        waiting = (
            QueuedRequest(id=4, position=0, priority="interactive", key="key 1", n_prompt_tokens=50, waited_s=1.5, eta_s=0.5),
            QueuedRequest(id=7, position=1, priority="batch", key="key 2", n_prompt_tokens=60, waited_s=9.0, is_preempted=True),
            QueuedRequest(id=8, position=2, priority="batch", key="key 3", n_prompt_tokens=70, waited_s=0.1),
        )
        keys = tuple(KeyShare(key=f"key {i}", n_running=i, n_waiting=1, served=10.0 * i) for i in (1, 2, 3))
        return Queue(
            id=1, policy="fair", waiting=waiting[:most], keys=keys, n_running=6, n_waiting=3, n_waiting_tokens=180,
            prompt_rate=200.0, generation_rate=50.0, finish_rate=0.5,
        )  # fmt: skip


class FakeRenderer:
    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.failure: Exception | None = None

    async def render(
        self, messages: list[dict[str, Any]], /, *, add_generation_prompt: bool = True, continue_final: bool = False, **variables: Any
    ) -> str:
        if self.failure is not None:
            raise self.failure
        self.calls.append({"messages": messages, "add": add_generation_prompt, "continue": continue_final, **variables})
        return "".join(f"<{m['role']}>{m.get('content')}" for m in messages) + ("<assistant>" if add_generation_prompt else "")


def make_context(runner: FakeRunner, renderer: FakeRenderer, quits: list[str], **settings: Any) -> AppContext:
    chosen = Settings(**settings)
    return AppContext(
        settings=chosen,
        origins=dict.fromkeys(settings, "flag"),
        runner=runner,
        renderer=renderer,
        metrics=Metrics(runner, "1.2.3", "tiny"),
        model_name="tiny",
        launch_secret=SECRET,
        nonce="nonce",
        quit=lambda: quits.append("quit"),
        licenses=lambda: "Apache-2.0 and others",
        page=PAGE,
        version="1.2.3",
        model_path="/models/tiny.gguf",
    )
