"""Drives the real engine on a real decoder with random submits, cancels, forks, pauses and preemptions, and audits it at every step."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from server.engine.policy import policy_named
from server.engine.ports import DraftModel
from server.engine.process import make_engine
from server.engine.request import PutAside, WaitingRequest
from server.llama.constraint import GrammarConstraints
from server.llama.context import Context
from server.llama.model import Model
from server.protocol import (
    Cancel,
    Delta,
    Event,
    Failed,
    Finished,
    Flow,
    GenerationRequest,
    ModelInfo,
    Pause,
    Queue,
    Resume,
    RunnerSettings,
    SamplingParams,
    Step,
)
from tests.native import context, logits, rows

GREEDY = SamplingParams(temperature=0.0)


@dataclass
class Runtime:
    """What `make_engine` needs of a loaded model."""

    vocab: Any
    decoder: Context
    info: ModelInfo
    constraints: GrammarConstraints
    draft: DraftModel | None = None

    def close(self) -> None: ...


def info_of(decoder: Context, *, n_running: int, spec: str, cache_ram: int) -> ModelInfo:
    zeros = dict.fromkeys(
        "n_params size vocab_type n_embd n_ctx_train n_ctx n_layers n_gpu_layers n_threads kv_bytes load_seconds".split(), 0
    )
    texts = "name architecture description ftype eos_token bos_token cpu_variant cpu_variant_reason kv_type_k kv_type_v".split()
    return ModelInfo(
        **zeros,  # type: ignore[arg-type]
        **dict.fromkeys(texts, ""),  # type: ignore[arg-type]
        n_vocab=decoder.model.vocab.n_vocab,
        n_ctx_slot=decoder.n_ctx_slot,
        n_slots=n_running,
        chat_template=None,
        add_bos=False,
        devices=(),
        deterministic=False,
        spec=spec,
        cache_ram=cache_ram,
        pid=0,
    )


@dataclass
class Said:
    """What one request was told."""

    prompt: list[int]
    request: GenerationRequest
    tokens: list[int] = field(default_factory=list)
    end: Finished | Failed | None = None


class Fuzz:
    """`run` for so many seconds, then `finish`; afterwards `said` holds every request's answer."""

    def __init__(
        self, decoder: Context, seed: int, *, n_running: int, spec: str = "off", cache_ram: int = 1 << 28, **settings: Any
    ) -> None:
        self.rng = random.Random(seed)
        self.decoder = decoder
        self.n_running = n_running
        runtime = Runtime(
            decoder.model.vocab,
            decoder,
            info_of(decoder, n_running=n_running, spec=spec, cache_ram=cache_ram),
            GrammarConstraints(decoder.model.vocab),
        )
        chosen = RunnerSettings(path="", threads=decoder.n_threads, max_queue=24, **{"itl_target": 0.05, **settings})
        self.engine = make_engine(chosen, runtime, policy_named(chosen.policy, max_preemptions=3), self._emit)
        self.scheduler = self.engine._scheduler
        self.said: dict[int, Said] = {}
        self.open: set[int] = set()
        self.n_steps = 0
        self.events: dict[int, list[Event]] = defaultdict(list)
        vocab = decoder.model.vocab.n_vocab
        self._shared = [[self._token(vocab) for _ in range(self.rng.choice((40, 90, 150)))] for _ in range(4)]

    def _token(self, n_vocab: int) -> int:
        return self.rng.randrange(259, n_vocab) if n_vocab > 600 else self.rng.randrange(3, n_vocab)

    def _emit(self, step: Step | Queue) -> None:
        assert isinstance(step, Step), "nobody has asked for the queue"
        for event in step.events:
            said = self.said[event.id]
            assert said.end is None, "nothing comes after the end"
            if isinstance(event, Delta):
                said.tokens += event.tokens
            elif isinstance(event, Finished | Failed):
                said.end = event
                self.open.discard(event.id)

    # ---- what may happen ---------------------------------------------------------------------------------------

    def run(self, seconds: float, least: int = 12) -> None:
        """For so long, and until `least` requests have ended by themselves."""
        until = time.monotonic() + seconds
        while time.monotonic() < until or len(self.whole) < least:
            for _ in range(self.rng.randrange(3)):
                self._act()
            self.step()

    def step(self) -> bool:
        busy = self.engine.step()
        self.n_steps += 1
        self.audit()
        return busy

    def finish(self) -> None:
        for request in list(self.open):
            self.engine.inbox.put(Resume(request))
        for _ in range(200_000):
            if not self.step() and not self.open:
                return
        raise AssertionError(f"{len(self.open)} requests do not come to an end")

    def _act(self) -> None:
        rng = self.rng
        action = rng.random()
        some = rng.choice(sorted(self.open)) if self.open else None
        if action < 0.45 and len(self.open) < 3 * self.n_running:
            self._submit(rng.choice(self._shared) if rng.random() < 0.6 else [], rng.randrange(1, 60))
        elif some is None:
            return
        elif action < 0.55:
            self.engine.inbox.put(Cancel(some))
        elif action < 0.62 and len(self.open) < 3 * self.n_running:
            self._submit(self._fork(some), rng.randrange(1, 10))
        elif action < 0.68:
            self.engine.inbox.put(Pause(some))
        elif action < 0.80:
            self.engine.inbox.put(Resume(some))
        elif action < 0.84 and some in self.scheduler.running:
            self.scheduler.put_aside(self.scheduler.running[some])

    def _fork(self, request: int) -> list[int]:
        """Another's prompt with what it has said so far, as the next turn of a conversation would begin."""
        said = self.said[request]
        return (said.prompt + said.tokens)[: self.decoder.n_ctx_slot // 2]

    def _submit(self, beginning: list[int], n_own: int) -> None:
        rng, number = self.rng, len(self.said)
        vocab = self.decoder.model.vocab.n_vocab
        prompt = (beginning + [self._token(vocab) for _ in range(n_own)])[-(self.decoder.n_ctx_slot - 2) :]
        request = GenerationRequest(
            prompt="",
            max_tokens=rng.choice((0, 1, 5, 12, 30)),
            sampling=GREEDY,
            return_tokens=True,
            cache_prompt=rng.random() < 0.9,
            priority=rng.choice(("interactive", "normal", "normal", "batch")),
            flow=Flow(key=rng.choice("abc"), session=rng.choice("xy")),
            timeout_s=rng.choice((None, None, None, 2.0)),
            namespace=rng.choice(("", "", "salt")),
        )
        self.said[number] = Said(list(prompt), request)
        self.open.add(number)
        self.engine.inbox.put(WaitingRequest(number, request, prompt, time.perf_counter(), number))

    # ---- what has to hold --------------------------------------------------------------------------------------

    def audit(self) -> None:
        """The scheduler's account against what the native cache says it holds."""
        scheduler, decoder = self.scheduler, self.decoder
        running = list(scheduler.running.values())
        for sequence in running:
            assert decoder.n_tokens(sequence.slot) == sequence.n_computed, "cells of a running sequence"
        figures = scheduler.kv.figures()
        assert figures.n_used <= figures.n_cells and figures.ram_bytes <= figures.ram_limit
        held = sum(decoder.n_tokens(slot) for slot in range(decoder.n_slots))
        assert figures.n_used == held if not decoder.unified else figures.n_used <= held
        aside = [entry for entry in scheduler.policy if isinstance(entry, PutAside)]
        assert len(running) + len(aside) == len(self.engine._stepper.live)

    @property
    def whole(self) -> list[Said]:
        """Requests that ended by themselves, with text."""
        return [
            said for said in self.said.values() if isinstance(said.end, Finished) and said.end.stop_type in ("limit", "eos") and said.tokens
        ]

    def check_ends(self) -> None:
        """Everybody ended once, nobody by a fault."""
        for said in self.said.values():
            assert said.end is not None
            if isinstance(said.end, Failed):
                assert said.end.kind in ("busy", "timeout"), said.end
            elif said.end.stop_type == "limit":
                assert len(said.tokens) == said.end.n_predicted


def solo(model: Model, said: Said, kind: str) -> list[int]:
    """The same request alone: greedy tokens from a fresh context of one slot, its prompt computed at once."""
    n_cells = len(said.prompt) + len(said.tokens)
    with context(model, n_ctx=n_cells, n_slots=1, type_k=kind, type_v=kind) as decoder:
        decoder.decode(rows(0, said.prompt))
        row, tokens = len(said.prompt) - 1, []
        for i in range(len(said.tokens)):
            values = logits(decoder, row)
            tokens.append(max(range(len(values)), key=values.__getitem__))
            if i + 1 < len(said.tokens):
                decoder.decode(rows(0, tokens[-1:], len(said.prompt) + i))
                row = 0
        return tokens
