"""What one request has said so far: text, and the tokens and log-probabilities that go out with it. Knows no slots, no batch, no clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from server.engine.detokenizer import TextStream
from server.protocol import Delta, TokenLogprob


class _Held(NamedTuple):
    """A token whose text is not (wholly) out yet; `start` and `end` are offsets in the answer, in characters."""

    start: int
    end: int
    token: int
    logprob: TokenLogprob | None


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step adds to an answer."""

    text: str
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.text or self.tokens or self.logprobs)

    def __add__(self, other: Piece) -> Piece:
        return Piece(self.text + other.text, self.tokens + other.tokens, self.logprobs + other.logprobs)

    def delta(self, request_id: int) -> Delta:
        return Delta(id=request_id, text=self.text, tokens=self.tokens, logprobs=self.logprobs)


class Answer:
    """Aligns tokens with text: a token is sent once its last character is, and one that lies inside the stop string never."""

    __slots__ = ("_stream", "_held", "_with_tokens", "_with_logprobs")

    def __init__(self, stops: tuple[str, ...], *, with_tokens: bool, with_logprobs: bool) -> None:
        self._stream = TextStream(stops)
        self._held: deque[_Held] = deque()
        self._with_tokens = with_tokens
        self._with_logprobs = with_logprobs

    @property
    def stop_word(self) -> str | None:
        """The stop string that ended the answer."""
        return self._stream.stop_word

    def push(self, token: int, data: bytes, logprob: TokenLogprob | None) -> Piece:
        """Take one sampled token and its bytes (none for a control token)."""
        stream = self._stream
        start = stream.n_decoded
        text = stream.push(data)
        if self._with_tokens or self._with_logprobs:
            self._held.append(_Held(start, stream.n_decoded + stream.has_partial_character, token, logprob))
            return self._with_text(text, ended=stream.stop_word is not None)
        return Piece(text)

    def flush(self) -> Piece:
        """The answer ended by itself: what was held back goes out."""
        text = self._stream.flush()
        return self._with_text(text, ended=True)

    def _with_text(self, text: str, *, ended: bool) -> Piece:
        shown, held = self._stream.n_delivered, self._held
        out: list[_Held] = []
        while held and held[0].end <= shown:
            out.append(held.popleft())
        if ended:
            whole = self._stream.stop_word is None
            out += [item for item in held if whole or item.start < shown]
            held.clear()
        return Piece(
            text,
            tuple(item.token for item in out) if self._with_tokens else (),
            tuple(item.logprob for item in out if item.logprob is not None) if self._with_logprobs else (),
        )
