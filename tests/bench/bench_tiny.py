"""Our engine, in this process, against llama-batched-bench on random one-layer models, where llama.cpp's own share of a step is smallest.

llama-batched-bench feeds random tokens and draws none; our side plans, decodes, samples, detokenises and emits.

Usage: python -m tests.bench.bench_tiny [--rounds 3] [--streams 16] [--tokens 256]
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from server.engine.policy import policy_named
from server.engine.process import make_engine
from server.engine.request import WaitingRequest
from server.llama.runtime import open_runtime
from server.protocol import GenerationRequest, Queue, RunnerSettings, SamplingParams, Step
from tests.bench.common import RATIO_HEAD, Setup, alternate, heading, parser, ratio, setup_from, spread, table
from tests.bench.servers import peer
from tests.tiny import write_attention

TARGET = 0.8
SHAPES = ((64, 320), (576, 8192))
"""(width, vocabulary) of the models: nearly nothing to compute, and one layer as wide as SmolLM2-135M's."""
BATCH, MICRO_BATCH = 2048, 512
OURS, THEIRS = "capsule's engine", "llama-batched-bench"


@dataclass(frozen=True)
class Found:
    """`decode`: tokens a second while all sequences decode; `step_us`: microseconds of such a step."""

    decode: float
    streams: int

    @property
    def step_us(self) -> float:
        return 1e6 * self.streams / self.decode


def engine_round(setup: Setup, seed: int) -> Found:
    """All sequences at once, greedy, through the engine as a runner would build it."""
    settings = RunnerSettings(
        path=str(setup.model),
        ctx_size=setup.streams * setup.ctx_per_slot,
        parallel=setup.streams,
        batch_size=BATCH,
        ubatch_size=MICRO_BATCH,
        threads=setup.threads,
        device="none",
        spec="off",
        itl_target=60.0,
    )
    runtime = open_runtime(settings, lambda stage, share: None)
    try:
        steps: list[Step | Queue] = []
        engine = make_engine(settings, runtime, policy_named(settings.policy), steps.append)
        source = random.Random(seed)
        sampling = SamplingParams(temperature=0.0, ignore_eos=True)
        for i in range(setup.streams):
            request = GenerationRequest(prompt="", max_tokens=setup.n_predict, sampling=sampling, cache_prompt=False)
            tokens = [source.randrange(3, runtime.vocab.n_vocab) for _ in range(setup.n_prompt)]
            engine.inbox.put(WaitingRequest(id=i, request=request, tokens=tokens, submitted_at=time.perf_counter(), order=i))
        while engine.stats.n_prompt_tokens < setup.streams * setup.n_prompt:
            engine.step()
        began, before = time.perf_counter(), engine.stats.n_predicted_tokens
        while engine.n_ended == 0:
            engine.step()
        seconds, n_tokens = time.perf_counter() - began, engine.stats.n_predicted_tokens - before
        return Found(n_tokens / seconds, setup.streams)
    finally:
        runtime.close()


def peer_round(setup: Setup) -> Found:
    sizes = ["-npp", str(setup.n_prompt), "-ntg", str(setup.n_predict), "-npl", str(setup.streams)]
    batch = ["-c", str(setup.streams * setup.ctx_per_slot), "-b", str(BATCH), "-ub", str(MICRO_BATCH), "-t", str(setup.threads)]
    argv = [str(peer(THEIRS)), "-m", str(setup.model), *sizes, *batch, "--no-kv-unified", "--output-format", "jsonl"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith('{"n_kv_max"')]
    if not lines:
        raise SystemExit(f"{THEIRS} gave no result:\n{done.stderr[-3000:]}")
    return Found(float(json.loads(lines[-1])["speed_tg"]), setup.streams)


def main() -> int:
    setup = setup_from(parser(__doc__, streams=16, n_prompt=32, n_predict=256).parse_args())
    rows, ratios = [], []
    with tempfile.TemporaryDirectory() as directory:
        for width, n_vocab in SHAPES:
            name = f"one layer, {width} wide, {n_vocab} tokens"
            model = write_attention(Path(directory) / f"tiny-{width}.gguf", n_layers=1, width=width, n_vocab=n_vocab)
            found = _compare(replace(setup, model=model))
            for side in (OURS, THEIRS):
                rates, steps = [f.decode for f in found[side]], [f.step_us for f in found[side]]
                rows.append([name, side, spread(rates, 0), spread(steps, 0)])
            middles = [median(f.decode for f in found[side]) for side in (OURS, THEIRS)]
            ratios.append(ratio(f"{name}: tokens/s ÷ {THEIRS}'s", middles[0], middles[1], TARGET))
    print(heading("The engine on one-layer models", replace(setup, model=Path("random weights"))))
    print(table(("model", "side", "decode, tokens/s", "a step, us"), rows))
    print()
    print(table(RATIO_HEAD, ratios))
    return 0


def _compare(setup: Setup) -> dict[str, list[Found]]:
    found: dict[str, list[Found]] = defaultdict(list)

    def measure(side: str, n: int) -> None:
        found[side].append(engine_round(setup, n) if side == OURS else peer_round(setup))

    alternate([OURS, THEIRS], setup.rounds, measure)
    return found


if __name__ == "__main__":
    sys.exit(main())
