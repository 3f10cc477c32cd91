"""Contract: what `llama_decode` answers, what is left after each answer, and which sizes a context takes."""

from __future__ import annotations

import ctypes
import logging
import re
from collections.abc import Sequence
from typing import Any

import pytest

from server.engine.ports import DecodeFault, Row
from server.llama.context import Context
from server.llama.model import Model
from tests.native import TALE, context, logits, rows, run_python


@pytest.fixture
def tiny(tiny_models: dict[str, Model]) -> Model:
    return tiny_models["llama"]


def _raw(decoder: Context, batch: Sequence[Row]) -> int:
    """llama_decode's own answer, without the checks that come before it."""
    unchecked = decoder._check
    decoder._check = lambda rows: None  # type: ignore[method-assign]
    try:
        decoder.decode(batch)
    except DecodeFault as fault:
        return fault.code
    finally:
        decoder._check = unchecked  # type: ignore[method-assign]
    return 0


@pytest.mark.parametrize("excess", [7, 300])
def test_no_room_is_1_and_restores_the_state(tiny: Model, excess: int) -> None:
    with context(tiny) as decoder:
        decoder.decode(rows(0, [7] * 250))
        decoder.decode(rows(1, [9] * 20))
        with pytest.raises(DecodeFault) as caught:
            decoder.decode([*rows(0, [7] * excess, 250), *rows(1, [9], 20)])
        assert (caught.value.code, caught.value.restored) == (1, True)
        assert (decoder.n_tokens(0), decoder.n_tokens(1)) == (250, 20)
        decoder.decode([*rows(0, [7] * 6, 250), *rows(1, [9], 20)])
        after = logits(decoder, 5), logits(decoder, 6)
    with context(tiny) as decoder:
        decoder.decode(rows(0, [7] * 250))
        decoder.decode(rows(1, [9] * 20))
        decoder.decode([*rows(0, [7] * 6, 250), *rows(1, [9], 20)])
        assert (logits(decoder, 5), logits(decoder, 6)) == after


BAD_ROWS = [Row(1, 2, 7, True), Row(1, 20, 400, True), Row(1, 20, -1, True), Row(2, 0, 7, True), Row(-1, 0, 7, True)]


@pytest.mark.parametrize("bad", BAD_ROWS, ids=["position", "token", "negative token", "slot", "negative slot"])
def test_one_bad_row_fails_the_whole_batch(tiny: Model, bad: Row) -> None:
    with context(tiny) as decoder:
        decoder.decode(rows(0, [7] * 10))
        decoder.decode(rows(1, [9] * 20))
        assert _raw(decoder, [*rows(0, [7], 10), bad]) == -1
        assert (decoder.n_tokens(0), decoder.n_tokens(1)) == (10, 20)
        decoder.decode([*rows(0, [7], 10), *rows(1, [9], 20)])


def test_the_library_lets_a_hole_pass_at_the_start_of_a_slot_and_a_position_twice(tiny: Model) -> None:
    """Why the check on our side compares every position."""
    with context(tiny) as decoder:
        assert _raw(decoder, [Row(0, 5, 7, True)]) == 0
        assert _raw(decoder, [Row(1, 0, 7, True), Row(1, 0, 8, True)]) == 0
    with context(tiny) as decoder:
        for batch in ([Row(0, 5, 7, True)], [Row(1, 0, 7, True), Row(1, 0, 8, True)], [], [*rows(1, [7]), *rows(0, [7])]):
            fault = pytest.raises(DecodeFault, decoder.decode, batch)
            assert fault.value.restored and decoder.n_tokens(0) == decoder.n_tokens(1) == 0


