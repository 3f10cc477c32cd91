"""Messages as clients send them -> messages as one template takes them. Pure; the template is asked only what it takes."""

from __future__ import annotations

from typing import Any, Protocol

Message = dict[str, Any]
Content = str | list[dict[str, Any]]

_TEXT_PARTS = frozenset({"text", "input_text", "output_text"})


class InputRefused(Exception):
    """These messages or variables cannot be rendered. One sentence; `param` names the field."""

    def __init__(self, message: str, param: str = "messages") -> None:
        super().__init__(message)
        self.param = param


class Taste(Protocol):
    """What a template takes; each answer may cost a trial render."""

    @property
    def takes_text(self) -> bool: ...
    @property
    def takes_parts(self) -> bool: ...
    @property
    def takes_system(self) -> bool: ...
    @property
    def takes_null(self) -> bool: ...
    @property
    def takes_developer(self) -> bool: ...

    def content(self, text: str) -> Content: ...


def normalise(messages: list[Message], taste: Taste) -> list[Message]:
    """Copies of `messages` with roles and contents that the template takes.

    Raises:
        InputRefused: a content is neither text nor null nor a list of text parts.
    """
    prepared = [_prepare(message, f"messages[{i}]", taste) for i, message in enumerate(messages)]
    if any(m.get("role") == "system" for m in prepared) and not taste.takes_system:
        prepared = _merge_system(prepared, taste)
    return prepared


def with_mark(messages: list[Message], mark: str) -> list[Message]:
    """Normalised `messages` with `mark` at the end of the last one, which must be the assistant's.

    Raises:
        InputRefused: there is no such message.
    """
    if not messages or messages[-1].get("role") != "assistant":
        raise InputRefused("only a last message of the assistant can be continued")
    last = messages[-1]
    content = last.get("content")
    if isinstance(content, list):
        content = [*content, {"type": "text", "text": mark}]
        if len(content) > 1 and "text" in content[-2]:
            content[-2:] = [{**content[-2], "text": content[-2]["text"] + mark}]
    else:
        content = (content or "") + mark
    return [*messages[:-1], {**last, "content": content}]


def _prepare(message: Message, param: str, taste: Taste) -> Message:
    message = dict(message)
    if message.get("role") == "developer" and not taste.takes_developer:
        message["role"] = "system"
    content = message.get("content")
    if content is None:
        calls_tools = message.get("role") == "assistant" and message.get("tool_calls")
        if not (calls_tools and taste.takes_null):
            message["content"] = taste.content("")
    elif isinstance(content, str):
        message["content"] = taste.content(content)
    elif isinstance(content, list):
        message["content"] = taste.content(_text_of(content, f"{param}.content"))
    else:
        raise InputRefused("content must be text, null or a list of parts", f"{param}.content")
    return message


def _text_of(parts: list[Any], param: str) -> str:
    """The parts' texts, one below the other."""
    texts: list[str] = []
    for i, part in enumerate(parts):
        if isinstance(part, str):
            texts.append(part)
            continue
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
        if (kind in _TEXT_PARTS or kind == "refusal") and isinstance(text, str):
            texts.append(text)
        elif kind in _TEXT_PARTS or not isinstance(kind, str):
            raise InputRefused("a content part needs a type and its text", f"{param}[{i}]")
        else:
            raise InputRefused(f"content parts of type {kind[:40]!r} are not supported by this model", f"{param}[{i}].type")
    return "\n".join(texts)


def _merge_system(messages: list[Message], taste: Taste) -> list[Message]:
    """For templates without a system role: its text goes in front of the next user message."""
    merged: list[Message] = []
    pending: list[str] = []
    for message in messages:
        if message.get("role") == "system":
            pending.append(_plain(message["content"]))
        elif message.get("role") == "user" and pending:
            merged.append({**message, "content": taste.content("\n\n".join([*pending, _plain(message["content"])]))})
            pending = []
        else:
            merged.append(message)
    if pending:
        merged.append({"role": "user", "content": taste.content("\n\n".join(pending))})
    return merged


def _plain(content: Content) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
