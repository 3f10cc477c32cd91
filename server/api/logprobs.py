"""Log-probabilities in the three shapes that clients know. Pure."""

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence
from typing import Any

from server.protocol import TokenLogprob

IMPOSSIBLE = -9999.0
"""Stands for minus infinity, which JSON cannot hold."""


def token_text(piece: bytes) -> str:
    """A token's text; one that is part of a character shows its bytes instead."""
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else IMPOSSIBLE


def _entry(token: int, piece: bytes, logprob: float) -> dict[str, Any]:
    return {"id": token, "token": token_text(piece), "bytes": list(piece), "logprob": finite(logprob)}


def entries(logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """OpenAI's chat shape (the members of `content`); llama-server's `completion_probabilities` is the same list."""
    return [{**_entry(lp.token, lp.piece, lp.logprob), "top_logprobs": [_entry(*top) for top in lp.top]} for lp in logprobs]


class CompletionLogprobs:
    """OpenAI's completions shape; offsets go on from one call to the next and count characters of the returned text."""

    def __init__(self, start: int = 0) -> None:
        self._offset = start
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def render(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        offsets = []
        for lp in logprobs:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(lp.piece))
        return {
            "tokens": [token_text(lp.piece) for lp in logprobs],
            "token_logprobs": [finite(lp.logprob) for lp in logprobs],
            "top_logprobs": [{token_text(piece): finite(value) for _, piece, value in lp.top} for lp in logprobs],
            "text_offset": offsets,
        }
