"""Runs a chat request: renders the prompt, generates, cuts each answer into content, reasoning and calls of tools. Knows no dialect."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from server.api.chat_call import ChatCall
from server.api.generate import collect, with_text_bias
from server.api.options import Options, expand
from server.chat.format import ChatFormat, format_of
from server.chat.parts import Message, OutputParser, Part
from server.http.context import CONTEXT, AppContext
from server.http.ports import Progress
from server.protocol import Delta, Finished, GenerationRequest, TokenLogprob


@dataclass(frozen=True, slots=True)
class Prepared:
    requests: list[GenerationRequest]
    """One per choice."""
    options: Options
    format: ChatFormat
    call: ChatCall
    prompt: str

    def parser(self) -> OutputParser:
        return self.format.parser(self.call.wish, self.prompt)

    def parsers(self) -> list[OutputParser]:
        return [self.parser() for _ in self.requests]


@dataclass(slots=True)
class ChatAnswer:
    """One whole choice."""

    finished: Finished
    message: Message
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def called_tools(self) -> bool:
        return bool(self.message.calls)


async def render(context: AppContext, call: ChatCall) -> str:
    """The prompt.

    Raises:
        ClientError: the model's template refuses these messages.
    """
    variables = dict(call.template_variables)
    if call.tools:
        variables["tools"] = [tool.json() for tool in call.tools]
    return await context.renderer.render(
        call.messages, add_generation_prompt=call.add_generation_prompt, continue_final=call.continue_final, **variables
    )


async def prepare(request: web.Request, call: ChatCall) -> Prepared:
    """`call.options` must be admitted (`api/scheduling`). Raises what `render` and `expand` raise."""
    context = request.app[CONTEXT]
    prompt = await render(context, call)
    options = await with_text_bias(context.runner, call.options)
    info = context.runner.info
    chat_format = format_of(context.chat_template or (info.chat_template if info else None))
    base = msgspec.structs.replace(
        options.base,
        add_special=_needs_special(context, prompt),
        constraint=chat_format.constraint(call.wish, prompt),
        shown_tokens=chat_format.shown_tokens,
    )
    return Prepared(expand(base, [prompt], options.n, field="n"), options, chat_format, call, prompt)


async def count_tokens(context: AppContext, call: ChatCall) -> int:
    """Tokens of the prompt, tools included. Raises what `render` raises."""
    prompt = await render(context, call)
    return len((await context.runner.tokenize(prompt, _needs_special(context, prompt), True)).tokens)


def _needs_special(context: AppContext, prompt: str) -> bool:
    """A template may have written the model's BOS already; then the tokenizer must not add another."""
    info = context.runner.info
    return not (info is not None and info.bos_token and prompt.startswith(info.bos_token))


async def collect_chat(request: web.Request, prepared: Prepared) -> list[ChatAnswer]:
    answers = await collect(request, prepared.requests, prompt_field=prepared.call.field_name)
    found = []
    for answer in answers:
        parser, message = prepared.parser(), Message()
        message.add(parser.push(answer.text))
        message.add(parser.finish())
        found.append(ChatAnswer(answer.finished, message, answer.tokens, answer.logprobs))
    return found


class ChatView(ABC):
    """A `StreamView` over parts instead of text. Subclasses say what each event looks like in their dialect."""

    done_line = False

    def __init__(self, prepared: Prepared) -> None:
        self._parsers = prepared.parsers()
        self.messages = [Message() for _ in self._parsers]
        """What each choice has said so far."""

    def event(self, index: int, event: Progress) -> list[Any]:
        match event:
            case Delta():
                return self.parts(index, self._cut(index, self._parsers[index].push(event.text)), event)
            case Finished():
                rest = self._cut(index, self._parsers[index].finish())
                return [*(self.parts(index, rest, None) if rest else []), *self.finished(index, event)]
            case _:
                return self.other(index, event)

    def _cut(self, index: int, parts: list[Part]) -> list[Part]:
        self.messages[index].add(parts)
        return parts

    @abstractmethod
    def parts(self, index: int, parts: Sequence[Part], delta: Delta | None) -> list[Any]:
        """Wire values for parts of choice `index`, perhaps none; `delta`: the event that they are from (its logprobs, its tokens)."""

    @abstractmethod
    def finished(self, index: int, event: Finished) -> list[Any]: ...

    @abstractmethod
    def other(self, index: int, event: Progress) -> list[Any]:
        """Queued, Started, Prefilled."""

    @abstractmethod
    def closing(self) -> list[Any]: ...
