"""Sampler chains: llama-server's order, exact log-probabilities, nothing shared between requests, bad values refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from server.llama.context import Context
from server.llama.model import Model
from server.llama.sampler import ChainSampler
from server.protocol import SamplingParams
from tests.native import logits

ROW = 19


def _names(sampler: ChainSampler) -> list[str]:
    n = sampler._n
    return [
        n.llama_sampler_name(n.llama_sampler_chain_get(sampler._chain, i)).decode() for i in range(n.llama_sampler_chain_n(sampler._chain))
    ]


def _chain(decoder: Context, **params: Any) -> list[str]:
    sampler = decoder.sampler(SamplingParams(**params))
    names = _names(sampler)
    sampler.close()
    return names


def _draw(decoder: Context, count: int = 1, **params: Any) -> list[int]:
    sampler = decoder.sampler(SamplingParams(**params))
    tokens = [sampler.sample(ROW, None)[0] for _ in range(count)]
    sampler.close()
    return tokens


def test_the_default_chain(decoder: Context) -> None:
    assert _chain(decoder) == ["top-k", "top-p", "min-p", "temp-ext", "dist"]


def test_everything_at_once_in_the_order_asked_for(decoder: Context) -> None:
    everything: dict[str, Any] = {
        "repeat_penalty": 1.1, "dry_multiplier": 0.8, "top_n_sigma": 1.0, "typical_p": 0.9, "xtc_probability": 0.5,
        "logit_bias": ((5, 1.0),),
    }  # fmt: skip
    names = ["logit-bias", "penalties", "dry", "top-n-sigma", "top-k", "typical", "top-p", "min-p", "xtc", "temp-ext", "dist"]
    assert _chain(decoder, **everything) == names
    backwards = tuple(reversed(SamplingParams().samplers))
    assert _chain(decoder, samplers=backwards, **everything) == ["logit-bias", *reversed(names[1:-1]), "dist"]
    assert _chain(decoder, samplers=("top_k",)) == ["top-k", "dist"]
    assert _chain(decoder, samplers=()) == ["dist"]


def test_greedy_keeps_only_what_can_change_the_likeliest_token(decoder: Context) -> None:
    assert _chain(decoder, temperature=0.0) == ["greedy"]
    assert _chain(decoder, temperature=-1.0, repeat_penalty=1.2, dry_multiplier=1.0) == ["penalties", "dry", "greedy"]
    assert _chain(decoder, temperature=0.0, xtc_probability=0.5)[-1] == "dist"
    assert _chain(decoder, temperature=0.0, typical_p=0.5)[-1] == "dist"
    assert _chain(decoder, temperature=0.0, samplers=("top_k",)) == ["top-k", "dist"], "temperature is not among the samplers"


def test_mirostat_replaces_the_other_samplers(decoder: Context) -> None:
    assert _chain(decoder, mirostat=1, repeat_penalty=1.5) == ["temp", "mirostat"]
    assert _chain(decoder, mirostat=2, logit_bias=((5, 1.0),)) == ["logit-bias", "temp", "mirostat-v2"]
    assert all(0 <= token < 49152 for version in (1, 2) for token in _draw(decoder, 5, mirostat=version, seed=3))


def test_greedy_is_the_maximum_by_either_chain(decoder: Context) -> None:
    values = logits(decoder, ROW)
    best = max(range(len(values)), key=values.__getitem__)
    assert _draw(decoder, temperature=0.0) == [best]
    assert _draw(decoder, temperature=0.0, typical_p=0.999999) == [best]
    assert _draw(decoder, 20, top_k=1) == [best] * 20


def test_a_seed_repeats_and_no_seed_does_not(decoder: Context) -> None:
    hot: dict[str, Any] = {"temperature": 5.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert _draw(decoder, 20, seed=11, **hot) == _draw(decoder, 20, seed=11, **hot)
    assert _draw(decoder, 20, seed=11, **hot) != _draw(decoder, 20, seed=12, **hot)
    assert _draw(decoder, 20, **hot) != _draw(decoder, 20, **hot)
    assert _draw(decoder, 5, seed=-2, **hot) == _draw(decoder, 5, seed=0xFFFFFFFE, **hot)


def test_biases_and_bans(decoder: Context, model: Model) -> None:
    assert _draw(decoder, temperature=0.0, logit_bias=((123, 100.0),)) == [123]
    (best,) = _draw(decoder, temperature=0.0)
    assert _draw(decoder, temperature=0.0, logit_bias=((best, -math.inf),)) != [best]
    towards_the_end = tuple((token, 50.0) for token in model.vocab.eog_tokens)
    assert model.vocab.is_eog(_draw(decoder, temperature=0.0, logit_bias=towards_the_end)[0])
    assert not any(map(model.vocab.is_eog, _draw(decoder, 20, logit_bias=towards_the_end, ignore_eos=True)))


def test_penalties_look_at_the_prompt_and_at_what_was_drawn(decoder: Context) -> None:
    (best,) = _draw(decoder, temperature=0.0)
    sampler = decoder.sampler(SamplingParams(temperature=0.0, presence_penalty=100.0))
    assert sampler.sample(ROW, None)[0] == best
    assert sampler.sample(ROW, None)[0] != best, "it was drawn once already"
    sampler.close()
    for last_n, expected in ((1, best), (3, -1), (-1, -1), (0, best)):
        sampler = decoder.sampler(SamplingParams(temperature=0.0, presence_penalty=100.0, repeat_last_n=last_n))
        sampler.accept_prompt([best, 5, 6])
        token = sampler.sample(ROW, None)[0]
        assert token == expected if expected >= 0 else token != best
        sampler.close()


def test_dry_breaks_a_repetition_but_not_over_a_breaker(decoder: Context, model: Model) -> None:
    (best,) = _draw(decoder, temperature=0.0)
    (newline,) = model.vocab.tokenize("\n", add_special=False, parse_special=False)
    for between, repeated in ((9, True), (newline, False)):
        sampler = decoder.sampler(SamplingParams(temperature=0.0, dry_multiplier=50.0))
        sampler.accept_prompt([1000, 2000, between, 3000, best, 7, 1000, 2000, between, 3000])
        assert (sampler.sample(ROW, None)[0] != best) == repeated
        sampler.close()


def test_two_sequences_do_not_share_penalties(decoder: Context) -> None:
    (best,) = _draw(decoder, temperature=0.0)
    first, second = (decoder.sampler(SamplingParams(temperature=0.0, presence_penalty=100.0)) for _ in range(2))
    first.accept_prompt([best])
    assert first.sample(ROW, None)[0] != best and second.sample(ROW, None)[0] == best
    first.close()
    second.close()


@pytest.mark.parametrize("n_top", [0, 1, 5, 200, 10**6])
def test_logprobs_are_those_of_the_whole_unmodified_distribution(decoder: Context, model: Model, n_top: int) -> None:
    values = logits(decoder, ROW)
    peak = max(values)
    z = peak + math.log(math.fsum(math.exp(value - peak) for value in values))
    sampler = decoder.sampler(SamplingParams(temperature=0.3, logit_bias=((777, 100.0),), repeat_penalty=1.5))
    token, found = sampler.sample(ROW, n_top)
    sampler.close()
    assert found is not None and token == found.token == 777
    assert found.logprob == pytest.approx(values[777] - z, abs=1e-4)
    assert found.piece == model.vocab.piece(777, special=True)
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))[: min(n_top, 200)]
    assert [entry[0] for entry in found.top[:200]] == order and len(found.top) == min(n_top, len(values))
    for other, piece, logprob in found.top[:200]:
        assert logprob == pytest.approx(values[other] - z, abs=1e-4) and piece == model.vocab.piece(other, special=True)


def test_reading_logprobs_does_not_change_the_draw(decoder: Context) -> None:
    plain = _draw(decoder, 10, seed=5, temperature=2.0)
    sampler = decoder.sampler(SamplingParams(seed=5, temperature=2.0))
    assert [sampler.sample(ROW, 3)[0] for _ in range(10)] == plain
    assert sampler.sample(ROW, None)[1] is None
    sampler.close()


@pytest.mark.parametrize(
    "bad",
    [{"logit_bias": ((49152, 1.0),)}, {"logit_bias": ((-1, 1.0),)}, {"logit_bias": ((5, math.nan),)}, {"logit_bias": ((5, math.inf),)},
     {"samplers": ("top_k", "magic")}, {"repeat_penalty": 0.0}, {"repeat_penalty": math.nan}, {"frequency_penalty": math.inf}],
)  # fmt: skip
def test_what_makes_no_chain_is_a_value_error(decoder: Context, bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        decoder.sampler(SamplingParams(**bad))


def test_a_row_without_logits_and_a_closed_sampler_are_errors_not_aborts(decoder: Context) -> None:
    sampler = decoder.sampler(SamplingParams())
    for row in (-1, 0, 18, 20, 10**9):
        with pytest.raises(ValueError, match="no logits"):
            sampler.sample(row, None)
    with pytest.raises(ValueError, match="not in the vocabulary"):
        penalised = decoder.sampler(SamplingParams(repeat_penalty=1.1))
        penalised.accept_prompt([10**6])
    sampler.close()
    sampler.close()
    with pytest.raises(ValueError, match="closed"):
        sampler.sample(ROW, None)
    sampler.accept_prompt([5])


def test_odd_but_harmless_values(decoder: Context) -> None:
    odd: list[dict[str, Any]] = [
        {"top_k": -5}, {"top_k": 10**6}, {"top_p": 0.0}, {"min_p": 1.0}, {"typical_p": 0.0}, {"min_keep": -3}, {"top_n_sigma": 0.0},
        {"xtc_probability": 1.0, "xtc_threshold": 0.0}, {"temperature": 1e-8}, {"temperature": 1e9}, {"dynatemp_range": 2.0},
        {"dry_multiplier": 1.0, "dry_sequence_breakers": ("", "\x00", "x" * 500, "\ud800"), "dry_allowed_length": -4},
        {"repeat_last_n": 10**9, "repeat_penalty": 1.1}, {"mirostat": 2, "mirostat_tau": 0.0}, {"logit_bias": ((5, -math.inf),)},
    ]  # fmt: skip
    for params in odd:
        assert 0 <= _draw(decoder, **params)[0] < 49152
