"""Slots and context from numbers: what is chosen fits, what is asked for is respected or refused with a way out that works."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import OperatorError
from server.llama.fit import MIN_CTX, MIN_SLOTS, PAD, WANTED_CTX, WANTED_SLOTS, Fit, Needs, cache_ram, fit, layer_cells, n_ids

GIB = 1 << 30
SMOLLM2 = Needs(8192, cell_bytes=23040, slot_bytes=196608, fixed_bytes=96 << 20, weight_bytes=92 << 20, total_weight_bytes=92 << 20)
EIGHT_B = Needs(131072, cell_bytes=131072, slot_bytes=513024, fixed_bytes=200 << 20, weight_bytes=5 * GIB, total_weight_bytes=5 * GIB)


def test_cells_of_smollm2() -> None:
    assert layer_cells([3] * 30, 64, 64, 2.0, 2.0) == 23040
    assert layer_cells([3] * 30, 64, 64, 34 / 32, 34 / 32) == 12240
    assert layer_cells([8, 0, 0, 8], 128, 128, 2.0, 2.0) == 8192
    assert layer_cells([1] * 27, 576, 0, 2.0, 2.0) == 31104


def test_a_small_model_gets_its_sixteen_slots_without_a_slow_start() -> None:
    found = fit(SMOLLM2, 20 * GIB)
    assert found.n_slots == WANTED_SLOTS and found.n_ctx_slot == 4096
    assert found.cache_bytes <= 3 * GIB // 2


def test_a_large_model_on_a_small_machine_gets_fewer_slots_before_a_refusal() -> None:
    assert fit(EIGHT_B, 64 * GIB).n_slots == 16
    tight = fit(EIGHT_B, 8 * GIB)
    assert MIN_SLOTS <= tight.n_slots < 16 and tight.n_ctx_slot == MIN_CTX
    with pytest.raises(OperatorError) as caught:
        fit(EIGHT_B, 5 * GIB + (512 << 20))
    assert caught.value.message == (
        "4 slots of 2048 tokens, the least that makes sense, would take 1.2 GiB, but beside the weights (5.0 GiB) 512 MiB are free"
    )


def test_context_is_total_and_shared_by_the_slots() -> None:
    found = fit(SMOLLM2, 20 * GIB, ctx_size=4096, parallel=2)
    assert (found.n_slots, found.n_ctx_slot, found.n_ctx) == (2, 2048, 4096)
    assert fit(SMOLLM2, 20 * GIB, ctx_size=8192).n_slots == 4
    assert fit(SMOLLM2, 20 * GIB, ctx_size=32768).n_slots == 16
    assert fit(SMOLLM2, 20 * GIB, ctx_size=1000, parallel=3).n_ctx_slot == 512
    assert fit(SMOLLM2, 20 * GIB, parallel=1).n_slots == 1


def test_a_slot_is_not_longer_than_the_model_was_trained_for() -> None:
    found = fit(SMOLLM2, 20 * GIB, ctx_size=100_000, parallel=2)
    assert found.n_ctx_slot == 8192 and "trained" in found.why


@pytest.mark.parametrize("parallel", [0, -1, 257])
def test_an_impossible_number_of_slots_is_refused(parallel: int) -> None:
    with pytest.raises(OperatorError, match="not possible"):
        fit(SMOLLM2, 20 * GIB, parallel=parallel)


def test_a_refusal_names_flags_that_then_work() -> None:
    with pytest.raises(OperatorError) as caught:
        fit(SMOLLM2, 2 * GIB, ctx_size=256 * 8192, parallel=256)
    assert "--kv streams" in caught.value.hint, "256 cells a slot would go into a pool by themselves"
    as_told(SMOLLM2, 2 * GIB, caught.value.hint)


def as_told(model: Needs, free: int, hint: str) -> Fit:
    """What a refusal's hint leads to."""
    numbers = re.search(r"--ctx-size (\d+) --parallel (\d+)(?: --kv (\w+))? fits", hint)
    assert numbers is not None
    return fit(model, free, ctx_size=int(numbers[1]), parallel=int(numbers[2]), kv=numbers[3] or "auto")


def test_no_memory_at_all_has_no_flag_that_helps() -> None:
    with pytest.raises(OperatorError) as caught:
        fit(EIGHT_B, 0)
    assert "smaller model" in caught.value.hint


needs = st.builds(
    Needs,
    n_ctx_train=st.integers(1, 1 << 20),
    cell_bytes=st.integers(0, 1 << 20),
    slot_bytes=st.integers(0, 64 << 20),
    fixed_bytes=st.integers(0, GIB),
    weight_bytes=st.integers(0, 64 * GIB),
    total_weight_bytes=st.integers(0, 64 * GIB),
)


MODES = st.sampled_from(["auto", "streams", "unified"])


def _try(model: Needs, free: int, ctx_size: int, parallel: int | None, kv: str) -> Fit | None:
    try:
        return fit(model, free, ctx_size=ctx_size, parallel=parallel, kv=kv)
    except OperatorError as error:
        assert error.message and error.hint and "\n" not in error.message
        if "fits" in error.hint:
            as_told(model, free, error.hint)
        return None


ctx_sizes = st.sampled_from([0, 0, 1, 512, 4096, 100_000, 1 << 22])
slot_counts = st.sampled_from([None, None, 1, 4, 16, 256])


