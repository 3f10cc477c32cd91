"""Drawing under a mask of allowed tokens: from a mask's bits to what the native samplers take. Knows no grammar and no request.

Few allowed tokens are laid out as candidates of their own. Where there are many, the library lays out all, and two samplers in front
of the sequence's chain strike the others: a bias of minus infinity and a filter that drops what is so far below the likeliest. The
logits themselves are only read, so log-probabilities stay as they were and several threads may draw at once.
"""

from __future__ import annotations

import ctypes
import re
import threading
from array import array
from collections import OrderedDict
from typing import Any

from server.engine.ports import ConstraintFault
from server.llama.library import native

FEW = 256
"""Allowed tokens that are looked up one by one; reading more takes longer than laying out a vocabulary of 50,000 natively."""
_REMEMBERED = 12
"""Masks; inside a string, or a number, the same few come again and again. 8 bytes per vocabulary entry each."""
_FILTER = 1e-37
"""Candidates less likely than that beside the likeliest are dropped: those struck, and 85 logits below nobody is ever drawn."""
_BITS = tuple(tuple(bit for bit in range(8) if byte >> bit & 1) for byte in range(256))
_STRIKES = tuple(b"".join(b"\0\0\0\0" if byte >> bit & 1 else b"\0\0\x80\xff" for bit in range(8)) for byte in range(256))
"""For each byte of a mask the biases of its eight tokens: 0, or minus infinity as a float32."""


class Mask:
    """Which tokens may come next. `few`: all of them, if they are few; else `biases` has an entry for every token."""

    __slots__ = ("bits", "few", "biases")

    def __init__(self, bits: bytes, few: tuple[int, ...] | None, biases: Any) -> None:
        self.bits = bits
        self.few = few
        self.biases = biases

    def allows(self, token: int) -> bool:
        return bool(self.bits[token >> 3] >> (token & 7) & 1)


class Masks:
    """Makes the masks of one vocabulary. Used from several threads."""

    def __init__(self, n_vocab: int) -> None:
        self._n_vocab = n_vocab
        self._entries = native().llama_logit_bias * n_vocab
        self._template = (ctypes.c_uint32 * (2 * n_vocab))()
        memoryview(self._template).cast("B").cast("I")[::2] = memoryview(array("I", range(n_vocab)))
        self._made: OrderedDict[bytes, Mask] = OrderedDict()
        self._lock = threading.Lock()

    def mask(self, bits: bytes) -> Mask:
        """`bits`: bit i of byte j stands for token 8 j + i.

        Raises:
            ConstraintFault: no token is allowed.
        """
        with self._lock:
            if (found := self._made.get(bits)) is not None:
                self._made.move_to_end(bits)
                return found
        made = self._make(bits)
        with self._lock:
            self._made[bits] = made
            while len(self._made) > _REMEMBERED:
                self._made.popitem(last=False)
        return made

    def _make(self, bits: bytes) -> Mask:
        bits = bits[: -(-self._n_vocab // 8)]
        number = int.from_bytes(bits, "little") & ((1 << self._n_vocab) - 1)
        count = number.bit_count()
        if not count:
            raise ConstraintFault("no token of the model can go on with what the constraint wants")
        if count > FEW:
            return Mask(bits, None, self._biases(bits))
        places = (match.start() for match in re.finditer(rb"[^\0]", bits, re.DOTALL))
        tokens = (8 * place + bit for place in places for bit in _BITS[bits[place]])
        return Mask(bits, tuple(token for token in tokens if token < self._n_vocab), None)

    def _biases(self, bits: bytes) -> Any:
        words = type(self._template).from_buffer_copy(self._template)
        strikes = b"".join([_STRIKES[byte] for byte in bits])[: 4 * self._n_vocab]
        memoryview(words).cast("B").cast("I")[1::2] = memoryview(strikes).cast("I")
        return self._entries.from_buffer(words)


class MaskedDraw:
    """Draws for one sequence with a native chain that is not its own; `close` frees what it has made."""

    def __init__(self, n_vocab: int) -> None:
        n = self._n = native()
        self._n_vocab = n_vocab
        self._around: Any = n.llama_sampler_chain_init(n.llama_sampler_chain_params(True))  # keeps room for all candidates
        self._filter: Any = n.llama_sampler_init_min_p(_FILTER, 1)
        self._candidates = (n.llama_token_data * FEW)()

    def close(self) -> None:
        if self._around:
            self._n.llama_sampler_free(self._around)
            self._n.llama_sampler_free(self._filter)
            self._around = None

    def draw(self, chain: Any, context: int, row: int, logits: Any, mask: Mask) -> int:
        """A token that the mask allows, drawn and accepted by `chain`; `logits`: pointer to that row. Biases of the chain's own cannot
        bring a struck token back; where they forbid all that is left, one of those comes.

        Raises:
            ConstraintFault: the chain chose nothing, or a token that is not allowed.
        """
        return self._from_all(chain, context, row, mask) if mask.few is None else self._from_few(chain, logits, mask.few)

    def _from_few(self, chain: Any, logits: Any, tokens: tuple[int, ...]) -> int:
        n, data = self._n, self._candidates
        for candidate, token in zip(data, tokens, strict=False):
            candidate.id, candidate.logit, candidate.p = token, logits[token], 0.0
        left = n.llama_token_data_array(data, len(tokens), -1, False)
        n.llama_sampler_apply(chain, ctypes.byref(left))
        if not 0 <= left.selected < left.size:
            raise ConstraintFault("the sampling parameters leave no token that the constraint allows")
        drawn: int = left.data[left.selected].id
        n.llama_sampler_accept(chain, drawn)
        return drawn

    def _from_all(self, chain: Any, context: int, row: int, mask: Mask) -> int:
        n, around = self._n, self._around
        biases = n.llama_sampler_init_logit_bias(self._n_vocab, len(mask.biases), mask.biases)
        for sampler in (biases, self._filter, chain):
            n.llama_sampler_chain_add(around, sampler)
        try:
            token: int = n.llama_sampler_sample(around, context, row)
        finally:
            for place in (2, 1, 0):
                n.llama_sampler_chain_remove(around, place)
            n.llama_sampler_free(biases)
        if not mask.allows(token):
            raise ConstraintFault("the sampling parameters leave no token that the constraint allows")
        return token
