"""Text to tokens and back with the model's own vocabulary; implements `engine.ports.Vocab`. Knows no context and no request.

Safe to call from several threads: every call brings its own buffers, and native code only reads the vocabulary.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

from server.llama.library import native

_MAX_TEXT_BYTES = 2**31 - 1
_PIECE_BYTES = 64
_CHUNK = 16384
_SPECIAL = 1 << 1 | 1 << 3 | 1 << 4
"""The attributes unknown, control and user-defined: tokens that are found in text before it is split."""


def utf8(text: str) -> bytes:
    """The text's bytes; a lone surrogate, which no tokenizer can take, becomes U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()


class Vocabulary:
    """The vocabulary of one loaded model; usable as long as the model is."""

    def __init__(self, model: int) -> None:
        self._n = native()
        self.handle: int = self._n.llama_model_get_vocab(model)
        self._n_vocab: int = self._n.llama_vocab_n_tokens(self.handle)

    @property
    def n_vocab(self) -> int:
        return self._n_vocab

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of any text of less than 2 GiB.

        Raises:
            ValueError: longer than that.
        """
        if len(text) <= _CHUNK or not parse_special:
            return self._tokenize(text, add_special, parse_special)
        tokens: list[int] = []
        frame = self._tokenize("", add_special, True)  # BOS, EOS or both, as this model wants them
        begin = 1 if frame and (len(frame) > 1 or self.add_bos) else 0
        for chunk in self._chunks(text):
            tokens += self._tokenize(chunk, False, True)
        return frame[:begin] + tokens + frame[begin:]

    def _chunks(self, text: str) -> Iterator[str]:
        """The text cut where a special token starts, which no merge crosses: the time that native code takes to find special
        tokens grows with their number times the length of the text (30 s for a megabyte of nothing else)."""
        start = 0
        for match in self._special.finditer(text):
            # A token may swallow the spaces before it, so there is no cut after one.
            if match.start() - start >= _CHUNK and not text[match.start() - 1].isspace():
                yield text[start : match.start()]
                start = match.start()
        yield text[start:]

    @cached_property
    def _special(self) -> re.Pattern[str]:
        attributes, handle = self._n.llama_vocab_get_attr, self.handle
        special = [token for token in range(self._n_vocab) if attributes(handle, token) & _SPECIAL]
        texts = {(self._n.llama_vocab_get_text(handle, token) or b"").decode("utf-8", "replace") for token in special} - {""}
        return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or r"(?!)")

    def _tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        raw = utf8(text)
        if len(raw) > _MAX_TEXT_BYTES - 16:
            raise ValueError(f"a text of {len(raw)} bytes is more than the tokenizer takes")
        room = len(raw) + 16
        for _ in range(2):
            tokens = (ctypes.c_int32 * room)()
            count: int = self._n.llama_tokenize(self.handle, raw, len(raw), tokens, room, add_special, parse_special)
            if count >= 0:
                return tokens[:count]
            room = -count
        raise ValueError(f"the text has more than {2**31 - 1} tokens")

    def check(self, token: int) -> int:
        """The token itself.

        Raises:
            ValueError: the vocabulary has no such token.
        """
        if not 0 <= token < self._n_vocab:
            raise ValueError(f"token {token} is not in the vocabulary (0 to {self._n_vocab - 1})")
        return token

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The token's bytes; a control token is empty unless `special`.

        Raises:
            ValueError: the vocabulary has no such token.
        """
        self.check(token)
        room = _PIECE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(room)
            length: int = self._n.llama_token_to_piece(self.handle, token, buffer, room, 0, special)
            if length >= 0:
                return buffer.raw[:length]
            room = -length

    def detokenize(self, tokens: Iterable[int], *, special: bool = True) -> bytes:
        """The pieces in a row: what a stream of these tokens would have said.

        Raises:
            ValueError: the vocabulary lacks one of the tokens.
        """
        return b"".join(self.piece(token, special=special) for token in tokens)

    def is_eog(self, token: int) -> bool:
        return bool(self._n.llama_vocab_is_eog(self.handle, self.check(token)))

    @cached_property
    def eog_tokens(self) -> tuple[int, ...]:
        """Every token that ends a generation."""
        is_eog, handle = self._n.llama_vocab_is_eog, self.handle
        return tuple(token for token in range(self._n_vocab) if is_eog(handle, token))

    @cached_property
    def suppressed_tokens(self) -> tuple[int, ...]:
        """Tokens that the model's file says must never be generated."""
        count = ctypes.c_int32(0)
        found: Any = self._n.llama_vocab_get_suppress_tokens(self.handle, ctypes.byref(count))
        return tuple(found[: count.value]) if found else ()

    @property
    def kind(self) -> int:
        """llama.cpp's vocabulary type (1 SPM, 2 BPE, ...); 0 = the model has no vocabulary."""
        return int(self._n.llama_vocab_type(self.handle))

    @property
    def add_bos(self) -> bool:
        return bool(self._n.llama_vocab_get_add_bos(self.handle))

    def bos_text(self) -> str:
        return self._text(self._n.llama_vocab_bos(self.handle))

    def eos_text(self) -> str:
        return self._text(self._n.llama_vocab_eos(self.handle))

    def _text(self, token: int) -> str:
        return self.piece(token, special=True).decode("utf-8", "replace") if 0 <= token < self._n_vocab else ""
