"""Draws side by side with native samplers: the same tokens and log-probabilities as one by one, and the target's own distribution."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from server.engine.ports import Draw, Drawn, Row
from server.llama import draws as module
from server.llama.context import Context
from server.llama.model import Model
from server.protocol import SamplingParams
from tests.native import TALE, context, logits

N = 12
WAYS = {
    "greedy": SamplingParams(temperature=0.0),
    "usual": SamplingParams(),
    "hot": SamplingParams(temperature=1.7, top_k=0, top_p=1.0, min_p=0.0),
    "penalties": SamplingParams(repeat_penalty=1.3, presence_penalty=0.2, frequency_penalty=0.1, dry_multiplier=0.8),
    "mirostat 1": SamplingParams(mirostat=1),
    "mirostat 2": SamplingParams(mirostat=2),
    "xtc": SamplingParams(xtc_probability=0.7, xtc_threshold=0.05),
}


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of them, however few CPUs there are, and for every little work."""
    monkeypatch.setattr(module, "usable_cpus", lambda: 4)
    monkeypatch.setattr(module, "WORTH_A_THREAD", 1)


def params(index: int, seed: int) -> SamplingParams:
    return msgspec.structs.replace(list(WAYS.values())[index % len(WAYS)], seed=seed)


def tokens_of(result: Drawn | Exception) -> list[int]:
    assert not isinstance(result, Exception), result
    return [token for token, _ in result]


def run(decoder: Context, steps: int, first: Sequence[int], n_logprobs: Sequence[int | None]) -> None:
    """Twins of every sampler draw one by one and side by side from the same logits; what they say is decoded next."""
    pairs = [[decoder.sampler(params(index, 40 + index)) for index in range(len(first))] for _ in range(2)]
    tokens = list(first)
    for step in range(steps):
        decoder.decode([Row(slot, step, token, True) for slot, token in enumerate(tokens)])
        alone = [[sampler.sample(row, n)] for row, (sampler, n) in enumerate(zip(pairs[0], n_logprobs, strict=True))]
        together = decoder.draw([Draw(sampler, [row], (), n) for row, (sampler, n) in enumerate(zip(pairs[1], n_logprobs, strict=True))])
        assert together == alone, f"step {step}"
        tokens = [tokens_of(result)[0] for result in together]
    for sampler in (*pairs[0], *pairs[1]):
        sampler.close()


def test_the_same_tokens_and_logprobs_as_one_by_one(model: Model, threads: None) -> None:
    words = model.vocab.tokenize(TALE, add_special=False, parse_special=False)[:N]
    with context(model, n_ctx=N * 256, n_slots=N, n_threads=4) as decoder:
        run(decoder, 4, words, [None, 5, 0] * (N // 3))


def test_many_sequences_and_steps(tiny_models: dict[str, Model], threads: None) -> None:
    with context(tiny_models["llama"], n_ctx=48 * 256, n_slots=48, n_threads=4) as decoder:
        run(decoder, 250, range(3, 51), [None, None, None, 3] * 12)


def test_drafts_give_what_step_by_step_drawing_gives(tiny_models: dict[str, Model], threads: None) -> None:
    """Right guesses, wrong ones at every place, and none: the text is the one that is drawn without guesses."""
    with context(tiny_models["llama"], n_ctx=16 * 256, n_slots=16, n_threads=4) as decoder:
        twins = [decoder.sampler(params(index, index)) for index in range(16)]
        texts = [[3 + slot] for slot in range(16)]
        for step in range(6):
            decoder.decode([Row(slot, step, texts[slot][-1], True) for slot in range(16)])
            for slot, sampler in enumerate(twins):
                texts[slot].append(sampler.sample(slot, None)[0])
        rows: list[Row] = []
        draws: list[tuple[range, list[int], int]] = []
        for slot, text in enumerate(texts):
            decoder.truncate(slot, 0)
            right = slot % 6
            drafts = [*text[1 : 1 + right], *((token + 1) % 320 for token in text[1 + right : 6])]
            begin = len(rows)
            rows += [Row(slot, pos, token, True) for pos, token in enumerate([text[0], *drafts])]
            draws.append((range(begin, len(rows)), drafts, right))
        for half in (range(8), range(8, 16)):  # as many rows with logits as one decode gives
            batch = [row for row in rows if row.slot in half]
            decoder.decode(batch)
            samplers = [decoder.sampler(params(slot, slot)) for slot in half]
            shift = draws[half[0]][0][0]
            results = decoder.draw(
                [
                    Draw(sampler, [row - shift for row in draws[slot][0]], draws[slot][1])
                    for slot, sampler in zip(half, samplers, strict=True)
                ]
            )
            for slot, result in zip(half, results, strict=True):
                assert tokens_of(result) == texts[slot][1 : 2 + draws[slot][2]]


def _chi_square(counts: Counter[int], chances: dict[int, float]) -> float:
    total = sum(counts.values())
    assert set(counts) <= set(chances)
    return sum((counts[token] - total * chance) ** 2 / (total * chance) for token, chance in chances.items())


def _chances(values: list[float], n_top: int) -> dict[int, float]:
    """What top-k leaves, at temperature 1."""
    top = sorted(range(len(values)), key=lambda token: -values[token])[:n_top]
    weights = {token: math.exp(values[token] - values[top[0]]) for token in top}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


def test_guesses_leave_the_distribution_as_it_is(tiny_models: dict[str, Model], threads: None) -> None:
    """2,000 seeds, always the same guess: first tokens are spread as the first row says, second ones as the second."""
    n_top, usual = 6, SamplingParams(temperature=1.0, top_k=6, top_p=1.0, min_p=0.0)
    with context(tiny_models["llama"]) as decoder:
        decoder.decode([Row(0, 0, 20, True)])
        first = _chances(logits(decoder, 0), n_top)
        guess = sorted(first, key=lambda token: -first[token])[1]
        decoder.truncate(0, 0)
        decoder.decode([Row(0, 0, 20, True), Row(0, 1, guess, True)])
        second = _chances(logits(decoder, 1), n_top)
        samplers = [decoder.sampler(msgspec.structs.replace(usual, seed=seed)) for seed in range(2000)]
        results = [tokens_of(result) for result in decoder.draw([Draw(sampler, [0, 1], [guess]) for sampler in samplers])]
        for sampler in samplers:
            sampler.close()
    assert all(len(tokens) == 1 + (tokens[0] == guess) for tokens in results)
    limit = 20.5  # 5 degrees of freedom: exceeded by chance once in a thousand
    assert _chi_square(Counter(tokens[0] for tokens in results), first) < limit
    assert _chi_square(Counter(tokens[1] for tokens in results if len(tokens) > 1), second) < limit


def test_a_draw_that_cannot_be_is_an_exception_in_its_place(model: Model, threads: None) -> None:
    with context(model, n_ctx=4 * 256, n_slots=4) as decoder:
        decoder.decode([Row(slot, 0, 100 + slot, slot != 2) for slot in range(4)])
        samplers = [decoder.sampler(WAYS["greedy"]) for _ in range(4)]
        samplers[1].close()
        results: list[Any] = decoder.draw([Draw(sampler, [row]) for row, sampler in enumerate(samplers)])
        assert [type(result) for result in results] == [list, ValueError, ValueError, list]
        for row in (0, 3):
            values = logits(decoder, row)
            assert tokens_of(results[row]) == [values.index(max(values))]
