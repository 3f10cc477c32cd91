"""Sampling members: ranges, aliases, seeds; whatever is accepted fits the wire to the runner."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api.fields import GenerationFields
from server.api.sampling import RANGES, nth_seed, parse_sampling
from server.errors import ClientError
from server.protocol import RANDOM_SEED, GenerationRequest, SamplingParams, Submit, decode_command
from server.settings import Settings

N_VOCAB = 100
INTEGERS = {name for name in RANGES if isinstance(getattr(SamplingParams(), name), int)}


def parse(**members: Any) -> SamplingParams:
    return parse_sampling(GenerationFields(**members), Settings(), N_VOCAB).params


def test_saying_nothing_gives_llama_servers_defaults() -> None:
    assert parse() == SamplingParams()


@pytest.mark.parametrize("name", sorted(RANGES))
def test_both_ends_of_every_range(name: str) -> None:
    low, high = RANGES[name]
    kind = int if name in INTEGERS else float
    for value in (low, high):
        parse(**{name: kind(value)})
    for value in (low - 1, high + 1, high * 10.0**30):
        with pytest.raises(ClientError, match=name) as refused:
            parse(**{name: kind(value)})
        assert refused.value.param == name


@pytest.mark.parametrize(
    ("seed", "expected"),
    [(-1, RANDOM_SEED), (RANDOM_SEED, RANDOM_SEED), (0, 0), (7, 7), (2**32, 0), (2**63, 0), (-2, 2**32 - 2), (2**64 - 1, 2**32 - 2)],
)
def test_seeds(seed: int, expected: int) -> None:
    assert parse(seed=seed).seed == expected


@given(st.integers(0, 2**32 - 2), st.integers(0, 127))
def test_the_nth_seed_of_a_fixed_one_is_fixed(seed: int, i: int) -> None:
    assert 0 <= nth_seed(seed, i) < RANDOM_SEED and nth_seed(RANDOM_SEED, i) == RANDOM_SEED and nth_seed(seed, 0) == seed


def test_samplers_by_name_alias_and_letter() -> None:
    assert parse(samplers=["top-k", "typical_p", "temp", "XTC"]).samplers == ("top_k", "typ_p", "temperature", "xtc")
    assert parse(samplers="edskypmxt").samplers == (
        "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature",
    )  # fmt: skip
    assert parse(samplers=[]).samplers == ()
    wrong_ones: list[str | list[str]] = [["nonsense"], "kz", ["infill"], ["top_k"] * 65]
    for wrong in wrong_ones:
        with pytest.raises(ClientError, match="samplers"):
            parse(samplers=wrong)


def test_values_that_mean_off() -> None:
    assert parse(top_k=-1).top_k == 0
    assert parse(dry_base=0.0).dry_base == SamplingParams().dry_base


@pytest.mark.parametrize("breakers", [[], [""], ["x" * 257], ["x"] * 65])
def test_breakers_are_bounded(breakers: list[str]) -> None:
    with pytest.raises(ClientError, match="dry_sequence_breakers"):
        parse(dry_sequence_breakers=breakers)


_VALUES = st.one_of(st.none(), st.integers(-(2**65), 2**65), st.floats(allow_nan=True, allow_infinity=True))


@given(
    st.dictionaries(st.sampled_from(sorted(RANGES)), _VALUES), st.dictionaries(st.text(max_size=4), st.floats() | st.booleans(), max_size=4)
)
def test_what_is_accepted_is_finite_and_travels(members: dict[str, Any], bias: dict[str, Any]) -> None:
    chosen = {n: int(v) if n in INTEGERS and v is not None and math.isfinite(v) else v for n, v in members.items()}
    try:
        params = parse(**chosen, logit_bias=bias)
    except ClientError as error:
        assert error.param in {*members, "logit_bias"}
        return
    command = Submit(1, GenerationRequest(prompt="x", sampling=params))
    sent = decode_command(msgspec.msgpack.encode(command))
    assert isinstance(sent, Submit) and sent.request.sampling == params
    assert all(math.isfinite(getattr(params, name)) for name in RANGES)
