"""What the engine needs from the world below it, as protocols: `llama/` implements them, tests put fakes there.

The engine speaks token ids, slot ids and positions; nothing here is a pointer, a string to show, or a clock.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from server.protocol import SamplingParams, TokenLogprob


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


class Sampler(Protocol):
    """One sequence's sampling state (penalties, seed). Owned by that sequence alone; closed with it."""

    def sample(self, row: int, n_logprobs: int | None) -> tuple[int, TokenLogprob | None]:
        """Draw from the logits of batch row `row` of the last decode and accept the token.

        `n_logprobs` None = no log-probabilities (None is returned for them).
        """
        ...

    def accept_prompt(self, tokens: Seq[int]) -> None:
        """Feed the prompt's tail to the penalties."""
        ...

    def close(self) -> None: ...


class Decoder(Protocol):
    """The KV cache and the forward pass. Used from one thread. A slot's cells are positions 0..n-1 without a hole."""

    @property
    def n_slots(self) -> int: ...

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

    def sampler(self, params: SamplingParams) -> Sampler:
        """Make a sampler chain.

        Raises:
            ValueError: the parameters cannot be turned into a chain.
        """
        ...
