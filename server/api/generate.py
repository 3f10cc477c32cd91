"""Runs the sequences of one HTTP request: submits them, merges their events, collects or streams. Knows no dialect.

Leaving any of these early (the client went, a sequence failed) cancels every sequence that is still running.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

import msgspec
from aiohttp import web

from server.api.options import Options
from server.api.waiting import Waiting
from server.errors import CapsuleError, ContextSizeExceeded, ShuttingDown
from server.http.context import CONTEXT
from server.http.limits import TICKET
from server.http.metrics import SequenceClock
from server.http.ports import Generation, Progress, Runner
from server.http.sse import EventStream
from server.pipes import printable
from server.protocol import Delta, Finished, GenerationRequest, TokenLogprob

log = logging.getLogger("capsule.prompts")

Indexed = tuple[int, Progress]


@dataclass(slots=True)
class Answer:
    """One whole sequence."""

    finished: Finished
    parts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.parts)


class _Transcript:
    """Prompts and answers in the log, one line each: --log-prompts, and nothing else, lets them in."""

    def __init__(self, requests: Sequence[GenerationRequest]) -> None:
        self._texts: list[list[str]] = [[] for _ in requests]
        for index, request in enumerate(requests):
            log.info("prompt %d: %s", index, printable(str(request.prompt)))

    def event(self, index: int, event: Progress) -> None:
        if isinstance(event, Delta):
            self._texts[index].append(event.text)
        elif isinstance(event, Finished):
            log.info("answer %d: %s", index, printable("".join(self._texts[index])))


class Batch:
    """`async with Batch(request, requests) as batch: async for index, event in batch: ...`; every event of every sequence.

    Raises, on entering or iterating:
        CapsuleError: a sequence cannot be served, or failed; the others are cancelled.
    """

    def __init__(self, request: web.Request, requests: Sequence[GenerationRequest], *, prompt_field: str) -> None:
        self._context = request.app[CONTEXT]
        self._ticket = request.get(TICKET)
        self._requests = requests
        self._prompt_field = prompt_field
        self._stack = AsyncExitStack()
        self._generations: list[Generation] = []
        self._clocks: list[SequenceClock] = []
        self._pumps: list[asyncio.Task[None]] = []
        self._transcript = _Transcript(requests) if self._context.settings.log_prompts else None

    async def __aenter__(self) -> Self:
        try:
            for request in self._requests:
                place = self._ticket.take() if self._ticket is not None else None
                self._clocks.append(self._context.metrics.sequence(request, place))
                self._generations.append(await self._stack.enter_async_context(self._context.runner.generate(request)))
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for clock in self._clocks:
            clock.end("error" if isinstance(error, Exception) and not isinstance(error, ConnectionError) else "cancelled")
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        await self._stack.aclose()
        if isinstance(error, ContextSizeExceeded):
            error.param = self._prompt_field

    async def __aiter__(self) -> AsyncIterator[Indexed]:
        events = self._single() if len(self._generations) == 1 else self._merged()
        async for index, event in events:
            self._clocks[index].event(event)
            if self._transcript is not None:
                self._transcript.event(index, event)
            if isinstance(event, Finished) and event.reason == "cancelled":
                raise ShuttingDown("the server is shutting down", retry_after=5.0)
            yield index, event

    async def _single(self) -> AsyncIterator[Indexed]:
        async for event in self._generations[0]:
            yield 0, event

    async def _merged(self) -> AsyncIterator[Indexed]:
        # One event at a time waits here for each sequence, so a slow reader still holds up the runner's own buffers.
        queue: asyncio.Queue[Indexed | Exception | None] = asyncio.Queue(maxsize=1)

        async def pump(index: int, generation: Generation) -> None:
            try:
                async for event in generation:
                    await queue.put((index, event))
                await queue.put(None)
            except Exception as error:
                await queue.put(error)

        self._pumps = [asyncio.create_task(pump(i, g)) for i, g in enumerate(self._generations)]
        running = len(self._pumps)
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item


async def collect(request: web.Request, requests: Sequence[GenerationRequest], *, prompt_field: str) -> list[Answer]:
    """Run them to their ends; answers in the order of the requests."""
    texts: list[list[Delta]] = [[] for _ in requests]
    ends: dict[int, Finished] = {}
    async with Batch(request, requests, prompt_field=prompt_field) as batch:
        async for index, event in batch:
            if isinstance(event, Delta):
                texts[index].append(event)
            elif isinstance(event, Finished):
                ends[index] = event
    if len(ends) != len(requests):
        raise CapsuleError("a sequence ended without saying how")
    return [_answer(ends[i], deltas) for i, deltas in enumerate(texts)]


def _answer(finished: Finished, deltas: list[Delta]) -> Answer:
    answer = Answer(finished)
    for delta in deltas:
        answer.parts.append(delta.text)
        answer.tokens.extend(delta.tokens)
        answer.logprobs.extend(delta.logprobs)
    return answer


class StreamView(Protocol):
    """How a dialect shows a stream: the wire values for one event, and those that come last. Keeps what it needs of the past."""

    done_line: bool

    def event(self, index: int, event: Progress) -> list[Any]: ...

    def closing(self) -> list[Any]: ...


async def run(request: web.Request, requests: Sequence[GenerationRequest], view: StreamView, *, prompt_field: str) -> None:
    """Let a view see all events to the end and send nothing: a whole answer is then, by construction, what a stream adds up to."""
    async with Batch(request, requests, prompt_field=prompt_field) as batch:
        async for index, event in batch:
            view.event(index, event)
    view.closing()


@runtime_checkable
class FailingView(Protocol):
    """A view whose stream ends in values of its own when it fails."""

    def failure(self, error: CapsuleError) -> list[Any]: ...


@runtime_checkable
class PingingView(Protocol):
    """A view whose stream, once begun, fills silence with values: for clients that count only those as signs of life."""

    def ping(self) -> Any: ...


async def stream(
    request: web.Request,
    requests: Sequence[GenerationRequest],
    view: StreamView,
    *,
    ping_interval: float,
    prompt_field: str,
    framing: type[EventStream] = EventStream,
) -> web.StreamResponse:
    """Stream the sequences as server-sent events. Failures before the first event leave as ordinary responses.

    Who waits hears where in the queue: in comments, which no client minds, and the first time in headers.
    """
    waiting = Waiting()
    async with framing(request, ping_interval=ping_interval) as out:
        if isinstance(view, FailingView):
            out.failure = view.failure
        if isinstance(view, PingingView):
            out.ping = view.ping
        async with Batch(request, requests, prompt_field=prompt_field) as batch:
            async for index, event in batch:
                has_moved = waiting.event(index, event)
                out.ping_text = waiting.text
                if has_moved:
                    await out.comment(waiting.text, headers=waiting.headers)
                await out.send(*view.event(index, event))
                if not out.started:
                    await out.comment()  # accepted: let the client know, the first token may take long
        await out.send(*view.closing())
        return await out.finish(done=view.done_line)


async def with_text_bias(runner: Runner, options: Options) -> Options:
    """Biases given by text, added as tokens."""
    if not options.sampling.text_bias:
        return options
    biases = dict(options.sampling.params.logit_bias)
    for text, bias in options.sampling.text_bias:
        found = await runner.tokenize(text, False, False)
        biases.update(dict.fromkeys(found.tokens, bias))
    sampling = msgspec.structs.replace(options.base.sampling, logit_bias=tuple(biases.items()))
    return dataclasses.replace(options, base=msgspec.structs.replace(options.base, sampling=sampling))
