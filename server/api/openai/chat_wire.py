"""POST /v1/chat/completions, the request: wire record -> `ChatCall`. Pure; the prompt itself is rendered elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from server.api.fields import GenerationFields, refuse
from server.api.options import Options, logprobs_of, parse_options
from server.errors import ClientError, Unsupported
from server.http.body import check_plain
from server.protocol import ModelInfo
from server.settings import Settings

MAX_TOP_LOGPROBS = 20
_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "refusal"})
_RESERVED = frozenset({"messages", "add_generation_prompt", "continue_final"})


class ChatBody(GenerationFields, kw_only=True):
    messages: list[dict[str, Any]] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    # known, not done here (see _UNSUPPORTED)
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None


_UNSUPPORTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "modalities": (lambda v: v in ([], ["text"]), "only text is supported"),
    "audio": (lambda v: False, "audio is not supported"),
    "web_search_options": (lambda v: False, "web search is not supported"),
}


@dataclass(frozen=True, slots=True)
class ChatCall:
    options: Options
    messages: list[dict[str, Any]]
    add_generation_prompt: bool
    continue_final: bool
    """The answer goes on with the last message, which is the assistant's."""
    template_variables: dict[str, Any]


def parse_chat(body: ChatBody, settings: Settings, info: ModelInfo) -> ChatCall:
    """Raises:
    ClientError: a member is missing, out of range or not supported; `param` names it.
    """
    refuse(body, _UNSUPPORTED)
    messages = check_messages(body.messages)
    add_generation_prompt, continue_final = _ending(body, messages)
    return ChatCall(
        options=parse_options(body, settings, info, n_logprobs=_n_logprobs(body)),
        messages=messages,
        add_generation_prompt=add_generation_prompt,
        continue_final=continue_final,
        template_variables=_template_variables(body.chat_template_kwargs),
    )


def check_messages(messages: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Raises:
    ClientError: there are none, or one has no role or a content that is no text; `param` is its path.
    """
    if not messages:
        raise ClientError("messages is missing or empty", param="messages")
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        if not isinstance(message.get("role"), str) or not message["role"]:
            raise ClientError(f"{where}.role is missing or not a string", param=f"{where}.role")
        content = message.get("content")
        if isinstance(content, list):
            for j, part in enumerate(content):
                _check_part(part, f"{where}.content[{j}]")
        elif content is not None and not isinstance(content, str):
            raise ClientError(f"{where}.content must be a string, a list of parts or null", param=f"{where}.content")
        if message.get("audio") is not None:
            raise Unsupported("audio is not supported", param=f"{where}.audio")
        check_plain(message, where)
    return messages


def _check_part(part: Any, where: str) -> None:
    if isinstance(part, str):
        return
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise ClientError(f"{where} must be a part with a type", param=where)
    if kind not in _TEXT_PARTS:
        raise Unsupported(f"{where}: parts of type {kind[:40]!r} are not supported, only text", param=where)
    if not isinstance(part.get("refusal" if kind == "refusal" else "text"), str):
        raise ClientError(f"{where}.text is missing or not a string", param=f"{where}.text")


def _ending(body: ChatBody, messages: list[dict[str, Any]]) -> tuple[bool, bool]:
    by_assistant = messages[-1]["role"] == "assistant"
    continue_final = by_assistant if body.continue_final_message is None else body.continue_final_message
    if body.continue_final_message is None and body.add_generation_prompt:
        continue_final = False
    add = not continue_final if body.add_generation_prompt is None else body.add_generation_prompt
    if continue_final and add:
        raise ClientError("add_generation_prompt and continue_final_message exclude each other", param="continue_final_message")
    if continue_final and not by_assistant:
        raise ClientError("only a last message of the assistant can be continued", param="continue_final_message")
    return add, continue_final


def _template_variables(given: dict[str, Any] | None) -> dict[str, Any]:
    variables = given or {}
    for name in variables:
        if name in _RESERVED or not name.isidentifier():
            raise ClientError(f"chat_template_kwargs: {name[:40]!r} cannot be set", param="chat_template_kwargs")
    check_plain(variables, "chat_template_kwargs")
    return variables


def _n_logprobs(body: ChatBody) -> int | None:
    top = logprobs_of("top_logprobs", body.top_logprobs, MAX_TOP_LOGPROBS)
    if body.logprobs:
        return top or 0
    if top:
        raise ClientError("top_logprobs needs logprobs: true", param="top_logprobs")
    return logprobs_of("n_probs", body.n_probs) or None
