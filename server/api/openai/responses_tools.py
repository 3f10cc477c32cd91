"""Tools of /v1/responses and the choice among them. Pure. Tools that are no functions are left out, and the answer says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from server.chat.tools import Choice, Tool
from server.errors import ClientError, Unsupported
from server.http.body import check_plain


class ToolParam(msgspec.Struct, kw_only=True):
    type: str | None = None
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class AllowedTool(msgspec.Struct, kw_only=True, omit_defaults=True):
    type: str | None = None
    name: str | None = None


class ToolChoiceParam(msgspec.Struct, kw_only=True, omit_defaults=True):
    type: str
    name: str | None = None
    mode: str | None = None
    tools: list[AllowedTool] | None = None


@dataclass(frozen=True, slots=True)
class ToolUse:
    shown: tuple[Tool, ...]
    """Those that the template shows."""
    callable: tuple[Tool, ...]
    choice: Choice
    notices: tuple[str, ...]

    def tools_json(self) -> list[dict[str, Any]]:
        return [
            {"type": "function", "name": t.name, "description": t.description, "parameters": t.parameters, "strict": t.strict}
            for t in self.shown
        ]


def parse_tools(given: Sequence[ToolParam] | None, choice: str | ToolChoiceParam | None) -> ToolUse:
    """Raises:
    ClientError: a function has no name, two have the same, or the choice names none of them.
    """
    tools: dict[str, Tool] = {}
    notices: list[str] = []
    for i, param in enumerate(given or ()):
        where = f"tools[{i}]"
        if param.type is None:
            raise ClientError(f"{where}.type is missing", param=f"{where}.type")
        if param.type != "function":
            notices.append(f"{where}: tools of type {param.type[:60]!r} are not supported and were left out")
            continue
        if not param.name:
            raise ClientError(f"{where}.name is missing or empty", param=f"{where}.name")
        if param.name in tools:
            raise ClientError(f"{where}.name: there are two tools of the name {param.name[:60]!r}", param=f"{where}.name")
        check_plain(param.parameters, f"{where}.parameters")
        tools[param.name] = Tool(param.name, param.description or "", param.parameters or {}, bool(param.strict))
    chosen, how = _chosen(tools, choice)
    return ToolUse(tuple(tools.values()), chosen, how, tuple(notices))


def _chosen(tools: dict[str, Tool], choice: str | ToolChoiceParam | None) -> tuple[tuple[Tool, ...], Choice]:
    everything = tuple(tools.values())
    if choice is None or choice == "auto":
        return everything, "auto" if everything else "none"
    if choice == "none":
        return (), "none"
    if choice == "required":
        if not everything:
            raise ClientError("tool_choice: there is no function that could be called", param="tool_choice")
        return everything, "required"
    if isinstance(choice, str):
        raise ClientError("tool_choice must be none, auto, required or an object", param="tool_choice")
    if choice.type == "function":
        return (_named(tools, choice.name, "tool_choice.name"),), "required"
    if choice.type == "allowed_tools":
        if choice.mode not in ("auto", "required"):
            raise ClientError("tool_choice.mode must be auto or required", param="tool_choice.mode")
        allowed = [
            _named(tools, tool.name, f"tool_choice.tools[{i}].name")
            for i, tool in enumerate(choice.tools or ())
            if tool.type in (None, "function")
        ]
        if not allowed:
            raise ClientError("tool_choice.tools holds no function", param="tool_choice.tools")
        return tuple(allowed), "required" if choice.mode == "required" else "auto"
    raise Unsupported(f"tool_choice.type: {choice.type[:40]!r} is not supported, only functions can be called", param="tool_choice.type")


def _named(tools: dict[str, Tool], name: str | None, where: str) -> Tool:
    if not name:
        raise ClientError(f"{where} is missing", param=where)
    if name not in tools:
        raise ClientError(f"{where}: there is no function of the name {name[:60]!r}", param=where)
    return tools[name]
