"""Prompt lookup: what followed the last time when a text was where it is now. Pure; knows one sequence's tokens and no model.

After github.com/apoorvumang/prompt-lookup-decoding (Saxena, 2023); the idea is also that of "Inference with Reference" (Yang et al.,
arXiv 2304.04487). The index is the hash chain of LZ77 coders: it knows the shortest matches, longer ones are found by looking back.
"""

from __future__ import annotations

from array import array

LEAST = 3
"""Tokens that must agree. After two, half of the guesses are wrong from the first token on; after four, half of the copies are missed."""
LONGEST = 16
"""Tokens that are compared; what agrees so far is a copy, and a longer one is not likelier to go on."""
_TRIES = 16
"""Steps down a chain: earlier ends that are compared, latest first."""
_MOST_NEW = 8192
"""Tokens that one call reads, in a few milliseconds: a long prompt takes several."""
_BITS = 20
"""Of a token id in a key. Ids that need more are told apart when they are compared."""
_KEY = (1 << _BITS * LEAST) - 1


class NgramIndex:
    """Of one sequence. It takes 8 to 16 bytes a token, and a call does no more work for a longer text."""

    def __init__(self) -> None:
        self.match = 0
        """Tokens that agreed for the last proposal, `LONGEST` at most; 0 = there was none."""
        # Ends of n-grams by key, as places in the text: an end is the index of the token that followed. 0 = no such end.
        self._latest = array("i")
        self._earlier = array("i", [0])  # end -> the end before it in the same chain
        self._key = 0

    def propose(self, tokens: list[int], most: int) -> list[int]:
        """What may follow `tokens`, `most` tokens at most; none if they end as never before. They only ever grow between calls.

        The longest match counts, of equal ones the latest. Where the text repeats itself up to its very end, so does the proposal.
        """
        self.match = 0
        if not self._read(tokens) or most <= 0:
            return []
        best, end = 0, self._earlier[len(tokens)]
        for _ in range(_TRIES):
            if end < LEAST or self.match == LONGEST:
                break
            length = _agreement(tokens, end)
            if length >= LEAST and length > self.match:
                self.match, best = length, end
            end = self._earlier[end]
        return self._copied(tokens, best, most) if self.match else []

    def _copied(self, tokens: list[int], start: int, most: int) -> list[int]:
        found = tokens[start : start + most]
        period = len(tokens) - start
        # A match as long as its distance has been said twice without a break, so it may go on like that.
        while len(found) < most and self.match >= min(period, LONGEST):
            found.append(found[-period])
        return found

    def _read(self, tokens: list[int]) -> bool:
        """Take in what is new; False = not all of it yet."""
        earlier, first = self._earlier, len(self._earlier) - 1
        if not self._latest:
            # Modulo 2^k - 1 all bits of a key count. A text that outgrows the table gets longer chains, nothing worse.
            self._latest = array("i", [0]) * ((1 << (2 * len(tokens) + 1024).bit_length() - 1) - 1)
        latest, size, key = self._latest, len(self._latest), self._key
        for end, token in enumerate(tokens[first : first + _MOST_NEW], first + 1):
            key = (key << _BITS | token) & _KEY
            place = key % size
            earlier.append(latest[place])
            latest[place] = end
        self._key = key
        return len(earlier) - 1 == len(tokens)


def _agreement(tokens: list[int], end: int) -> int:
    """How many tokens before `end` are those before the end of the text, `LONGEST` at most."""
    length = 0
    while length < min(LONGEST, end) and tokens[end - 1 - length] == tokens[-1 - length]:
        length += 1
    return length
