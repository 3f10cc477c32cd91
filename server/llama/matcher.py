"""One sequence's way through a grammar: which tokens may come next, told ahead of the step that draws. Implements `engine.ports.Matcher`.

The mask after a token is computed by another thread, without Python's lock, while the next decode runs. Whoever draws before that
thread has begun computes it instead, so nobody waits behind other sequences' masks. A grammar that cannot be followed any further is a
`ConstraintFault`, never an unconstrained token.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from server.engine.ports import ConstraintFault
from server.llama.masks import Mask, MaskedDraw, Masks

if TYPE_CHECKING:
    from llguidance._lib import LLMatcher


class GrammarMatcher:
    """`matcher`: at its beginning, and nobody else's. Used by one thread at a time. Nothing has to be closed before the first draw."""

    def __init__(self, matcher: LLMatcher, masks: Masks, pool: ThreadPoolExecutor, n_vocab: int, eog: frozenset[int]) -> None:
        self._matcher = matcher
        self._masks = masks
        self._pool = pool
        self._eog = eog
        self._n_vocab = n_vocab
        self._draw: MaskedDraw | None = None  # made when it is needed: a request that is cancelled before closes nothing
        self._has_ended = False
        self._next = pool.submit(self._compute)

    @property
    def has_ended(self) -> bool:
        """Nothing may come any more: the text is whole."""
        return self._has_ended

    def close(self) -> None:
        self._next.cancel()
        if self._draw is not None:
            self._draw.close()

    def draw(self, chain: Any, context: int, row: int, logits: Any) -> int:
        """Draw the next token with `chain` from a row of logits, accept it in both, and have the mask after it computed.

        Raises:
            ConstraintFault: the grammar cannot be followed any further.
        """
        if self._draw is None:
            self._draw = MaskedDraw(self._n_vocab)
        token = self._draw.draw(chain, context, row, logits, self._mask())
        self._accept(token)
        if not self._has_ended:
            self._next = self._pool.submit(self._compute)
        return token

    def _mask(self) -> Mask:
        return self._compute() if self._next.cancel() else self._next.result()

    def _accept(self, token: int) -> None:
        if token in self._eog:
            self._has_ended = True
            return
        accepted = guarded(self._matcher.consume_token, token)
        if not accepted or self._matcher.is_error():
            raise ConstraintFault(brief(self._matcher.get_error()) or f"the grammar does not take token {token}")
        self._has_ended = stopped(self._matcher)

    def _compute(self) -> Mask:
        bits = guarded(self._matcher.compute_bitmask)
        stopped(self._matcher)
        return self._masks.mask(bits)


def stopped(matcher: LLMatcher) -> bool:
    """Whether the text is whole and nothing may be added to it.

    Raises:
        ConstraintFault: the grammar is stuck in the middle, or has become too complex.
    """
    if not matcher.is_stopped():
        return False
    if matcher.is_error() or not matcher.is_accepting():
        raise ConstraintFault(brief(matcher.get_error()) or "nothing that the grammar allows can come next")
    return True


def guarded(call: Any, *arguments: Any, **named: Any) -> Any:
    """Call native code; whatever it raises, a panic included, becomes a `ConstraintFault`."""
    try:
        return call(*arguments, **named)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ConstraintFault(f"the grammar broke down: {brief(str(error))}") from error


def brief(message: str) -> str:
    """The native library's words on one line, without what it tells its own developers."""
    text = " ".join(message.partition("<state>")[0].partition("<non-verbose/>")[0].split())
    text = "nothing that the grammar allows can come next" if text.startswith("NoExtension") else text.removeprefix("parser error: ")
    return text[:300] + "…" if len(text) > 300 else text
