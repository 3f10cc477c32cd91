"""Contract: rewinding, copying, saving and restoring the cells of a slot, and what the library cannot do."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from server.engine.ports import DecodeFault
from server.llama.context import Context
from server.llama.model import Model
from tests.native import TALE, context, logits, rows, run_python

TOKENS = [(i * 37) % 300 for i in range(800)]


def _fill(decoder: Context, slot: int, count: int, step: int = 100) -> None:
    for start in range(0, count, step):
        decoder.decode(rows(slot, TOKENS[start : start + min(step, count - start)], start))


def _next(decoder: Context, slot: int, position: int) -> list[float]:
    """Logits after one more token."""
    decoder.decode(rows(slot, [TOKENS[position]], position))
    return logits(decoder, 0)


def test_a_rewound_slot_continues_like_a_fresh_one(tiny_models: dict[str, Model]) -> None:
    with context(tiny_models["llama"], n_ctx=2048) as decoder:
        _fill(decoder, 0, 400)
        assert decoder.truncate(0, 150) and decoder.n_tokens(0) == 150
        _fill(decoder, 1, 150, 50)
        assert _next(decoder, 0, 150) == pytest.approx(_next(decoder, 1, 150), abs=2e-2)


def test_truncate_keeps_nothing_everything_or_says_that_it_cannot(tiny_models: dict[str, Model]) -> None:
    with context(tiny_models["llama"]) as decoder:
        _fill(decoder, 0, 100)
        assert decoder.truncate(0, 100) and decoder.n_tokens(0) == 100
        assert not decoder.truncate(0, 101) and decoder.n_tokens(0) == 100
        assert decoder.truncate(0, 0) and decoder.n_tokens(0) == 0
        assert decoder.truncate(1, 0)


def test_a_recurrent_model_cannot_rewind(tiny_models: dict[str, Model]) -> None:
    model = tiny_models["mamba"]
    with context(model) as decoder:
        assert not decoder.can_rewind
        _fill(decoder, 0, 100)
        assert not model._n.llama_memory_seq_rm(decoder._memory, 0, 50, -1)
        assert decoder.n_tokens(0) == 100
        assert not decoder.truncate(0, 50) and decoder.n_tokens(0) == 0
        _fill(decoder, 0, 100)
        assert decoder.truncate(0, 0) and decoder.n_tokens(0) == 0


def test_a_window_that_moved_on_is_lost_though_seq_rm_says_true(tiny_models: dict[str, Model]) -> None:
    model = tiny_models["gemma3"]
    memory = model._n
    assert model.n_swa == 64
    with context(model, n_ctx=1024, n_slots=1, n_batch=128, n_ubatch=128, swa_full=False) as decoder:
        _fill(decoder, 0, 800)
        assert memory.llama_memory_seq_pos_min(decoder._memory, 0) > 300 - 64
        assert memory.llama_memory_seq_rm(decoder._memory, 0, 300, -1), "the library does not mind"
    with context(model, n_ctx=1024, n_slots=1, n_batch=128, n_ubatch=128, swa_full=False) as decoder:
        _fill(decoder, 0, 800)
        assert not decoder.truncate(0, 300) and decoder.n_tokens(0) == 0
        _fill(decoder, 0, 800)
        assert decoder.truncate(0, 780) and decoder.n_tokens(0) == 780


def test_with_the_full_cache_a_windowed_model_rewinds_exactly(tiny_models: dict[str, Model]) -> None:
    with context(tiny_models["gemma3"], n_ctx=2048) as decoder:
        _fill(decoder, 0, 800)
        assert tiny_models["gemma3"]._n.llama_memory_seq_pos_min(decoder._memory, 0) == 0
        assert decoder.truncate(0, 300)
        _fill(decoder, 1, 300)
        assert _next(decoder, 0, 300) == _next(decoder, 1, 300)


def test_a_whole_stream_is_copied_and_the_copy_is_exact(tiny_models: dict[str, Model]) -> None:
    model = tiny_models["llama"]
    with context(model) as decoder:
        _fill(decoder, 0, 100)
        model._n.llama_memory_seq_cp(decoder._memory, 0, 1, -1, -1)
        assert decoder.n_tokens(1) == 100
        copied = _next(decoder, 1, 100)
        assert copied == _next(decoder, 0, 100)
        assert decoder.truncate(1, 60) and decoder.n_tokens(0) == 101, "the copy is its own"


def test_a_part_of_a_stream_cannot_be_copied(tiny_files: dict[str, Path]) -> None:
    code = """
import sys
from server.llama.model import load_model
from tests.native import context, loaded, rows
n = loaded()
with context(load_model(sys.argv[1])) as decoder:
    decoder.decode(rows(0, [7] * 100))
    print("filled", flush=True)
    n.llama_memory_seq_cp(decoder._memory, 0, 1, 0, int(sys.argv[2]))
    print("copied", flush=True)
"""
    whole, part = (run_python(code, str(tiny_files["llama"]), end) for end in ("-1", "50"))
    assert whole.stdout.split() == ["filled", "copied"]
    assert part.stdout.split() == ["filled"] and part.returncode != 0 and "full KV buffers" in part.stderr


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_saved_and_restored_into_another_slot_the_bits_are_the_same(model: Model, kind: str) -> None:
    n = model._n
    tokens = model.vocab.tokenize(TALE, add_special=True, parse_special=False)
    with context(model, n_slots=3, n_ctx=768, type_k=kind, type_v=kind) as decoder:
        decoder.decode(rows(0, tokens))
        size = n.llama_state_seq_get_size(decoder.handle, 0)
        state = (ctypes.c_uint8 * size)()
        assert n.llama_state_seq_get_data(decoder.handle, state, size, 0) == size
        decoder.decode(rows(1, tokens[::-1]))  # something else in between
        assert n.llama_state_seq_set_data(decoder.handle, state, size, 2) == size
        assert decoder.n_tokens(2) == len(tokens)
        decoder.decode(rows(0, [42], len(tokens)))
        original = logits(decoder, 0)
        decoder.decode(rows(2, [42], len(tokens)))
        assert logits(decoder, 0) == original


def test_a_recurrent_model_holds_a_state_per_slot_without_cells(tiny_models: dict[str, Model]) -> None:
    with context(tiny_models["mamba"]) as decoder:
        _fill(decoder, 0, 700)  # far more than the 256 cells of a slot: it has none
        assert decoder.n_tokens(0) == 700
    with context(tiny_models["llama"]) as decoder:
        pytest.raises(DecodeFault, _fill, decoder, 0, 700)
