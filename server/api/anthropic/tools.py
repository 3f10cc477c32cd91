"""Tools and the choice among them, as Anthropic's clients write them. Pure.

Tools that Anthropic runs itself do not exist here: they are left out and the answer says so; one that must be called is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from server.chat.tools import Tool
from server.errors import ClientError, Unsupported
from server.http.body import check_plain


class ToolParam(msgspec.Struct, kw_only=True):
    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoiceParam(msgspec.Struct, kw_only=True):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


@dataclass(frozen=True, slots=True)
class ToolUse:
    shown: tuple[Tool, ...]
    """Those that the template shows."""
    callable: tuple[Tool, ...]
    is_required: bool
    parallel: bool
    notices: tuple[str, ...]


_TEXT = {"type": "string"}
_RANGE = {"type": "array", "items": {"type": "integer"}}
_KNOWN: dict[str, tuple[str, dict[str, Any]]] = {
    "bash_": (
        "Run a command in a bash shell that stays open from call to call.",
        {"command": _TEXT, "restart": {"type": "boolean", "description": "true: start the shell anew instead of running a command"}},
    ),
    "text_editor_": (
        "View, create and edit text files.",
        {
            "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert"]},
            "path": _TEXT,
            "file_text": {"type": "string", "description": "create: the whole file"},
            "old_str": {"type": "string", "description": "str_replace: what stands there, exactly once"},
            "new_str": {"type": "string", "description": "str_replace: what shall stand there"},
            "insert_line": {"type": "integer", "description": "insert: the line after which the text comes; 0 = at the top"},
            "insert_text": {"type": "string", "description": "insert: the text"},
            "view_range": {**_RANGE, "description": "view: first and last line"},
        },
    ),
}
"""Tools that the client runs but whose inputs Anthropic has fixed: beginning of the type -> what it does, its members."""
_KNOWN_REQUIRED = {"bash_": [], "text_editor_": ["command", "path"]}


def parse_tools(given: Sequence[ToolParam] | None, choice: ToolChoiceParam | None) -> ToolUse:
    """Raises:
    ClientError: a tool has no name or no schema, two have the same name, or the choice names none of them.
    """
    tools: dict[str, Tool] = {}
    absent: dict[str, str] = {}
    notices: list[str] = []
    for i, param in enumerate(given or ()):
        where = f"tools[{i}]"
        tool = _tool(param, where)
        if tool is None:
            absent[param.name or ""] = param.type or ""
            notices.append(f"{where}: tools of type {(param.type or '')[:60]!r} do not exist here and were left out")
        elif tool.name in tools:
            raise ClientError(f"{where}.name: there are two tools of the name {tool.name[:60]!r}", param=f"{where}.name")
        else:
            tools[tool.name] = tool
    shown = tuple(tools.values())
    parallel = not (choice is not None and choice.disable_parallel_tool_use)
    match choice.type if choice is not None else "auto":
        case "auto":
            return ToolUse(shown, shown, False, parallel, tuple(notices))
        case "none":
            return ToolUse(shown, (), False, parallel, tuple(notices))
        case "any":
            if not shown:
                raise ClientError("tool_choice: there is no tool that could be called", param="tool_choice")
            return ToolUse(shown, shown, True, parallel, tuple(notices))
        case "tool":
            assert choice is not None
            return ToolUse(shown, (_named(choice.name, tools, absent),), True, parallel, tuple(notices))
        case _:
            raise ClientError("tool_choice.type must be auto, any, tool or none", param="tool_choice.type")


def _tool(param: ToolParam, where: str) -> Tool | None:
    """None: not one that the client runs."""
    if param.type in (None, "custom"):
        if not param.name:
            raise ClientError(f"{where}.name is missing or empty", param=f"{where}.name")
        if param.input_schema is None:
            raise ClientError(f"{where}.input_schema is missing", param=f"{where}.input_schema")
        check_plain(param.input_schema, f"{where}.input_schema")
        return Tool(param.name, param.description or "", param.input_schema, bool(param.strict))
    for beginning, (description, members) in _KNOWN.items():
        if param.type is not None and param.type.startswith(beginning) and param.name:
            schema = {"type": "object", "properties": members, "required": _KNOWN_REQUIRED[beginning]}
            return Tool(param.name, description, schema)
    return None


def _named(name: str | None, tools: dict[str, Tool], absent: dict[str, str]) -> Tool:
    if not name:
        raise ClientError("tool_choice.name is missing", param="tool_choice.name")
    if name in absent:
        raise Unsupported(f"tool_choice.name: tools of type {absent[name][:60]!r} do not exist here", param="tool_choice.name")
    if name not in tools:
        raise ClientError(f"tool_choice.name: there is no tool of the name {name[:60]!r}", param="tool_choice.name")
    return tools[name]
