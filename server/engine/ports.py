"""What the engine needs from the world below it, as protocols: `llama/` implements them, tests put fakes there.

The engine speaks token ids, slot ids and positions; nothing here is a pointer, a string to show, or a clock.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from server.protocol import Constraint, SamplingParams, TokenLogprob


class Vocab(Protocol):
    """Text <-> tokens. Safe to call from several threads."""

    @property
    def n_vocab(self) -> int: ...

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]: ...

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The token's bytes; a control token is empty unless `special`."""
        ...

    def is_eog(self, token: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class Row:
    """One token of a batch: `slot` is the sequence id, `pos` its position, `logits` whether a sample will be drawn from it."""

    slot: int
    pos: int
    token: int
    logits: bool


class DecodeFault(Exception):
    """A decode failed. `restored`: the KV state is as before the call (llama_decode = 1 or -1)."""

    def __init__(self, code: int, message: str, *, restored: bool) -> None:
        super().__init__(message)
        self.code = code
        self.restored = restored


class ConstraintFault(Exception):
    """What a sequence is held to cannot be followed any further. Its message is for the client."""


class Matcher(Protocol):
    """One sequence's place in a compiled constraint, at the beginning. It goes into the one sampler that is made with it, or nowhere."""

    @property
    def has_ended(self) -> bool: ...


class Constraints(Protocol):
    """What an answer can be held to, with this model's tokens. Safe to call from several threads."""

    def compile(self, constraint: Constraint) -> Matcher:
        """May take a second, the first time in any case.

        Raises:
            ClientError: it is malformed, unsupported, impossible to satisfy, too large or too deep; names its `param`.
        """
        ...


class Sampler(Protocol):
    """One sequence's sampling state (penalties, seed, grammar). Owned by that sequence alone; closed with it."""

    @property
    def has_ended(self) -> bool:
        """The constraint allows nothing after the last token: the text is whole. Nothing is drawn any more."""
        ...

    def sample(self, row: int, n_logprobs: int | None) -> tuple[int, TokenLogprob | None]:
        """Draw from the logits of batch row `row` of the last decode and accept the token.

        `n_logprobs` None = no log-probabilities (None is returned for them).

        Raises:
            ConstraintFault: the constraint allows no token at all, or is too complex.
        """
        ...

    def accept_prompt(self, tokens: Seq[int]) -> None:
        """Feed the prompt's tail to the penalties."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Draw:
    """Tokens to draw for one sequence after a decode: one from `rows[0]`, and as long as the token drawn from `rows[i]` is
    `drafts[i]` and the constraint has not ended, one from `rows[i + 1]`. `len(rows)` = `len(drafts)` + 1."""

    sampler: Sampler
    rows: Seq[int]
    drafts: Seq[int] = ()
    n_logprobs: int | None = None


Drawn = list[tuple[int, TokenLogprob | None]]
"""What one `Draw` gave, at least one token: the drafts that were right, and the token that was drawn instead of the next."""


class State(Protocol):
    """The cells of one sequence, saved in host memory."""

    @property
    def n_bytes(self) -> int: ...


class Decoder(Protocol):
    """The KV cache and the forward pass. Used from one thread. A slot's cells are positions 0..n-1 without a hole.

    `unified` False: each slot has `n_ctx_slot` cells of its own. True: all slots draw on one pool of `n_cells`, cells copied from slot
    to slot are shared until the last holder gives them up, and there may be more slots than requests run at once.
    """

    @property
    def n_slots(self) -> int:
        """Slots that can hold cells; ids are 0..n_slots-1."""
        ...

    @property
    def unified(self) -> bool: ...

    @property
    def n_cells(self) -> int:
        """Cells in all."""
        ...

    @property
    def can_rewind(self) -> bool:
        """False: a slot can only be kept whole or emptied, and a copy is always a copy of the whole."""
        ...

    @property
    def n_threads(self) -> int: ...

    @n_threads.setter
    def n_threads(self, count: int) -> None:
        """For the next decode on; costs microseconds."""
        ...

    @property
    def n_ctx_slot(self) -> int:
        """Cells one slot can hold."""
        ...

    @property
    def n_batch(self) -> int:
        """Most rows of one decode."""
        ...

    @property
    def n_ubatch(self) -> int: ...

    @property
    def max_output_rows(self) -> int:
        """Most rows with `logits` of one decode (exceeding it would abort the process)."""
        ...

    def decode(self, rows: Seq[Row]) -> None:
        """Run one forward pass. Rows come sorted by slot, then position.

        Raises:
            DecodeFault: the batch was not (wholly) processed.
        """
        ...

    def truncate(self, slot: int, n_tokens: int) -> bool:
        """Keep the first `n_tokens` cells of a slot. False = the model cannot rewind there (the slot is then cleared)."""
        ...

    def n_tokens(self, slot: int) -> int:
        """Cells the native cache holds for this slot (for checks; 0 = empty)."""
        ...

    def copy(self, source: int, target: int, n_tokens: int) -> bool:
        """The first `n_tokens` cells of `source` become the whole content of `target`; what was there is dropped.

        False = not possible there (a model that cannot rewind, asked for a part); the target is then empty.
        """
        ...

    def state_bytes(self, slot: int) -> int:
        """What `save` would take, bytes."""
        ...

    def save(self, slot: int) -> State | None:
        """The slot's cells as they are, in host memory; the slot keeps them. None = it cannot be saved."""
        ...

    def restore(self, slot: int, state: State) -> bool:
        """The slot's whole content becomes what was saved, to the bit. False = no room, or the state is not of this model; then the
        slot is empty."""
        ...

    def draw(self, draws: Seq[Draw]) -> list[Drawn | Exception]:
        """Draw tokens from the logits of the last decode, for several sequences side by side. Result i belongs to draw i."""
        ...

    def sampler(self, params: SamplingParams, matcher: Matcher | None = None) -> Sampler:
        """Make a sampler chain; with a `matcher`, which becomes the sampler's, it draws what the constraint allows.

        Raises:
            ValueError: the parameters cannot be turned into a chain.
        """
        ...


class DraftModel(Protocol):
    """A small model that guesses ahead. It keeps cells of its own, one slot for each of the decoder's. Used from the decoder's thread."""

    def propose(self, wanted: Seq[tuple[int, Seq[int], int]]) -> list[list[int]]:
        """For each (slot, all tokens so far, most guesses): the tokens that it would say next, greedily, possibly none.

        It catches up by itself with whatever a slot's tokens have become since the last call, and never fails a request: where it
        cannot guess, it guesses nothing.
        """
        ...
