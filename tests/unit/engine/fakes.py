"""A world below the engine without weights: bytes are tokens, cells are remembered and checked, samples follow from the cells alone."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq

from server.engine.ports import ConstraintFault, DecodeFault, Draw, Drawn, Matcher, Row, State
from server.errors import ClientError
from server.protocol import Constraint, SamplingParams, TokenLogprob

EOG, CONTROL, BOS, POISON = 256, 257, 258, 259
N_VOCAB = 260
WRITTEN = {f"<{token}>": token for token in (EOG, CONTROL, BOS, POISON)}


class FakeVocab:
    """Token = byte; four control tokens behind them, found only where they are the whole text; `POISON` is never drawn."""

    n_vocab = N_VOCAB

    def __init__(self, *, adds_bos: bool = False) -> None:
        self._adds_bos = adds_bos

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        start = [BOS] if add_special and self._adds_bos else []
        if parse_special and text in WRITTEN:
            return [*start, WRITTEN[text]]
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


STUCK = b"!"
"""Where a constraint holds this byte it cannot be followed."""


class FakeMatcher:
    """Allows one text alone."""

    def __init__(self, text: bytes) -> None:
        self.left = text

    @property
    def has_ended(self) -> bool:
        return not self.left

    def next(self) -> int:
        assert self.left, "drawn after the end"
        if self.left.startswith(STUCK):
            raise ConstraintFault("it is stuck")
        first, self.left = self.left[0], self.left[1:]
        return first


class FakeConstraints:
    """A constraint's source is the answer; "" is refused."""

    def compile(self, constraint: Constraint) -> FakeMatcher:
        if not constraint.source:
            raise ClientError(f"{constraint.param}: nothing can be held to that", param=constraint.param)
        return FakeMatcher(constraint.source.encode())


class FakeSampler:
    def __init__(self, decoder: FakeDecoder, params: SamplingParams, matcher: FakeMatcher | None = None) -> None:
        self._decoder = decoder
        self._seed = params.seed
        self._matcher = matcher
        self.prompt_tail: list[int] = []
        self.closed = False

    @property
    def has_ended(self) -> bool:
        return self._matcher is not None and self._matcher.has_ended

    def sample(self, row: int, n_logprobs: int | None) -> tuple[int, TokenLogprob | None]:
        assert not self.closed
        token = self._matcher.next() if self._matcher else next_token(self._decoder.outputs[row], self._seed)
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


class FakeState:
    """Saved cells; `n_bytes` is 10 a cell."""

    def __init__(self, tokens: list[int], ids: list[int]) -> None:
        self.tokens, self.ids = list(tokens), list(ids)

    @property
    def n_bytes(self) -> int:
        return 10 * len(self.tokens)


