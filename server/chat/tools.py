"""Tools that a request offers, which of them must be called, and what shape the answer has to have: the same for every dialect. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from server.requests import Constraint

Choice = Literal["auto", "none", "required"]


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    """A JSON schema of an object; empty: it takes nothing."""
    strict: bool = False

    def json(self) -> dict[str, Any]:
        """As OpenAI writes it, which is what chat templates expect."""
        function: dict[str, Any] = {"name": self.name}
        if self.description:
            function["description"] = self.description
        function["parameters"] = self.parameters or {"type": "object", "properties": {}}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputWish:
    """What a chat request wants of the answer's form."""

    tools: tuple[Tool, ...] = ()
    """Those that may be called: none with the choice `none`, one where it is named."""
    choice: Choice = "auto"
    """`required`: at least one call. A named tool is `required` with that one tool in `tools`."""
    parallel: bool = True
    """Whether several calls may come in one answer."""
    constraint: Constraint | None = None
    """The shape of the content (response_format and its relatives)."""
    reasoning_budget: int = -1
    """Most tokens of reasoning; -1: any number, 0: none."""
    split_reasoning: bool = True
    """Whether reasoning is told apart from content; else it stays in it as the model wrote it."""
