"""POST /v1/responses, the request: wire record -> `ResponsesCall`. Pure; the prompt itself is rendered elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from server.api.chat_call import ChatCall
from server.api.effort import thinking_variables
from server.api.fields import GenerationFields, refuse
from server.api.openai.responses_items import Item, to_messages
from server.api.openai.responses_tools import ToolChoiceParam, ToolParam, ToolUse, parse_tools
from server.api.options import Options, logprobs_of, parse_options
from server.api.renaming import renamed
from server.api.sampling import INT_MAX, check_range
from server.chat.tools import OutputWish
from server.errors import ClientError, Unsupported
from server.http.body import check_plain
from server.protocol import ModelInfo
from server.requests import Constraint
from server.settings import Settings

MAX_TOP_LOGPROBS = 20
LOGPROBS = "message.output_text.logprobs"
SEALED = "reasoning.encrypted_content"


class Reasoning(msgspec.Struct, kw_only=True):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    """An earlier name of `summary`."""


class Format(msgspec.Struct, kw_only=True, omit_defaults=True):
    type: str
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextConfig(msgspec.Struct, kw_only=True):
    format: Format | None = None
    verbosity: str | None = None


class ResponsesBody(GenerationFields, kw_only=True):
    input: str | list[Item] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    tools: list[ToolParam] | None = None
    tool_choice: str | ToolChoiceParam | None = None
    top_logprobs: int | None = None
    truncation: str | None = None
    include: list[str] | None = None

    # known, not done here (see _UNSUPPORTED)
    background: Any = None
    conversation: Any = None
    prompt: Any = None


_UNSUPPORTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "background": (lambda v: v is False, "a response is made while its request is open, never in the background"),
    "conversation": (lambda v: False, "conversations are not kept; use previous_response_id"),
    "prompt": (lambda v: False, "prompt templates are not kept here"),
}
_OF_OTHER_DIALECTS = (
    "n n_cmpl n_predict max_completion_tokens response_format functions function_call stream_options n_probs return_tokens "
    "return_progress return_queue timings_per_token"
).split()
"""Members that mean nothing here, as any unknown one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesCall:
    chat: ChatCall
    fields: GenerationFields
    """What is said of urgency and company, under the common names."""
    body: ResponsesBody
    use: ToolUse
    summarises: bool
    seals: bool
    notices: tuple[str, ...]

    @property
    def options(self) -> Options:
        return self.chat.options


def parse_responses(body: ResponsesBody, items: Sequence[Item], n_earlier: int, settings: Settings, info: ModelInfo) -> ResponsesCall:
    """`items`: those of earlier responses, `n_earlier` of them, then those of this request.

    Raises:
        ClientError: a member is missing, out of range or not supported; `param` names it.
    """
    refuse(body, _UNSUPPORTED)
    notices = _truncation(body.truncation)
    messages, left_out = to_messages(body.instructions, items, n_earlier)
    use = parse_tools(body.tools, body.tool_choice)
    n_logprobs = _n_logprobs(body)
    if body.max_output_tokens is not None:
        check_range("max_output_tokens", body.max_output_tokens, 1, INT_MAX)
    fields = _common(body)
    with renamed({"max_tokens": "max_output_tokens"}):
        options = parse_options(fields, settings, info, n_logprobs=n_logprobs)
    effort = body.reasoning.effort if body.reasoning is not None else None
    chat = ChatCall(
        options=options,
        messages=messages,
        template_variables=thinking_variables(None if effort is None else effort != "none", effort),
        tools=use.shown,
        wish=OutputWish(
            tools=use.callable,
            choice=use.choice,
            parallel=body.parallel_tool_calls is not False,
            constraint=_constraint(body.text.format if body.text is not None else None),
            reasoning_budget=0 if effort == "none" else -1,
        ),
        field_name="input",
    )
    summary = body.reasoning is not None and (body.reasoning.summary or body.reasoning.generate_summary)
    return ResponsesCall(
        chat=chat,
        fields=fields,
        body=body,
        use=use,
        summarises=bool(summary) and summary != "none",
        seals=SEALED in (body.include or ()),
        notices=(*use.notices, *left_out, *notices),
    )


def _common(body: ResponsesBody) -> GenerationFields:
    changes: dict[str, Any] = dict.fromkeys(_OF_OTHER_DIALECTS)
    return msgspec.structs.replace(body, **changes, tools=None, tool_choice=None, max_tokens=body.max_output_tokens)


def _truncation(given: str | None) -> tuple[str, ...]:
    if given in (None, "disabled"):
        return ()
    if given == "auto":
        return ("truncation: nothing is left out of a conversation here; one that is too long is refused",)
    raise ClientError("truncation must be auto or disabled", param="truncation")


def _n_logprobs(body: ResponsesBody) -> int | None:
    top = logprobs_of("top_logprobs", body.top_logprobs, MAX_TOP_LOGPROBS)
    return (top or 0) if top or LOGPROBS in (body.include or ()) else None


def _constraint(given: Format | None) -> Constraint | None:
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return Constraint(kind="json_schema", source='{"type":"object"}', param="text.format")
    if given.type != "json_schema":
        raise Unsupported(f"text.format.type: {given.type[:40]!r} is not supported", param="text.format.type")
    if given.schema is None:
        raise ClientError("text.format.schema is missing", param="text.format.schema")
    check_plain(given.schema, "text.format.schema")
    return Constraint(kind="json_schema", source=msgspec.json.encode(given.schema).decode(), param="text.format.schema")