@given(needs, st.integers(0, 512 * GIB), ctx_sizes, slot_counts, MODES)
def test_what_is_chosen_fits_and_respects_what_was_asked(model: Needs, free: int, ctx_size: int, parallel: int | None, kv: str) -> None:
    found = _try(model, free, ctx_size, parallel, kv)
    if found is None:
        return
    assert found.cache_bytes + model.fixed_bytes <= free - model.weight_bytes
    assert found.n_ctx_slot % PAD == 0 and found.n_ctx_slot < model.n_ctx_train + PAD
    assert parallel is None or found.n_slots == parallel
    assert kv == "auto" or found.unified == (kv == "unified")
    if found.unified:
        assert found.cache_bytes == max(1, model.cell_bytes * found.n_ctx + model.slot_bytes * n_ids(model, found.n_slots))
        assert found.n_slots <= n_ids(model, found.n_slots) <= model.max_slots
        assert found.n_ctx_slot == min(found.n_ctx, -(-model.n_ctx_train // PAD) * PAD)
    else:
        assert found.cache_bytes == found.n_slots * max(1, model.cell_bytes * found.n_ctx_slot + model.slot_bytes)
    if ctx_size == 0:
        assert found.n_ctx_slot >= min(MIN_CTX, model.n_ctx_train)
        assert found.unified or found.n_ctx_slot <= WANTED_CTX
        assert parallel is not None or MIN_SLOTS <= found.n_slots <= WANTED_SLOTS
    elif found.n_ctx > ctx_size:
        assert f"{ctx_size} cells were asked for" in found.why


@given(needs, st.integers(0, 256 * GIB), st.integers(0, 256 * GIB))
def test_more_memory_never_gives_less(model: Needs, free: int, more: int) -> None:
    small, large = _try(model, free, 0, None, "streams"), _try(model, free + more, 0, None, "streams")
    if small is not None:
        assert large is not None and large.n_slots >= small.n_slots and large.n_ctx >= small.n_ctx


# ---- one pool --------------------------------------------------------------------------------------------------------


def test_where_the_shortest_slots_do_not_fit_they_draw_on_a_pool_of_what_does() -> None:
    free = 5 * GIB + (900 << 20)
    with pytest.raises(OperatorError, match="4 slots of 2048 tokens"):
        fit(EIGHT_B, free, kv="streams")
    found = fit(EIGHT_B, free, kv="auto")
    assert found.unified and found.n_slots == 4 and MIN_CTX <= found.n_ctx_slot == found.n_ctx < 4 * MIN_CTX
    assert "pool" in found.why and str(found.n_ctx) in found.why
    with pytest.raises(OperatorError, match="a pool of 2048 tokens for 4 slots, the least that makes sense, would take"):
        fit(EIGHT_B, 5 * GIB + (400 << 20), kv="auto")


def test_a_context_too_small_to_be_shared_out_becomes_a_pool() -> None:
    assert not fit(SMOLLM2, 20 * GIB, ctx_size=16 * 1024, parallel=16, kv="auto").unified
    assert not fit(SMOLLM2, 20 * GIB, ctx_size=256, parallel=1, kv="auto").unified
    found = fit(SMOLLM2, 20 * GIB, ctx_size=4000, parallel=16, kv="auto")
    assert found.unified and (found.n_slots, found.n_ctx, found.n_ctx_slot) == (16, 4096, 4096)
    long = fit(SMOLLM2, 20 * GIB, ctx_size=60_000, parallel=4, kv="unified")
    assert (long.n_ctx, long.n_ctx_slot) == (60_160, 8192)


def test_the_pool_has_slots_for_prefixes_but_no_more_than_the_library_takes() -> None:
    assert [n_ids(SMOLLM2, n) for n in (1, 16, 250, 256)] == [33, 48, 256, 256]


@pytest.mark.parametrize(("kv", "n_ctx"), [("streams", 1024), ("unified", 256), ("auto", 256)])
def test_a_context_that_is_rounded_up_says_so(kv: str, n_ctx: int) -> None:
    found = fit(SMOLLM2, 20 * GIB, ctx_size=1, kv=kv)
    assert found.n_ctx == n_ctx and found.why.endswith("; 1 cells were asked for, a slot takes multiples of 256")
    assert "asked for" not in fit(SMOLLM2, 20 * GIB, ctx_size=4096, parallel=2, kv="auto").why


# ---- saved prefixes --------------------------------------------------------------------------------------------------


def test_host_memory_for_prefixes_is_a_quarter_of_what_is_free_within_bounds() -> None:
    assert [cache_ram(free, None) for free in (-GIB, 0, 2 * GIB, 500 * GIB)] == [0, 0, GIB // 2, 8 * GIB]
    assert [cache_ram(3 * GIB, asked) for asked in (0, 3 * GIB)] == [0, 3 * GIB]


def test_more_cache_ram_than_is_free_is_refused() -> None:
    assert cache_ram(1 << 30, None) == 1 << 28
    assert cache_ram(1 << 30, 1 << 30) == 1 << 30
    with pytest.raises(OperatorError, match=r"--cache-ram 1025 \(MiB\) is more than the 1.0 GiB") as refused:
        cache_ram(1 << 30, 1025 << 20)
    assert "leave it out" in refused.value.hint
