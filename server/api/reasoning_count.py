"""How many of an answer's tokens were reasoning, told by what the parser made of each delta. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from server.chat.parts import Part, Reasoning
from server.protocol import Delta


class ReasoningCount:
    """Of one answer. Text that the parser holds back counts as what came before it, so a tag or two may be misplaced."""

    def __init__(self) -> None:
        self.n_tokens = 0
        self._is_reasoning = False

    def add(self, parts: Sequence[Part], delta: Delta | None) -> None:
        """`delta`: where `parts` are from; it carries its tokens where the request asked for them, else it counts as one."""
        if parts:
            self._is_reasoning = any(isinstance(part, Reasoning) for part in parts)
        if delta is not None and self._is_reasoning:
            self.n_tokens += max(1, len(delta.tokens))
