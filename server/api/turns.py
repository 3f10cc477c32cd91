"""Puts a conversation together, in the form that chat templates expect, from the smaller pieces that some dialects send. Pure.

Neighbours of one role are one turn: many templates want turns to alternate, and one system prompt. A thousand pieces cost a thousand steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_SYSTEM = frozenset({"system", "developer"})


@dataclass(slots=True)
class Turn:
    role: str
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    members: dict[str, str] = field(default_factory=dict)
    """Further ones of its message."""


class Turns:
    def __init__(self, *, separator: str) -> None:
        """`separator`: between the texts of one turn."""
        self._separator = separator
        self._turns: list[Turn] = []
        self._names: dict[str, str] = {}
        """Tools by the ids of their calls: some templates want a result to say whose it is."""

    @property
    def last(self) -> Turn | None:
        return self._turns[-1] if self._turns else None

    def turn(self, role: str) -> Turn:
        """The last one if it is of this role, else a new one."""
        last = self.last
        if last is None or not (last.role == role or {last.role, role} <= _SYSTEM):
            last = Turn(role)
            self._turns.append(last)
        return last

    def say(self, role: str, text: str) -> Turn:
        turn = self.turn(role)
        turn.texts.append(text)
        return turn

    def call(self, call_id: str, name: str, arguments: str) -> None:
        """The assistant calls a tool; `arguments` as JSON text."""
        self._names[call_id] = name
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self.turn("assistant").calls.append(call)

    def result(self, call_id: str, text: str) -> None:
        name = self._names.get(call_id)
        self._turns.append(Turn("tool", [text], members={"tool_call_id": call_id, **({"name": name} if name else {})}))

    def messages(self) -> list[dict[str, Any]]:
        return [self._message(turn) for turn in self._turns]

    def _message(self, turn: Turn) -> dict[str, Any]:
        message: dict[str, Any] = {"role": turn.role, **turn.members, "content": self._separator.join(filter(None, turn.texts))}
        if any(turn.thoughts):
            message["reasoning_content"] = "\n".join(filter(None, turn.thoughts))
        if turn.calls:
            message["tool_calls"] = turn.calls
        return message
