"""Messages as Anthropic's clients write them -> messages in OpenAI's form. Pure.

Blocks of text become one text; results of tools become messages of their own, right behind the message that called them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from server.api.opaque import opened
from server.api.turns import Turns
from server.errors import ClientError, Unsupported
from server.http.body import check_plain

_BILLING = "x-anthropic-billing-header:"
_SEPARATOR = "\n"


class Source(msgspec.Struct, kw_only=True):
    """Of a document."""

    type: str
    data: str | None = None
    content: str | list[Block] | None = None


class Block(msgspec.Struct, kw_only=True):
    """Any content block; which members count is told by `type`."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    is_error: bool | None = None
    source: Source | str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    title: str | None = None
    context: str | None = None
    citations: Any = None
    tool_name: str | None = None


class WireMessage(msgspec.Struct, kw_only=True):
    role: str
    content: str | list[Block] | None = None


Content = str | list[Block]


def to_messages(system: Content | None, messages: Sequence[WireMessage]) -> list[dict[str, Any]]:
    """In OpenAI's form; neighbours of the same role are one turn.

    Raises:
        ClientError: a role, a block or a source is missing, wrong or not supported; `param` is its path.
    """
    if not messages:
        raise ClientError("messages is missing or empty", param="messages")
    conversation = _Conversation()
    if system is not None:
        conversation.system(_without_billing(system), "system")
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        if message.content is None:
            raise ClientError(f"{where}.content is missing", param=f"{where}.content")
        match message.role:
            case "user":
                conversation.user(message.content, f"{where}.content")
            case "assistant":
                conversation.assistant(message.content, f"{where}.content")
            case "system":
                conversation.system(message.content, f"{where}.content")
            case _:
                raise ClientError(f"{where}.role must be user, assistant or system", param=f"{where}.role")
    last = conversation.turns.last
    if last is None:
        raise ClientError("messages holds nothing", param="messages")
    if last.calls:
        where = f"messages[{len(messages) - 1}]"
        raise ClientError(f"{where} calls tools; their results must follow it", param=where)
    return conversation.turns.messages()


class _Conversation:
    def __init__(self) -> None:
        self.turns = Turns(separator=_SEPARATOR)

    def system(self, content: Content, where: str) -> None:
        text = _text(content, where)
        if text:
            self.turns.say("system", text)

    def user(self, content: Content, where: str) -> None:
        texts: list[str] = []
        n_results = 0
        for block, path in _blocks(content, where):
            if block.type == "tool_result":
                self._result(block, path)
                n_results += 1
            else:
                texts.append(_text_of(block, path))
        if texts or not n_results:
            self.turns.turn("user").texts.extend(texts)

    def assistant(self, content: Content, where: str) -> None:
        turn = self.turns.turn("assistant")
        for block, path in _blocks(content, where):
            match block.type:
                case "thinking":
                    turn.thoughts.append(block.thinking or opened(block.signature) or "")
                case "redacted_thinking":
                    turn.thoughts.append(opened(block.data) or "")  # what others have hidden nobody here can read
                case "tool_use":
                    self._call(block, path)
                case _:
                    turn.texts.append(_text_of(block, path))

    def _call(self, block: Block, path: str) -> None:
        call_id, name = _required(block.id, f"{path}.id"), _required(block.name, f"{path}.name")
        if block.input is None:
            raise ClientError(f"{path}.input is missing", param=f"{path}.input")
        check_plain(block.input, f"{path}.input")
        self.turns.call(call_id, name, msgspec.json.encode(block.input).decode())

    def _result(self, block: Block, path: str) -> None:
        call_id = _required(block.tool_use_id, f"{path}.tool_use_id")
        text = "" if block.content is None else _text(block.content, f"{path}.content")
        if block.is_error and "error" not in text[:40].lower():
            text = f"Error: {text}" if text else "Error"
        self.turns.result(call_id, text)


def _blocks(content: Content, where: str) -> list[tuple[Block, str]]:
    if isinstance(content, str):
        return [(Block(type="text", text=content), where)]
    return [(block, f"{where}[{i}]") for i, block in enumerate(content)]


def _text(content: Content, where: str) -> str:
    return _SEPARATOR.join(_text_of(block, path) for block, path in _blocks(content, where))


def _text_of(block: Block, path: str) -> str:
    match block.type:
        case "text":
            if block.text is None:
                raise ClientError(f"{path}.text is missing", param=f"{path}.text")
            return block.text
        case "document":
            _refuse_citations(block, path)
            return _SEPARATOR.join(filter(None, (block.title, block.context, _source_text(block.source, f"{path}.source"))))
        case "search_result":
            _refuse_citations(block, path)
            source = block.source if isinstance(block.source, str) else None
            return _SEPARATOR.join(filter(None, (block.title, source, _text(block.content or "", f"{path}.content"))))
        case "tool_reference":
            return _required(block.tool_name, f"{path}.tool_name")
        case _:
            raise Unsupported(f"{path}.type: blocks of type {block.type[:40]!r} are not supported here, only text", param=f"{path}.type")


def _source_text(source: Source | str | None, path: str) -> str:
    if not isinstance(source, Source):
        raise ClientError(f"{path} is missing or no object", param=path)
    if source.type == "text":
        if source.data is None:
            raise ClientError(f"{path}.data is missing", param=f"{path}.data")
        return source.data
    if source.type == "content" and source.content is not None:
        return _text(source.content, f"{path}.content")
    raise Unsupported(f"{path}.type: documents of type {source.type[:40]!r} are not supported, only text", param=f"{path}.type")


def _refuse_citations(block: Block, path: str) -> None:
    if isinstance(block.citations, dict) and block.citations.get("enabled"):
        raise Unsupported(f"{path}.citations: citations are not supported", param=f"{path}.citations")


def _required(value: str | None, path: str) -> str:
    if not value:
        raise ClientError(f"{path} is missing or empty", param=path)
    return value


def _without_billing(system: Content) -> Content:
    """Claude Code's first line accounts for a request to its maker. It differs in each, and with it no prefix would ever be found again."""
    if isinstance(system, str):
        return _without_first_line(system)
    kept = []
    for block in system:
        if block.type == "text" and block.text is not None and block.text.startswith(_BILLING):
            rest = _without_first_line(block.text)
            if not rest:
                continue
            block = msgspec.structs.replace(block, text=rest)
        kept.append(block)
    return kept


def _without_first_line(text: str) -> str:
    return text.partition("\n")[2].lstrip("\n") if text.startswith(_BILLING) else text
