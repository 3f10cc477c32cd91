"""How many tokens to guess ahead for one sequence, so that it gains and hardly ever loses. Pure; knows costs and counts, no model.

The model of acceptance, and what a draft of k tokens yields, are those of Leviathan et al., "Fast Inference from Transformers via
Speculative Decoding" (arXiv 2211.17192, equation 1): each guess is right with probability p, and none counts after a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable

from server.engine.ngram import NgramIndex

Cost = Callable[[int], float | None]
"""Guesses in a step -> the seconds it will take; None = not known yet."""

LONG_MATCH = 8
"""So many tokens that agree are a copy; fewer may be a common phrase. The two go on with different probabilities."""
_AT_FIRST_SHORT, _AT_FIRST_LONG, _AT_FIRST_DRAFT = 0.6, 0.9, 0.7
"""Probabilities as they were found in greedy answers of a small model."""
_STRENGTH = 3.0
"""Guesses that the first belief counts for; it never fades, so that no luck makes anything certain."""
_MEMORY = 0.9
"""What a verified draft still counts for when the next one has been verified."""
_MARGIN = 1.1
"""The tokens gained must come at so many times the pace of a step without guesses: costs are estimates too."""
_MODEST = 3
"""Guesses while the cost is not known."""
_PROBE, _FIRST_PAUSE, _LONGEST_PAUSE = 2, 16, 256
"""A draft model that does not pay rests for a while (steps), then tries so many tokens; the pause doubles while that does not help."""


class Acceptance:
    """A running estimate of the probability that a guess is right if those before it were."""

    def __init__(self, at_first: float) -> None:
        self._right_at_first = self._right = at_first * _STRENGTH
        self._wrong_at_first = self._wrong = (1 - at_first) * _STRENGTH

    @property
    def p(self) -> float:
        return self._right / (self._right + self._wrong)

    def observe(self, n_proposed: int, n_accepted: int) -> None:
        """The first `n_accepted` were right, and the next one, if there was one, wrong."""
        if n_proposed <= 0:
            return
        self._right = self._right_at_first + _MEMORY * (self._right - self._right_at_first) + n_accepted
        self._wrong = self._wrong_at_first + _MEMORY * (self._wrong - self._wrong_at_first) + (n_accepted < n_proposed)


def best_length(p: float, most: int, cost: Cost, n_streams: int = 1) -> int:
    """How many guesses give most tokens a second, 0 to `most`, if `n_streams` decode in the step and the others get one token each.

    Extra rows slow all of them down, so in a large batch, where rows are what the time goes into, no guess is worth its row.
    """
    alone = cost(0)
    if alone is None or alone <= 0:
        return min(most, _MODEST)
    best, best_rate = 0, n_streams / alone
    gained = chance = 0.0
    for k in range(1, most + 1):
        chance = p if k == 1 else chance * p
        gained += chance
        seconds = cost(k)
        if seconds is None:
            break
        rate = (n_streams + gained) / seconds
        if rate > best_rate and gained * alone > _MARGIN * n_streams * (seconds - alone):
            best, best_rate = k, rate
    return best


class Speculation:
    """For guesses that cost something themselves (a draft model): where they do not pay they stop, and are tried again now and then."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._acceptance = Acceptance(_AT_FIRST_DRAFT)
        self._pause = _FIRST_PAUSE
        self._rested = 0

    def n_draft(self, cost: Cost, n_streams: int = 1) -> int:
        """How many guesses to ask for now; `cost` includes what it takes to guess. Called once for each step."""
        n = best_length(self._acceptance.p, self._most, cost, n_streams)
        if n:
            self._pause, self._rested = _FIRST_PAUSE, 0
            return n
        self._rested += 1
        if self._rested < self._pause:
            return 0
        self._pause, self._rested = min(2 * self._pause, _LONGEST_PAUSE), 0
        # Where nothing could pay, however right it is, there is nothing to find out.
        return min(_PROBE, self._most) if best_length(1.0, self._most, cost, n_streams) else 0

    def observe(self, n_proposed: int, n_accepted: int) -> None:
        """What came of the guesses of a step."""
        self._acceptance.observe(n_proposed, n_accepted)


class PromptLookup:
    """For guesses from the sequence's own text. They cost nothing until they are verified, so those that were not worth it are
    compared with what was said after all: a text that becomes repetitive is noticed without a trial, and prose pays nothing."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._index = NgramIndex()
        self._short, self._long = Acceptance(_AT_FIRST_SHORT), Acceptance(_AT_FIRST_LONG)
        self._asked = self._short
        self._unasked: tuple[int, list[int], Acceptance] | None = None

    def guess(self, tokens: list[int], most: int, cost: Cost, n_streams: int = 1) -> list[int]:
        """What the next step is to verify. `tokens`: all of the sequence, which only ever grow. Called once for each step."""
        self._look_back(tokens)
        found = self._index.propose(tokens, min(most, self._most))
        if not found:
            return []
        acceptance = self._long if self._index.match >= LONG_MATCH else self._short
        n = best_length(acceptance.p, len(found), cost, n_streams)
        if n:
            self._asked = acceptance
        elif self._unasked is None:
            self._unasked = (len(tokens), found, acceptance)
        return found[:n]

    def observe(self, n_proposed: int, n_accepted: int) -> None:
        """What came of the last guesses."""
        self._asked.observe(n_proposed, n_accepted)

    def _look_back(self, tokens: list[int]) -> None:
        """Were the guesses right that nobody asked for? Known once one was wrong or all were said."""
        if self._unasked is None:
            return
        start, found, acceptance = self._unasked
        said = tokens[start : start + len(found)]
        n_right = next((i for i, (a, b) in enumerate(zip(found, said, strict=False)) if a != b), len(said))
        if n_right < len(said) or len(said) == len(found):
            acceptance.observe(len(found), n_right)
            self._unasked = None
