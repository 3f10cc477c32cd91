"""Items of /v1/responses -> messages in the form of chat completions. Pure.

An answer is several items (reasoning, a message, calls) but one message; what stands next to each other is put together again.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from server.api.opaque import opened
from server.api.turns import Turn, Turns
from server.errors import ClientError, Unsupported


class Part(msgspec.Struct, kw_only=True, omit_defaults=True):
    type: str
    text: str | None = None
    refusal: str | None = None


class Item(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Any item; which members count is told by `type`, whose absence means a message."""

    type: str | None = None
    id: str | None = None
    status: str | None = None
    role: str | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[Part] | None = None
    summary: list[Part] | None = None
    encrypted_content: str | None = None


_ROLES = frozenset({"user", "assistant", "system", "developer"})
_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "reasoning_text", "summary_text"})
_PREFIXES = {"message": "msg_", "function_call": "fc_", "function_call_output": "fco_", "reasoning": "rs_"}
_LEFT_OUT = frozenset(
    "web_search_call file_search_call code_interpreter_call image_generation_call computer_call local_shell_call local_shell_call_output "
    "shell_call shell_call_output apply_patch_call apply_patch_call_output mcp_call mcp_list_tools mcp_approval_request "
    "mcp_approval_response tool_search_call tool_search_output".split()
)
"""Traces of tools that other servers run: they tell a model nothing that the messages around them do not."""

REFERENCE = "item_reference"


def kind_of(item: Item) -> str:
    if item.type is not None:
        return item.type
    return REFERENCE if item.id is not None and item.role is None else "message"


def new_id(kind: str) -> str:
    return _PREFIXES.get(kind, "item_") + secrets.token_hex(16)


def listed(given: str | list[Item] | None) -> list[Item]:
    return [Item(role="user", content=given)] if isinstance(given, str) else given or []


def stored_form(item: Item) -> dict[str, Any]:
    """As it is kept and shown: with its type and an id, texts as parts."""
    kind = kind_of(item)
    content = item.content
    if isinstance(content, str):
        content = [Part(type="output_text" if item.role == "assistant" else "input_text", text=content)]
    named = msgspec.structs.replace(item, type=kind, id=item.id or new_id(kind), status=item.status or "completed", content=content)
    found: dict[str, Any] = msgspec.to_builtins(named)
    for part in found.get("content", ()):
        if part["type"] == "output_text":
            part["annotations"] = []
    return found


def to_messages(instructions: str | None, items: Sequence[Item], n_earlier: int = 0) -> tuple[list[dict[str, Any]], list[str]]:
    """The messages, and notices about items that were left out. The first `n_earlier` items are not of this request.

    Raises:
        ClientError: an item is incomplete, wrong or not supported; `param` is its path.
    """
    conversation = _Conversation()
    if instructions:
        conversation.turns.say("system", instructions)
    for i, item in enumerate(items):
        conversation.item(item, f"input[{i - n_earlier}]")
    last = conversation.turns.last
    if last is None:
        raise ClientError("input is missing or empty", param="input")
    if last.calls:
        raise ClientError(f"input: there is no output for the call {last.calls[-1]['id'][:60]!r}", param="input")
    return conversation.turns.messages(), conversation.notices


class _Conversation:
    def __init__(self) -> None:
        self.turns = Turns(separator="\n\n")
        self.notices: list[str] = []
        self._thoughts: list[str] = []
        """Of an answer whose other items are still to come."""

    def item(self, item: Item, where: str) -> None:
        match kind_of(item):
            case "message":
                self._message(item, where)
            case "reasoning":
                self._thoughts.append(_reasoning(item, where))
            case "function_call" | "custom_tool_call" as kind:
                self._call(item, kind, where)
            case "function_call_output" | "custom_tool_call_output":
                call_id = _required(item.call_id, f"{where}.call_id")
                if item.output is None:
                    raise ClientError(f"{where}.output is missing", param=f"{where}.output")
                self._thoughts.clear()
                self.turns.result(call_id, _text(item.output, f"{where}.output"))
            case kind if kind in _LEFT_OUT:
                self.notices.append(f"{where}: an item of type {kind!r} was left out")
            case kind:
                raise Unsupported(f"{where}.type: items of type {kind[:40]!r} are not supported", param=f"{where}.type")

    def _message(self, item: Item, where: str) -> None:
        if item.role not in _ROLES:
            raise ClientError(f"{where}.role must be one of {', '.join(sorted(_ROLES))}", param=f"{where}.role")
        if item.content is None:
            raise ClientError(f"{where}.content is missing", param=f"{where}.content")
        text = _text(item.content, f"{where}.content")
        if item.role == "assistant":
            self._answer().texts.append(text)
        else:
            self._thoughts.clear()
            self.turns.say(item.role, text)

    def _answer(self) -> Turn:
        """The assistant's turn that is being put together."""
        turn = self.turns.turn("assistant")
        turn.thoughts += self._thoughts
        self._thoughts.clear()
        return turn

    def _call(self, item: Item, kind: str, where: str) -> None:
        call_id, name = _required(item.call_id, f"{where}.call_id"), _required(item.name, f"{where}.name")
        if kind == "custom_tool_call":
            arguments = msgspec.json.encode({"input": item.input or ""}).decode()
        else:
            arguments = _arguments(item.arguments, f"{where}.arguments")
        self._answer()
        self.turns.call(call_id, name, arguments)


def _text(content: str | list[Part], where: str) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_part_text(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part_text(part: Part, where: str) -> str:
    if part.type not in _TEXT_PARTS and part.type != "refusal":
        raise Unsupported(f"{where}.type: parts of type {part.type[:40]!r} are not supported, only text", param=f"{where}.type")
    name = "refusal" if part.type == "refusal" else "text"
    text: str | None = getattr(part, name)
    if text is None:
        raise ClientError(f"{where}.{name} is missing", param=f"{where}.{name}")
    return text


def _reasoning(item: Item, where: str) -> str:
    """From the plainest form that came back; reasoning that others have encrypted nobody here can read."""
    if item.content:
        return _text(item.content, f"{where}.content")
    return opened(item.encrypted_content) or _text(item.summary or [], f"{where}.summary")


def _arguments(text: str | None, where: str) -> str:
    """An object's JSON text. What a model has written goes back to it as it was, and that may have been cut off."""
    if text is None:
        raise ClientError(f"{where} is missing", param=where)
    return text if text.strip() else "{}"


def _required(value: str | None, where: str) -> str:
    if not value:
        raise ClientError(f"{where} is missing or empty", param=where)
    return value
