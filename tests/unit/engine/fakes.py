"""A world below the engine without weights: bytes are tokens, cells are remembered and checked, samples follow from the cells alone."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq

from server.engine.ports import DecodeFault, Row
from server.protocol import SamplingParams, TokenLogprob

EOG, CONTROL, BOS, POISON = 256, 257, 258, 259
N_VOCAB = 260


class FakeVocab:
    """Token = byte; four control tokens behind them; `POISON` is never drawn."""

    n_vocab = N_VOCAB

    def __init__(self, *, adds_bos: bool = False) -> None:
        self._adds_bos = adds_bos

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        start = [BOS] if add_special and self._adds_bos else []
        return start + list(text.encode())

    def piece(self, token: int, *, special: bool = False) -> bytes:
        if token < 256:
            return bytes([token])
        return f"<{token}>".encode() if special else b""

    def is_eog(self, token: int) -> bool:
        return token == EOG


def extend(state: int, token: int) -> int:
    """The fake's whole model: a hash over the tokens so far."""
    return zlib.crc32(token.to_bytes(4, "little"), state)


def state_of(tokens: Iterable[int]) -> int:
    state = 0
    for token in tokens:
        state = extend(state, token)
    return state


TEXT = "ab zé漢😀.\n".encode()


def next_token(state: int, seed: int) -> int:
    """What is drawn after `state`: often a byte of some text (also halves of characters), seldom an end or a control token."""
    draw = zlib.crc32(seed.to_bytes(8, "little"), state)
    if draw % 61 == 0:
        return EOG
    if draw % 53 == 0:
        return CONTROL
    return TEXT[draw % len(TEXT)] if draw % 3 else draw // 7 % 256


class FakeSampler:
    def __init__(self, decoder: FakeDecoder, params: SamplingParams) -> None:
        self._decoder = decoder
        self._seed = params.seed
        self.prompt_tail: list[int] = []
        self.closed = False

    def sample(self, row: int, n_logprobs: int | None) -> tuple[int, TokenLogprob | None]:
        assert not self.closed
        token = next_token(self._decoder.outputs[row], self._seed)
        if n_logprobs is None:
            return token, None
        return token, TokenLogprob(token, FakeVocab().piece(token, special=True), -0.5)

    def accept_prompt(self, tokens: Seq[int]) -> None:
        self.prompt_tail += tokens

    def close(self) -> None:
        assert not self.closed
        self.closed = True


Fault = Callable[[Seq[Row]], tuple[DecodeFault, int] | None]
"""Batch -> None, or how it fails and how many of its rows have been computed by then."""


class FakeDecoder:
    """Asserts all that the real one demands of a batch. `fault` may make a decode fail; `cells` is what each slot holds."""

    def __init__(
        self,
        *,
        n_slots: int = 4,
        n_ctx_slot: int = 64,
        n_batch: int = 32,
        n_ubatch: int = 16,
        max_output_rows: int = 8,
        can_rewind: bool = True,
    ) -> None:
        self.n_slots, self.n_ctx_slot, self.n_batch, self.n_ubatch = n_slots, n_ctx_slot, n_batch, n_ubatch
        self.max_output_rows = max_output_rows
        self.cells: list[list[int]] = [[] for _ in range(n_slots)]
        self.outputs: dict[int, int] = {}
        self.fault: Fault | None = None
        self.batches: list[list[Row]] = []
        self.keep_batches = True
        self.samplers: list[FakeSampler] = []
        self._states: list[list[int]] = [[0] for _ in range(n_slots)]
        self._can_rewind = can_rewind

    def decode(self, rows: Seq[Row]) -> None:
        assert 0 < len(rows) <= self.n_batch
        assert [(row.slot, row.pos) for row in rows] == sorted({(row.slot, row.pos) for row in rows})
        assert sum(row.logits for row in rows) <= self.max_output_rows
        self.outputs = {}
        if self.keep_batches:
            self.batches.append(list(rows))
        fault, done = (self.fault and self.fault(rows)) or (None, len(rows))
        for index, row in enumerate(rows[:done]):
            cells, states = self.cells[row.slot], self._states[row.slot]
            assert row.pos == len(cells) < self.n_ctx_slot, f"position {row.pos} after {len(cells)} cells"
            assert 0 <= row.token < N_VOCAB
            cells.append(row.token)
            states.append(extend(states[-1], row.token))
            if row.logits:
                self.outputs[index] = states[-1]
        if fault is not None:
            self.outputs = {}
            raise fault

    def truncate(self, slot: int, n_tokens: int) -> bool:
        if n_tokens >= len(self.cells[slot]):
            return n_tokens == len(self.cells[slot])
        kept = n_tokens if self._can_rewind else 0
        del self.cells[slot][kept:]
        del self._states[slot][kept + 1 :]
        return kept == n_tokens

    def n_tokens(self, slot: int) -> int:
        return len(self.cells[slot])

    def sampler(self, params: SamplingParams) -> FakeSampler:
        if params.mirostat_tau < 0:
            raise ValueError("mirostat_tau must not be negative")
        self.samplers.append(FakeSampler(self, params))
        return self.samplers[-1]


def poisoned_by(token: int, *, code: int = -3, restored: bool = False) -> Fault:
    """Every batch that holds `token` fails; `restored` or with the rows before it computed."""

    def fault(rows: Seq[Row]) -> tuple[DecodeFault, int] | None:
        place = next((index for index, row in enumerate(rows) if row.token == token), None)
        return None if place is None else (DecodeFault(code, "poison", restored=restored), 0 if restored else place)

    return fault


def fails_with(code: int, *, restored: bool, done: int = 0) -> Fault:
    """Every batch fails, `done` of its rows computed."""
    return lambda rows: (DecodeFault(code, "no", restored=restored), min(done, len(rows)))
