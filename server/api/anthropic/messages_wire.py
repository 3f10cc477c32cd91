"""POST /v1/messages, the request: wire record -> `MessagesCall`. Pure; the prompt itself is rendered elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from server.api.anthropic.content import Block, WireMessage, to_messages
from server.api.anthropic.tools import ToolChoiceParam, ToolParam, ToolUse, parse_tools
from server.api.chat_call import ChatCall
from server.api.effort import thinking_variables
from server.api.fields import GenerationFields, refuse
from server.api.options import parse_options
from server.api.renaming import renamed
from server.api.sampling import INT_MAX, check_range
from server.api.scheduling import MAX_NAME_CHARS
from server.chat.tools import OutputWish
from server.errors import ClientError, Unsupported
from server.http.body import check_plain
from server.protocol import ModelInfo
from server.requests import Constraint
from server.settings import Settings


class Metadata(msgspec.Struct, kw_only=True):
    user_id: str | None = None


class Thinking(msgspec.Struct, kw_only=True):
    type: str
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct, kw_only=True):
    effort: str | None = None
    format: OutputFormat | None = None


class MessagesBody(GenerationFields, kw_only=True):
    messages: list[WireMessage] | None = None
    system: str | list[Block] | None = None
    stop_sequences: list[str] | None = None
    metadata: Metadata | None = None
    thinking: Thinking | None = None
    tools: list[ToolParam] | None = None
    tool_choice: ToolChoiceParam | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """An earlier name of `output_config.format`."""

    # known, not done here (see _UNSUPPORTED)
    mcp_servers: Any = None
    container: Any = None


_UNSUPPORTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "mcp_servers": (lambda v: v == [], "the server connects to no other servers"),
    "container": (lambda v: False, "code is not executed here"),
}
_OF_OTHER_DIALECTS = (
    "n n_cmpl n_predict max_completion_tokens response_format functions function_call stream_options n_probs return_tokens "
    "return_progress return_queue timings_per_token user safety_identifier prompt_cache_key"
).split()
"""Members that mean nothing here, as any unknown one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagesCall:
    chat: ChatCall
    fields: GenerationFields
    """What is said of urgency and company, under the common names."""
    shows_thinking: bool
    """False: reasoning comes sealed, to be sent back, not to be read."""
    notices: tuple[str, ...]


def parse_messages(body: MessagesBody, settings: Settings, info: ModelInfo, *, generates: bool = True) -> MessagesCall:
    """`generates`: False where tokens are only counted; then `max_tokens` is not needed.

    Raises:
        ClientError: a member is missing, out of range or not supported; `param` names it.
    """
    refuse(body, _UNSUPPORTED)
    if generates and body.max_tokens is None:
        raise ClientError("max_tokens is missing", param="max_tokens")
    if body.max_tokens is not None:
        check_range("max_tokens", body.max_tokens, 0, INT_MAX)
    messages = to_messages(body.system, body.messages or [])
    use = parse_tools(body.tools, body.tool_choice)
    thinks, budget, shows_thinking = _thinking(body.thinking)
    fields = _common(body)
    with renamed({"stop": "stop_sequences", "session": "metadata.user_id"}):
        options = parse_options(fields, settings, info, n_logprobs=None)
    is_prefilled = messages[-1]["role"] == "assistant"
    chat = ChatCall(
        options=options,
        messages=messages,
        add_generation_prompt=not is_prefilled,
        continue_final=is_prefilled,
        template_variables=thinking_variables(thinks, body.output_config.effort if body.output_config else None),
        tools=use.shown,
        wish=_wish(use, _constraint(body), budget),
    )
    return MessagesCall(chat=chat, fields=fields, shows_thinking=shows_thinking, notices=use.notices)


def _common(body: MessagesBody) -> GenerationFields:
    user = body.metadata.user_id if body.metadata is not None else None
    if user is not None and len(user) > MAX_NAME_CHARS:
        message = f"metadata.user_id has {len(user)} characters; at most {MAX_NAME_CHARS} are accepted"
        raise ClientError(message, param="metadata.user_id")
    changes: dict[str, Any] = dict.fromkeys(_OF_OTHER_DIALECTS)
    return msgspec.structs.replace(
        body,
        **changes,
        tools=None,
        tool_choice=None,
        stop=body.stop_sequences,
        session=body.session or user,
    )


def _thinking(given: Thinking | None) -> tuple[bool, int, bool]:
    """Whether the model shall think, for how many tokens (-1: any number), and whether that is shown.

    Not asked for means not wanted, as far as the model's template can switch it off: such clients expect an answer to begin with text.
    """
    if given is None:
        return False, -1, True
    shows = given.display != "omitted"
    match given.type:
        case "disabled":
            return False, 0, shows
        case "adaptive" | "between_tools":
            return True, -1, shows
        case "enabled":
            if given.budget_tokens is None:
                raise ClientError("thinking.budget_tokens is missing", param="thinking.budget_tokens")
            return True, int(check_range("thinking.budget_tokens", given.budget_tokens, 1, INT_MAX)), shows
        case _:
            raise ClientError("thinking.type must be enabled, disabled, adaptive or between_tools", param="thinking.type")


def _constraint(body: MessagesBody) -> Constraint | None:
    name, given = "output_format", body.output_format
    if body.output_config is not None and body.output_config.format is not None:
        name, given = "output_config.format", body.output_config.format
    if given is None:
        return None
    if given.type != "json_schema":
        raise Unsupported(f"{name}.type: only json_schema is supported", param=f"{name}.type")
    if given.schema is None:
        raise ClientError(f"{name}.schema is missing", param=f"{name}.schema")
    check_plain(given.schema, f"{name}.schema")
    return Constraint(kind="json_schema", source=msgspec.json.encode(given.schema).decode(), param=f"{name}.schema")


def _wish(use: ToolUse, constraint: Constraint | None, budget: int) -> OutputWish:
    return OutputWish(
        tools=use.callable,
        choice="required" if use.is_required else "auto" if use.callable else "none",
        parallel=use.parallel,
        constraint=constraint,
        reasoning_budget=budget,
    )
