"""Contract: with a q8_0 cache a sequence computes the same bits whatever happens around it; otherwise it stays near-greedy."""

from __future__ import annotations

import pytest

from server.engine.ports import Row
from server.llama import context as context_module
from server.llama.context import DETERMINISTIC_KV_TYPE, Context
from server.llama.model import Model
from server.protocol import SamplingParams
from tests.native import NEAR, TALE, context, greedy_distances, logits, rows

N_NEW = 4
Said = tuple[list[int], list[list[float]]]
"""Greedy tokens, and the logits that each was drawn from."""


def _prompt(model: Model, length: int, shift: int) -> list[int]:
    tokens = model.vocab.tokenize(TALE * 30, add_special=True, parse_special=False)
    return tokens[shift : shift + length]


def _prefill(decoder: Context, slot: int, prompt: list[int], chunk: int) -> list[float]:
    for start in range(0, len(prompt), chunk):
        part = prompt[start : start + chunk]
        decoder.decode(rows(slot, part, start))
    return logits(decoder, len(part) - 1)


def _prefill_from(decoder: Context, slot: int, start: int, tokens: list[int]) -> list[float]:
    decoder.decode(rows(slot, tokens, start))
    return logits(decoder, len(tokens) - 1)


def _best(values: list[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


def _go_on(decoder: Context, slot: int, token: int, position: int, n_steps: int) -> list[list[float]]:
    """Feed a token and what greedily follows; the logits of each step."""
    seen: list[list[float]] = []
    for step in range(n_steps):
        decoder.decode(rows(slot, [token], position + step))
        seen.append(logits(decoder, 0))
        token = _best(seen[-1])
    return seen


def _alone(model: Model, prompt: list[int], kind: str, chunk: int, n_threads: int = 1) -> Said:
    """What greedily follows a prompt."""
    with context(model, n_ctx=768, n_slots=1, n_threads=n_threads, type_k=kind, type_v=kind) as decoder:
        first = _prefill(decoder, 0, prompt, chunk)
        seen = [first, *_go_on(decoder, 0, _best(first), len(prompt), N_NEW - 1)]
        return [_best(values) for values in seen], seen


def _in_a_crowd(model: Model, prompt: list[int], kind: str, n_threads: int = 1) -> Said:
    """The same beside three others of other lengths, prefilled in smaller chunks."""
    others = {0: _prompt(model, 40, 3), 1: _prompt(model, 13, 11), 3: _prompt(model, 70, 5)}
    with context(model, n_ctx=768 * 4, n_slots=4, n_threads=n_threads, type_k=kind, type_v=kind) as decoder:
        for slot, tokens in others.items():
            _prefill(decoder, slot, tokens, 512)
        positions = {slot: len(tokens) for slot, tokens in others.items()}
        seen: list[list[float]] = []
        done = 0
        while done < len(prompt):  # 90 rows of the prompt beside one row of each other
            part = prompt[done : done + 90]
            mine = [Row(2, done + i, token, i == len(part) - 1) for i, token in enumerate(part)]
            before = [Row(slot, positions[slot], 7, True) for slot in (0, 1)]
            decoder.decode([*before, *mine, Row(3, positions[3], 7, True)])
            for slot in positions:
                positions[slot] += 1
            done += len(part)
            seen = [logits(decoder, len(before) + len(part) - 1)]
        tokens = [_best(seen[-1])]
        for step in range(N_NEW - 1):
            batch = [Row(0, positions[0], 7, True), Row(2, len(prompt) + step, tokens[-1], True), Row(3, positions[3], 7, True)]
            decoder.decode(batch)
            positions[0] += 1
            positions[3] += 1
            seen.append(logits(decoder, 1))
            tokens.append(_best(seen[-1]))
        return tokens, seen


@pytest.mark.parametrize(("length", "n_threads"), [(40, 2), (530, 1)])
def test_with_q8_0_the_bits_do_not_depend_on_the_company(model: Model, length: int, n_threads: int) -> None:
    """530 cells are past the 512 where f16 attention takes another path for single queries."""
    prompt = _prompt(model, length, 1)
    assert _in_a_crowd(model, prompt, DETERMINISTIC_KV_TYPE, n_threads) == _alone(model, prompt, DETERMINISTIC_KV_TYPE, 512)


@pytest.fixture(scope="module")
def said_alone(model: Model) -> Said:
    """What `_prompt(model, 200, 1)` is followed by with the promised cache, one thread, and the whole prompt at once."""
    return _alone(model, _prompt(model, 200, 1), DETERMINISTIC_KV_TYPE, 512)


@pytest.mark.parametrize(("chunk", "n_threads"), [(20, 1), (64, 2), (512, 2)])
def test_with_q8_0_chunks_and_threads_change_no_bit(model: Model, said_alone: Said, chunk: int, n_threads: int) -> None:
    assert _alone(model, _prompt(model, 200, 1), DETERMINISTIC_KV_TYPE, chunk, n_threads) == said_alone


def test_with_q8_0_a_pause_and_a_cache_hit_change_no_bit(model: Model, said_alone: Said) -> None:
    """Put aside in the middle and taken up in another slot while others run; and on the beginning of another's cells."""
    prompt, kind = _prompt(model, 200, 1), DETERMINISTIC_KV_TYPE
    tokens, seen = said_alone
    with context(model, n_ctx=512 * 4, n_slots=4, type_k=kind, type_v=kind) as decoder:
        assert _prefill(decoder, 0, prompt, 64) == seen[0]
        assert _go_on(decoder, 0, tokens[0], 200, 1) == seen[1:2]
        state = decoder.save(0)
        assert state is not None
        decoder.truncate(0, 0)
        _prefill(decoder, 0, _prompt(model, 70, 5), 512)
        assert decoder.restore(3, state)
        assert _go_on(decoder, 3, tokens[1], 201, 2) == seen[2:4]
        # A cache hit: 150 of the cells come from a slot that has gone on with something else, through host memory.
        assert decoder.truncate(3, 150)
        _prefill_from(decoder, 3, 150, _prompt(model, 60, 20))
        assert decoder.copy(3, 1, 150)
        assert _prefill_from(decoder, 1, 150, prompt[150:]) == seen[0]
        assert _go_on(decoder, 1, tokens[0], 200, 3) == seen[1:]


def test_with_q8_0_the_librarys_own_copy_changes_no_bit(model: Model, said_alone: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_module, "_COPY_BYTES", 0)
    prompt, kind = _prompt(model, 200, 1), DETERMINISTIC_KV_TYPE
    tokens, seen = said_alone
    with context(model, n_ctx=512 * 3, n_slots=3, type_k=kind, type_v=kind) as decoder:
        _prefill(decoder, 2, prompt, 512)
        assert decoder.copy(2, 0, 199)
        assert _prefill_from(decoder, 0, 199, prompt[199:]) == seen[0]
        assert _go_on(decoder, 0, tokens[0], 200, 3) == seen[1:]


def test_with_f16_batched_text_is_near_greedy_and_foreign_text_is_not(model: Model) -> None:
    prompt = _prompt(model, 120, 1)
    tokens, _ = _in_a_crowd(model, prompt, "f16")
    assert max(greedy_distances(model, prompt, tokens)) <= NEAR
    assert max(greedy_distances(model, prompt, tokens[::-1])) > NEAR
    assert max(greedy_distances(model, _prompt(model, 90, 17), tokens)) > NEAR


def test_the_native_greedy_draw_is_the_maximum(model: Model) -> None:
    with context(model) as decoder:
        prompt = _prompt(model, 40, 0)
        decoder.decode(rows(0, prompt))
        sampler = decoder.sampler(SamplingParams(temperature=0.0))
        assert sampler.sample(len(prompt) - 1, None)[0] == _best(logits(decoder, len(prompt) - 1))
        sampler.close()
