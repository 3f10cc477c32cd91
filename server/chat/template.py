"""A model's chat template: compiled in Jinja's sandbox, given the names that such templates expect, rendered. Child side only.

The sandbox keeps a template away from Python's insides; it does not bound time or memory, that is the child process's part.
"""

from __future__ import annotations

import datetime
import json
import secrets
from functools import cached_property
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from server.chat.messages import Content, InputRefused, Message, normalise, with_mark

CHATML = """\
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
"""For models that bring no template."""

RESERVED = frozenset({"messages", "add_generation_prompt", "bos_token", "eos_token"})
_MAX_REASON = 500
_PROBE = "5b0f1c"


class TemplateBroken(Exception):
    """The template cannot be used with any messages. One sentence."""


class _RaisedByTemplate(TemplateError):
    pass


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}` marks what a model should learn in training; here it just shows its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    def __init__(self, source: str | None, bos_token: str = "", eos_token: str = "") -> None:
        """Compile `source` (None: ChatML).

        Raises:
            TemplateBroken: it is not a Jinja template.
        """
        self.source = source or CHATML
        self._special = {"bos_token": bos_token, "eos_token": eos_token}
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(self.source)
        except TemplateSyntaxError as error:
            raise TemplateBroken(f"line {error.lineno}: {_reason(error)}") from None
        except (SecurityError, RecursionError, ValueError, TypeError, SyntaxError) as error:
            raise TemplateBroken(_reason(error)) from None

    def render(
        self,
        messages: list[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        variables: dict[str, Any] | None = None,
    ) -> str:
        """The prompt for `messages`. `continue_final`: it ends inside the last (assistant) message, to be continued.

        Raises:
            InputRefused: these messages or variables cannot be rendered.
            TemplateBroken: the template does something that the sandbox forbids.
            MemoryError: it needs too much.
        """
        variables = variables or {}
        if taken := RESERVED.intersection(variables):
            raise InputRefused(f"the template variable {sorted(taken)[0]!r} is not for the request to set", "chat_template_kwargs")
        messages = normalise(messages, self)
        if not continue_final:
            return self._render(messages, add_generation_prompt, variables)
        mark = secrets.token_hex(16)
        text, found, _ = self._render(with_mark(messages, mark), False, variables).rpartition(mark)
        if not found:
            raise InputRefused("the model's chat template does not show the last message, so it cannot be continued")
        return text

    def _render(self, messages: list[Message], add_generation_prompt: bool, variables: dict[str, Any]) -> str:
        names: dict[str, Any] = {"tools": None, "documents": None, **variables, **self._special}
        names |= {"messages": messages, "add_generation_prompt": add_generation_prompt}
        try:
            return self._template.render(names)
        except _RaisedByTemplate as error:
            raise InputRefused(f"the model's chat template refuses these messages: {_reason(error)}") from None
        except SecurityError as error:
            raise TemplateBroken(_reason(error)) from None
        except MemoryError:
            raise
        except Exception as error:  # a template is a program: it may fail in any way
            kind = type(error).__name__
            raise InputRefused(f"the model's chat template cannot render these messages ({kind}: {_reason(error)})") from None

    # ---- what this template takes (asked by messages.py, tried at most once) -----------------------------------------

    @cached_property
    def takes_text(self) -> bool:
        """Whether `content` may be a string."""
        return self._shows([{"role": "user", "content": _PROBE}])

    @cached_property
    def takes_parts(self) -> bool:
        """Whether `content` may be a list of parts."""
        return self._shows([{"role": "user", "content": [{"type": "text", "text": _PROBE}]}], but_not="'type'")

    @cached_property
    def takes_system(self) -> bool:
        return self._shows([{"role": "system", "content": self.content(_PROBE)}, {"role": "user", "content": self.content("x")}])

    @cached_property
    def takes_null(self) -> bool:
        """Whether an assistant message that only calls tools may have `content` null."""
        call = {"id": "000000000", "type": "function", "function": {"name": "f", "arguments": {}}}
        user = {"role": "user", "content": self.content(_PROBE)}
        return self._shows([user, {"role": "assistant", "content": None, "tool_calls": [call]}], but_not="None")

    @cached_property
    def takes_developer(self) -> bool:
        return "developer" in self.source

    def content(self, text: str) -> Content:
        """`text` in the form that this template wants as `content`."""
        return text if self.takes_text or not self.takes_parts else [{"type": "text", "text": text}]

    def _shows(self, messages: list[Message], but_not: str | None = None) -> bool:
        try:
            text = self._render(messages, True, {})
        except (InputRefused, TemplateBroken):
            return False
        return _PROBE in text and (but_not is None or but_not not in text)


def _raise_exception(message: Any = "") -> NoReturn:
    raise _RaisedByTemplate(str(message))


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML, which a prompt is not."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _reason(error: BaseException) -> str:
    text = str(error)
    return text if len(text) <= _MAX_REASON else text[:_MAX_REASON] + "..."
