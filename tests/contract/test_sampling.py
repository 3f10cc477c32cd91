"""Contract: what the native samplers do with their parameters, and the interface that our reader of probabilities implements."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from typing import Any

import pytest

from server.llama.context import Context
from server.llama.model import Model
from tests.native import TALE, context, logits, rows

ROW = 19


@pytest.fixture(scope="module")
def decoder(model: Model) -> Iterator[Context]:
    """One decoded prompt of 20 tokens; its last row has logits."""
    with context(model) as made:
        made.decode(rows(0, model.vocab.tokenize(TALE, add_special=True, parse_special=False)[: ROW + 1]))
        yield made


def _apply(lib: Any, sampler: Any, values: list[float]) -> dict[int, float]:
    """What a sampler leaves of some candidates (token = index), by token."""
    data = (lib.llama_token_data * len(values))(*((i, value, 0.0) for i, value in enumerate(values)))
    array = lib.llama_token_data_array(data, len(values), -1, False)
    lib.llama_sampler_apply(sampler, array)
    left = {data[i].id: data[i].logit for i in range(array.size)}
    lib.llama_sampler_free(sampler)
    return left


VALUES = [1.0, 3.0, 2.0, -1.0]


def test_switched_off_values_change_nothing(lib: Any) -> None:
    """Why they can be left out of the chain."""
    off = [
        lib.llama_sampler_init_top_k(0),
        lib.llama_sampler_init_top_p(1.0, 0),
        lib.llama_sampler_init_min_p(0.0, 0),
        lib.llama_sampler_init_typical(1.0, 0),
        lib.llama_sampler_init_top_n_sigma(-1.0),
        lib.llama_sampler_init_xtc(0.0, 0.1, 0, 1),
        lib.llama_sampler_init_xtc(1.0, 0.6, 0, 1),
        lib.llama_sampler_init_temp_ext(1.0, 0.0, 1.0),
        lib.llama_sampler_init_penalties(4, 64, 1.0, 0.0, 0.0),
    ]
    for sampler in off:
        assert _apply(lib, sampler, VALUES) == dict(enumerate(VALUES))


def test_a_look_back_of_minus_one_is_off_so_it_is_translated(lib: Any) -> None:
    for last_n, expected in ((-1, 3.0), (8, 1.5)):
        sampler = lib.llama_sampler_init_penalties(4, last_n, 2.0, 0.0, 0.0)
        lib.llama_sampler_accept(sampler, 1)
        assert _apply(lib, sampler, VALUES)[1] == expected


def test_temperature_zero_leaves_the_maximum_alone(lib: Any) -> None:
    left = _apply(lib, lib.llama_sampler_init_temp_ext(0.0, 0.0, 1.0), VALUES)
    assert [token for token, value in left.items() if value > -math.inf] == [1]


def test_dist_draws_by_its_seed_and_leaves_the_softmax_behind(lib: Any, decoder: Context) -> None:
    draws = []
    for seed in (7, 7, 8, 9, 10):
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_params(True))
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_dist(seed))
        draws.append([lib.llama_sampler_sample(chain, decoder.handle, ROW) for _ in range(8)])
        lib.llama_sampler_free(chain)
    assert draws[0] == draws[1] and len({tuple(draw) for draw in draws}) > 1


def test_a_sampler_of_ours_sees_all_candidates_with_probabilities(lib: Any, model: Model, decoder: Context) -> None:
    seen: list[tuple[int, float, float]] = []

    def read(_sampler: Any, array: Any) -> None:
        candidates = array.contents
        seen.append((candidates.size, sum(candidates.data[i].p for i in range(candidates.size)), candidates.data[100].logit))
        candidates.selected = 3

    apply = lib.llama_sampler_i_apply(read)
    interface = lib.llama_sampler_i(apply=apply)
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_params(True))
    lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_dist(0))
    lib.llama_sampler_chain_add(chain, lib.llama_sampler_init(interface, None))
    assert lib.llama_sampler_sample(chain, decoder.handle, ROW) == 3
    lib.llama_sampler_free(chain)
    (size, total, value) = seen[0]
    assert size == model.vocab.n_vocab and total == pytest.approx(1.0, abs=1e-4)
    assert value == logits(decoder, ROW)[100]


def test_a_row_without_logits_is_null(lib: Any, decoder: Context) -> None:
    assert not lib.llama_get_logits_ith(decoder.handle, 3)
    assert lib.llama_get_logits_ith(decoder.handle, ROW)


def test_candidates_are_laid_out_as_the_bindings_say(lib: Any) -> None:
    assert ctypes.sizeof(lib.llama_token_data) == 12
    assert [lib.llama_token_data.id.offset, lib.llama_token_data.logit.offset, lib.llama_token_data.p.offset] == [0, 4, 8]