class FakeDecoder:
    """Asserts all that the real one demands of a batch. `fault` may make a decode fail; `cells` is what each slot holds.

    `unified`: `n_cells` cells for all slots, shared by copies; a decode that finds none left fails with 1, like the real one.
    """

    def __init__(
        self,
        *,
        n_slots: int = 4,
        n_ctx_slot: int = 64,
        n_batch: int = 32,
        n_ubatch: int = 16,
        max_output_rows: int = 8,
        can_rewind: bool = True,
        can_save: bool = True,
        unified: bool = False,
        n_cells: int | None = None,
    ) -> None:
        self.n_slots, self.n_ctx_slot, self.n_batch, self.n_ubatch = n_slots, n_ctx_slot, n_batch, n_ubatch
        self.max_output_rows = max_output_rows
        self.can_rewind, self.unified = can_rewind, unified
        self.n_cells = n_cells or n_slots * n_ctx_slot
        self.n_threads = 1
        self.cells: list[list[int]] = [[] for _ in range(n_slots)]
        self.cell_ids: list[list[int]] = [[] for _ in range(n_slots)]
        self.outputs: dict[int, int] = {}
        self.fault: Fault | None = None
        self.batches: list[list[Row]] = []
        self.keep_batches = True
        self.samplers: list[FakeSampler] = []
        self.copies: list[tuple[int, int, int]] = []
        self.n_restores = 0
        self._can_save = can_save
        self._states: list[list[int]] = [[0] for _ in range(n_slots)]
        self._n_made = 0

    @property
    def n_used(self) -> int:
        """Cells in use, each once."""
        return len({cell for slot in self.cell_ids for cell in slot})

    def decode(self, rows: Seq[Row]) -> None:
        assert 0 < len(rows) <= self.n_batch
        assert [(row.slot, row.pos) for row in rows] == sorted({(row.slot, row.pos) for row in rows})
        assert sum(row.logits for row in rows) <= self.max_output_rows
        self.outputs = {}
        if self.keep_batches:
            self.batches.append(list(rows))
        if self.unified and self.n_used + len(rows) > self.n_cells:
            raise DecodeFault(1, "there is no room in the KV cache", restored=True)
        fault, done = (self.fault and self.fault(rows)) or (None, len(rows))
        for index, row in enumerate(rows[:done]):
            cells, states = self.cells[row.slot], self._states[row.slot]
            assert row.pos == len(cells) < self.n_ctx_slot, f"position {row.pos} after {len(cells)} cells"
            assert 0 <= row.token < N_VOCAB
            cells.append(row.token)
            self.cell_ids[row.slot].append(self._new_cell())
            states.append(extend(states[-1], row.token))
            if row.logits:
                self.outputs[index] = states[-1]
        if fault is not None:
            self.outputs = {}
            raise fault

    def _new_cell(self) -> int:
        self._n_made += 1
        return self._n_made

    def truncate(self, slot: int, n_tokens: int) -> bool:
        if n_tokens >= len(self.cells[slot]):
            return n_tokens == len(self.cells[slot])
        kept = n_tokens if self.can_rewind else 0
        del self.cells[slot][kept:]
        del self.cell_ids[slot][kept:]
        del self._states[slot][kept + 1 :]
        return kept == n_tokens

    def n_tokens(self, slot: int) -> int:
        return len(self.cells[slot])

    def copy(self, source: int, target: int, n_tokens: int) -> bool:
        assert source != target and n_tokens <= len(self.cells[source])
        self.truncate(target, 0)
        if not self.can_rewind and n_tokens != len(self.cells[source]):
            return False
        self.copies.append((source, target, n_tokens))
        self.cells[target] = self.cells[source][:n_tokens]
        ids = self.cell_ids[source][:n_tokens]
        self.cell_ids[target] = ids if self.unified else [self._new_cell() for _ in ids]
        self._states[target] = self._states[source][: n_tokens + 1]
        return True

    def state_bytes(self, slot: int) -> int:
        return 10 * len(self.cells[slot])

    def save(self, slot: int) -> FakeState | None:
        return FakeState(self.cells[slot], self._states[slot]) if self._can_save else None

    def restore(self, slot: int, state: State) -> bool:
        assert isinstance(state, FakeState)
        self.truncate(slot, 0)
        if self.unified and self.n_used + len(state.tokens) > self.n_cells:
            return False
        self.n_restores += 1
        self.cells[slot], self._states[slot] = list(state.tokens), list(state.ids)
        self.cell_ids[slot] = [self._new_cell() for _ in state.tokens]
        return True

    def draw(self, draws: Seq[Draw]) -> list[Drawn | Exception]:
        return [self._draw(draw) for draw in draws]

    def _draw(self, draw: Draw) -> Drawn | Exception:
        drawn: Drawn = []
        try:
            for row, guess in zip(draw.rows, [*draw.drafts, None], strict=True):
                drawn.append(draw.sampler.sample(row, draw.n_logprobs))
                if drawn[-1][0] != guess or draw.sampler.has_ended:
                    break
        except Exception as error:
            return error
        return drawn

    def sampler(self, params: SamplingParams, matcher: Matcher | None = None) -> FakeSampler:
        if params.mirostat_tau < 0:
            raise ValueError("mirostat_tau must not be negative")
        assert matcher is None or isinstance(matcher, FakeMatcher)
        self.samplers.append(FakeSampler(self, params, matcher))
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
