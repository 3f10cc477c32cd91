"""Drawing for many sequences one by one against side by side, on one decoder in this process, with a tiny model of a large vocabulary.

Both draw from the same logits in turns, and a step's decode is timed beside them: what drawing takes of a step is what is left to gain.

Usage: python -m tests.bench.bench_sampling [--rounds 5] [--streams 16] [--tokens 32] [--model ANOTHER.gguf]
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import msgspec

from server.engine.ports import Draw, Row
from server.llama.context import Context
from server.llama.model import load_model
from server.protocol import SamplingParams
from tests.bench.common import RATIO_HEAD, Setup, alternate, heading, parser, ratio, setup_from, spread, table
from tests.native import loaded
from tests.tiny import write_attention

N_VOCAB, WIDTH = 150_000, 64
TARGET = 1.5
"""Side by side on two CPUs; nothing is promised where there is one."""
ALONE, TOGETHER = "one by one", "side by side"
WAYS = {
    "default": SamplingParams(ignore_eos=True),
    "greedy": SamplingParams(temperature=0.0, ignore_eos=True),
    "penalties": SamplingParams(repeat_penalty=1.1, ignore_eos=True),
}


class House:
    """`streams` sequences that go on for ever: each step decodes one token of each and draws the next."""

    def __init__(self, decoder: Context, params: SamplingParams, seed: int) -> None:
        source = random.Random(seed)
        self._decoder = decoder
        self._samplers = [decoder.sampler(msgspec.structs.replace(params, seed=source.randrange(1 << 30))) for _ in range(decoder.n_slots)]
        self._tokens = [source.randrange(3, decoder.model.vocab.n_vocab) for _ in self._samplers]
        for slot in range(decoder.n_slots):
            decoder.truncate(slot, 0)

    def close(self) -> None:
        for sampler in self._samplers:
            sampler.close()

    def step(self, position: int, draw: Callable[[list[Draw]], list[int]]) -> tuple[float, float]:
        """Seconds that decoding and drawing took."""
        rows = [Row(slot, position, token, True) for slot, token in enumerate(self._tokens)]
        begun = time.perf_counter()
        self._decoder.decode(rows)
        decoded = time.perf_counter()
        self._tokens = draw([Draw(sampler, [row]) for row, sampler in enumerate(self._samplers)])
        return decoded - begun, time.perf_counter() - decoded


def one_by_one(draws: list[Draw]) -> list[int]:
    return [draw.sampler.sample(draw.rows[0], None)[0] for draw in draws]


def side_by_side(decoder: Context) -> Callable[[list[Draw]], list[int]]:
    def draw(draws: list[Draw]) -> list[int]:
        tokens = []
        for drawn in decoder.draw(draws):
            if isinstance(drawn, Exception):
                raise drawn
            tokens.append(drawn[0][0])
        return tokens

    return draw


Times = dict[tuple[str, str], list[tuple[float, float]]]
"""(way, side): seconds of decoding and of drawing in each step."""


def measure(decoder: Context, setup: Setup) -> Times:
    found: Times = defaultdict(list)
    sides = {ALONE: one_by_one, TOGETHER: side_by_side(decoder)}

    def visit(way: str, n: int) -> None:
        house = House(decoder, WAYS[way], n)
        for position in range(setup.n_predict):
            side = (ALONE, TOGETHER)[(position + n) % 2]  # step by step in turns, so that a busy moment hits both
            times = house.step(position, sides[side])
            if position > 1:
                found[way, side].append(times)
        house.close()

    alternate(list(WAYS), setup.rounds, visit)
    return found


def report(setup: Setup, found: Times, name: str) -> None:
    rows, ratios = [], []
    for way in WAYS:
        middles = {}
        for side in (ALONE, TOGETHER):
            decode, draw = ([1e3 * value for value in values] for values in zip(*found[way, side], strict=True))
            middles[side] = median(draw)
            share = 100 * median(draw) / (median(draw) + median(decode))
            rows.append([way, side, spread(draw, 2), f"{1e3 * median(draw) / setup.streams:.0f}", spread(decode, 2), f"{share:.1f} %"])
        ratios.append(ratio(f"{way}: {ALONE} ÷ {TOGETHER}", middles[ALONE], middles[TOGETHER], TARGET))
    print(heading(f"Drawing for {setup.streams} sequences from {name}", setup))
    print(table(("sampling", "drawn", "all draws of a step, ms", "one draw, us", "decode, ms", "drawing's share of the step"), rows))
    print()
    print(table(RATIO_HEAD, ratios))


def main() -> int:
    made = parser(__doc__, streams=16, n_prompt=1, n_predict=32, rounds=5)
    options = made.parse_args()
    setup = setup_from(options)
    loaded()
    with tempfile.TemporaryDirectory() as directory:
        if options.model is None:
            path = write_attention(Path(directory) / "tiny.gguf", width=WIDTH, n_vocab=N_VOCAB)
            setup = replace(setup, model=path)
        model = load_model(str(setup.model))
        n_ctx = setup.streams * setup.ctx_per_slot
        decoder = Context(model, n_ctx=n_ctx, n_slots=setup.streams, n_threads=setup.threads)
        try:
            report(setup, measure(decoder, setup), f"a vocabulary of {model.vocab.n_vocab:,} tokens")
        finally:
            decoder.close()
            model.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
