"""Bytes of tokens -> text that may be shown: whole characters only, and never a part of a stop string. Knows no tokens, no clock.

What comes out, put together, is what decoding all bytes at once (invalid ones become U+FFFD, an unfinished last character is left out)
and cutting before the first stop string would give, however the bytes were split. "First" is the stop string that ends first; of
several ending at the same character, the longest.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable

_utf8 = codecs.getincrementaldecoder("utf-8")


class StopMatcher:
    """Finds stop strings in a text given character by character (Aho-Corasick): work follows the new text, not the number of words.

    `depth` is the length of the longest end of the text so far that begins a stop string: exactly what has to be held back.
    """

    __slots__ = ("_next", "_fail", "_depth", "_word", "_first", "_state")

    def __init__(self, words: Iterable[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._fail = [0]
        self._depth = [0]
        self._word = [""]
        self._state = 0
        for word in words:
            self._add(word)
        self._first = self._next[0].keys()
        self._link()

    def _add(self, word: str) -> None:
        node = 0
        for character in word:
            child = self._next[node].get(character)
            if child is None:
                child = len(self._next)
                self._next[node][character] = child
                self._next.append({})
                self._fail.append(0)
                self._depth.append(self._depth[node] + 1)
                self._word.append("")
            node = child
        self._word[node] = word

    def _link(self) -> None:
        pending = deque(self._next[0].values())
        while pending:
            node = pending.popleft()
            for character, child in self._next[node].items():
                fallback = self._fail[node]
                while fallback and character not in self._next[fallback]:
                    fallback = self._fail[fallback]
                self._fail[child] = self._next[fallback].get(character, 0)
                # The node's own word is longer than any that ends with it, so it wins the tie.
                self._word[child] = self._word[child] or self._word[self._fail[child]]
                pending.append(child)

    @property
    def depth(self) -> int:
        return self._depth[self._state]

    def feed(self, text: str) -> tuple[int, str] | None:
        """Go on with `text`. Returns (index in `text` behind the match, the stop string), or None; do not feed on after a match."""
        if not self._state and self._first.isdisjoint(text):
            return None
        state, following, fail, word = self._state, self._next, self._fail, self._word
        for index, character in enumerate(text):
            while state and character not in following[state]:
                state = fail[state]
            state = following[state].get(character, 0)
            if word[state]:
                self._state = state
                return index + 1, word[state]
        self._state = state
        return None


class TextStream:
    """One answer's text as it comes. `push` bytes until `stop_word` is set or generation ends, then `flush`.

    `n_decoded` and `n_delivered` count characters, so that what belongs to a token can be sent along with the token's text.
    """

    __slots__ = ("_decoder", "_matcher", "_held", "n_decoded", "n_delivered", "stop_word")

    def __init__(self, stops: Iterable[str] = ()) -> None:
        words = [word for word in stops if word]
        self._decoder = _utf8("replace")
        self._matcher = StopMatcher(words) if words else None
        self._held = ""
        self.n_decoded = 0
        """Characters decoded, held-back ones included; up to the end of the stop string once there is one."""
        self.n_delivered = 0
        self.stop_word: str | None = None

    @property
    def has_partial_character(self) -> bool:
        """Whether the last bytes are the beginning of a character that is still incomplete."""
        return bool(self._decoder.getstate()[0])

    def push(self, data: bytes) -> str:
        """Take the next bytes; returns the text that can be shown now."""
        return self._advance(self._decoder.decode(data)) if data else ""

    def flush(self) -> str:
        """The generation ended by itself (end of text, limit): returns what was held back, without a character that was cut in two."""
        if self.stop_word is not None:
            return ""
        text, self._held = self._held, ""
        self.n_delivered += len(text)
        return text

    def _advance(self, new: str) -> str:
        if not new or self.stop_word is not None:
            return ""
        if self._matcher is None:
            self.n_decoded += len(new)
            self.n_delivered = self.n_decoded
            return new
        found = self._matcher.feed(new)
        text = self._held + new
        if found is None:
            self.n_decoded += len(new)
            held = self._matcher.depth
        else:
            end, self.stop_word = found
            self.n_decoded += end
            text = text[: len(self._held) + end]
            held = len(self.stop_word)
        ready = len(text) - held
        # After a match the held part is the stop string itself: it is dropped, not shown.
        self._held = text[ready:] if found is None else ""
        self.n_delivered += ready
        return text[:ready]
