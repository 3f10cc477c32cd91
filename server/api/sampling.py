"""Sampling members of a request -> `SamplingParams`: defaults from the settings, ranges, aliases. Pure; knows no dialect."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec

from server.api.fields import GenerationFields
from server.errors import ClientError
from server.protocol import RANDOM_SEED, SamplingParams
from server.settings import Settings

INT_MAX = 2**31 - 1

# Inclusive bounds. The upper ones of open-ended values only keep single-precision arithmetic finite.
RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 1000),
    "dynatemp_range": (0, 1000),
    "dynatemp_exponent": (0, 1000),
    "top_k": (-1, INT_MAX),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "typical_p": (0, 1),
    "top_n_sigma": (-1, 1000),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "repeat_last_n": (-1, INT_MAX),
    "repeat_penalty": (0.001, 1000),
    "presence_penalty": (-1000, 1000),
    "frequency_penalty": (-1000, 1000),
    "dry_multiplier": (0, 1000),
    "dry_base": (0, 1000),
    "dry_allowed_length": (0, INT_MAX),
    "dry_penalty_last_n": (-1, INT_MAX),
    "mirostat": (0, 2),
    "mirostat_tau": (0, 1000),
    "mirostat_eta": (0, 1000),
    "min_keep": (0, INT_MAX),
}
MAX_BREAKERS = 64
MAX_BREAKER_CHARS = 256
MAX_BIAS = 1e6

_SAMPLERS = {
    "penalties": "e",
    "dry": "d",
    "top_n_sigma": "s",
    "top_k": "k",
    "typ_p": "y",
    "top_p": "p",
    "min_p": "m",
    "xtc": "x",
    "temperature": "t",
}
_BY_LETTER = {letter: name for name, letter in _SAMPLERS.items()}
_ALIASES = {"typical": "typ_p", "typical_p": "typ_p", "typ": "typ_p", "nucleus": "top_p", "temp": "temperature"}


@dataclass(frozen=True, slots=True)
class Sampling:
    params: SamplingParams
    text_bias: tuple[tuple[str, float], ...] = ()
    """Biases given by text; the runner's vocabulary turns them into tokens."""


def defaults(settings: Settings) -> SamplingParams:
    """What a request gets that says nothing."""
    return SamplingParams(
        seed=_seed(settings.seed),
        temperature=settings.temperature,
        top_k=max(0, settings.top_k),
        top_p=settings.top_p,
        min_p=settings.min_p,
        typical_p=settings.typical_p,
        repeat_last_n=settings.repeat_last_n,
        repeat_penalty=settings.repeat_penalty,
        presence_penalty=settings.presence_penalty,
        frequency_penalty=settings.frequency_penalty,
    )


def parse_sampling(fields: GenerationFields, settings: Settings, n_vocab: int) -> Sampling:
    """Raises:
    ClientError: a value is out of range; `param` names the member.
    """
    base = defaults(settings)
    values: dict[str, Any] = {}
    for name, (low, high) in RANGES.items():
        value = getattr(fields, name)
        if value is not None:
            values[name] = check_range(name, value, low, high)
    if values.get("top_k") == -1:
        values["top_k"] = 0
    if values.get("dry_base", 1) < 1:
        values["dry_base"] = base.dry_base  # below 1 it means nothing, and clients that do not use it send 0
    if fields.seed is not None:
        check_range("seed", fields.seed, -(2**63), 2**64 - 1)
        values["seed"] = _seed(fields.seed)
    if fields.ignore_eos is not None:
        values["ignore_eos"] = fields.ignore_eos
    if fields.samplers is not None:
        values["samplers"] = _samplers(fields.samplers)
    if fields.dry_sequence_breakers is not None:
        values["dry_sequence_breakers"] = _breakers(fields.dry_sequence_breakers)
    by_token, by_text = _biases(fields.logit_bias, n_vocab)
    return Sampling(msgspec.structs.replace(base, **values, logit_bias=by_token), by_text)


def check_range(name: str, value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        raise ClientError(f"{name} must be between {low:g} and {high:g}, not {_short(value)}", param=name)
    return value


def nth_seed(seed: int, i: int) -> int:
    """The seed of the i-th of several choices: neighbours of a given one, all random if random."""
    return seed if seed == RANDOM_SEED else _seed(seed + i)


def _seed(seed: int) -> int:
    if seed in (-1, RANDOM_SEED):
        return RANDOM_SEED
    folded = seed % 2**32
    return folded if folded != RANDOM_SEED else folded - 1


def _short(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) or abs(value) < 10**15 else "an enormous number"


def _samplers(given: str | list[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        unknown = [letter for letter in given if letter not in _BY_LETTER]
        names = tuple(_BY_LETTER[letter] for letter in given if letter in _BY_LETTER)
    else:
        plain = [name.lower().replace("-", "_") for name in given]
        names = tuple(_ALIASES.get(name, name) for name in plain)
        unknown = [name for name in names if name not in _SAMPLERS]
    if unknown or len(names) > 64:
        what = f"{unknown[0][:40]!r} is none" if unknown else "there are too many"
        raise ClientError(f"samplers: {what}; known are {', '.join(_SAMPLERS)}", param="samplers")
    return names


def _breakers(given: list[str]) -> tuple[str, ...]:
    if not 0 < len(given) <= MAX_BREAKERS or not all(0 < len(text) <= MAX_BREAKER_CHARS for text in given):
        raise ClientError(
            f"dry_sequence_breakers must be 1 to {MAX_BREAKERS} strings of 1 to {MAX_BREAKER_CHARS} characters",
            param="dry_sequence_breakers",
        )
    return tuple(given)


def _biases(given: Any, n_vocab: int) -> tuple[tuple[tuple[int, float], ...], tuple[tuple[str, float], ...]]:
    pairs = list(given.items()) if isinstance(given, dict) else list(given or ())
    by_token: dict[int, float] = {}
    by_text: list[tuple[str, float]] = []
    if len(pairs) > n_vocab:
        raise ClientError("logit_bias holds more entries than the vocabulary has tokens", param="logit_bias")
    for key, raw in pairs:
        if raw is True or (raw is not False and not abs(raw) <= MAX_BIAS):
            raise ClientError(f"logit_bias: a bias must be a number within {MAX_BIAS:g}, or false", param="logit_bias")
        bias = -math.inf if raw is False else float(raw)
        token = _token_id(key)
        if token is None:
            by_text.append((str(key), bias))
        elif 0 <= token < n_vocab:
            by_token[token] = bias
        else:
            raise ClientError(f"logit_bias: {_short(token)} is no token id; the vocabulary has {n_vocab}", param="logit_bias")
    if len(by_text) > 1024:
        raise ClientError("logit_bias holds more than 1024 entries given by text", param="logit_bias")
    return tuple(by_token.items()), tuple(by_text)


def _token_id(key: int | str) -> int | None:
    if isinstance(key, int):
        return key
    digits = key.strip().removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 20:
        return None
    return int(key)