def test_an_aborted_decode_keeps_whole_micro_batches(tiny: Model) -> None:
    calls, limit = 0, 10**9

    def give_up(_data: Any) -> bool:
        nonlocal calls
        calls += 1
        return calls > limit

    abort = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)(give_up)
    with context(tiny, n_batch=256, n_ubatch=32) as decoder:
        tiny._n.llama_set_abort_callback(decoder.handle, ctypes.cast(abort, type(_abort_argument(tiny))), None)
        decoder.decode(rows(0, [7] * 96))
        limit, calls = calls // 2, 0  # in the middle of the second of three
        with pytest.raises(DecodeFault) as caught:
            decoder.decode(rows(1, [7] * 96))
        assert (caught.value.code, caught.value.restored) == (2, False)
        assert decoder.n_tokens(1) == 32 and decoder.n_tokens(0) == 96
        limit = 10**9
        decoder.decode(rows(1, [7] * 64, 32))
        resumed = logits(decoder, 63)
    with context(tiny, n_batch=256, n_ubatch=32) as decoder:
        decoder.decode(rows(1, [7] * 96))
        assert logits(decoder, 95) == resumed


def _abort_argument(model: Model) -> Any:
    return model._n.ggml_abort_callback()


def test_rows_keep_their_logits_whatever_the_order_of_slots(tiny: Model) -> None:
    """Micro-batches regroup rows by stream; `llama_get_logits_ith` still answers by the row of the batch."""
    prompts = {0: [5, 6, 7], 1: [8, 9], 2: [10, 11, 12, 13], 3: [14]}
    alone = {}
    with context(tiny, n_ctx=1024, n_slots=4) as decoder:
        for slot, tokens in prompts.items():
            decoder.decode(rows(slot, tokens))
            alone[slot] = logits(decoder, len(tokens) - 1)
    with context(tiny, n_ctx=1024, n_slots=4) as decoder:
        batch = [row for slot, tokens in prompts.items() for row in rows(slot, tokens)]
        decoder.decode(batch)
        for index, row in enumerate(batch):
            if row.logits:
                assert logits(decoder, index) == pytest.approx(alone[row.slot], abs=2e-2)
            else:
                pytest.raises(ValueError, decoder.logits, index)


def test_more_outputs_than_reserved_abort_the_process(tiny_files: dict[str, Any]) -> None:
    code = """
import sys
from server.llama.model import load_model
from tests.native import context, loaded
from server.engine.ports import Row
loaded()
with context(load_model(sys.argv[1]), n_ctx=1024) as decoder:
    print("made", flush=True)
    decoder._check = lambda rows: None
    decoder.decode([Row(0, i, 7, True) for i in range(decoder.max_output_rows + int(sys.argv[2]))])
    print("decoded", flush=True)
"""
    within, beyond = (run_python(code, str(tiny_files["llama"]), excess) for excess in ("0", "1"))
    assert within.stdout.split() == ["made", "decoded"] and within.returncode == 0
    assert beyond.stdout.split() == ["made"] and beyond.returncode != 0
    assert "n_outputs_max" in beyond.stderr


def test_reserving_fewer_outputs_shrinks_the_compute_buffer(lib: Any, model: Model, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "server.llama.native")

    def compute_mebibytes(n_outputs: int) -> float:
        caplog.clear()
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = 2048
        params.n_outputs_max, params.flash_attn_type = n_outputs, 1
        lib.llama_free(lib.llama_init_from_model(model.handle, params))
        sizes = re.findall(r"compute buffer size = +([\d.]+) MiB", "\n".join(record.getMessage() for record in caplog.records))
        return float(sizes[0])

    assert compute_mebibytes(64) < 0.5 * compute_mebibytes(0)


def test_a_slot_is_rounded_up_to_256_cells_and_never_shares(tiny: Model) -> None:
    with context(tiny, n_ctx=1000, n_slots=3) as decoder:
        assert decoder.n_ctx_slot == 512
        decoder.decode(rows(0, [7] * 512))
        decoder.decode(rows(1, [7] * 512))
        assert pytest.raises(DecodeFault, decoder.decode, rows(0, [7], 512)).value.code == 1


def test_the_number_of_threads_can_change_between_steps(model: Model) -> None:
    tokens = model.vocab.tokenize(TALE, add_special=True, parse_special=False)
    with context(model) as decoder:
        for slot, count in ((0, 1), (1, 2)):
            decoder.n_threads = count
            assert decoder.n_threads == count
            decoder.decode(rows(slot, tokens))
            if slot == 0:
                first = logits(decoder, len(tokens) - 1)
        assert logits(decoder, len(tokens) - 1) == first
