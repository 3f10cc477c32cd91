"""One request as its consumer sees it: a context manager and an iterator of events that ends exactly once.

It hides that its runner may die, and paces the runner to its consumer. What a process is, it does not know.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Protocol, Self

from server.errors import CapsuleError, RequestTimeout
from server.protocol import Cancel, Command, Delta, Failed, Finished, GenerationRequest, Pause, Prefilled, Queued, Resume, Started
from server.runners.failures import error_of
from server.runners.flow import EventBuffer, FlowLimits

Progress = Queued | Started | Prefilled | Delta | Finished


class Host(Protocol):
    """What a generation needs of its runner."""

    async def admit(self, generation: Generation) -> int:
        """Submit the request and return its id; raises the error that the client shall see."""
        ...

    def command(self, command: Command) -> None: ...

    def release(self, generation: Generation) -> None: ...


class Generation(AsyncIterator[Progress]):
    """`async with runner.generate(request) as events: async for event in events: ...`

    The request is submitted on entering; leaving early cancels it. The iterator ends after `Finished`, or raises the error
    that stands for the failure (once; afterwards it is exhausted). One consumer at a time.

    Raises, on entering or while iterating:
        ModelLoading, RunnerDied, ShuttingDown, ServerBusy: passing states, with `retry_after`.
        ClientError, ContextSizeExceeded, PayloadTooLarge: the request itself cannot be served.
        RequestTimeout: the consumer took nothing for `FlowLimits.stall_timeout_s`.
        CapsuleError: the runner failed at it.
    """

    def __init__(self, request: GenerationRequest, host: Host, limits: FlowLimits) -> None:
        self.request = request
        self.id = -1
        self.on_stall: Callable[[], object] | None = None
        """Called when the consumer has stalled for too long; the place to break the connection it is blocked on."""
        self._host = host
        self._limits = limits
        self._buffer = EventBuffer(limits)
        self._error: CapsuleError | None = None
        self._over = False  # nothing more comes from the runner: its terminal event came, or we made one up
        self._told = False  # the consumer has seen the end
        self._entered = False
        self._paused = False
        self._taken_at = 0.0
        self._stall_timer: asyncio.TimerHandle | None = None
        self._wakeup: asyncio.Future[None] | None = None

    @property
    def is_paused(self) -> bool:
        """Whether the runner was asked to hold it, since its consumer is slow."""
        return self._paused

    # ---- the consumer's side ---------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._entered:
            raise RuntimeError("a generation is entered once")
        self._entered = True
        self.id = await self._host.admit(self)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._host.release(self)
        self._end()

    async def __anext__(self) -> Progress:
        while True:
            if len(self._buffer):
                return self._take()
            if self._told:
                raise StopAsyncIteration
            if self._error is not None:
                self._told = True
                raise self._error
            if self._over:
                raise RuntimeError("the generation has been left")
            if self.id < 0:
                raise RuntimeError("a generation is used inside `async with`")
            self._wakeup = asyncio.get_running_loop().create_future()
            try:
                await self._wakeup
            finally:
                self._wakeup = None

    def _take(self) -> Progress:
        event = self._buffer.pop()
        assert not isinstance(event, Failed)
        self._taken_at = time.monotonic()
        if isinstance(event, Finished):
            self._told = True
        if self._paused and self._buffer.is_low:
            self._unpause()
            if not self._over:
                self._host.command(Resume(self.id))
        return event

    # ---- the runner's side -----------------------------------------------------------------------------------------

    def push(self, event: Progress | Failed) -> None:
        """An event of this request has arrived. After the terminal one, anything else is ignored."""
        if self._over:
            return
        if isinstance(event, Failed):
            self.fail(error_of(event))
            return
        self._buffer.push(event)
        if isinstance(event, Finished):
            self._over = True
            self._unpause()
        elif self._buffer.is_overflowing:
            self._give_up(CapsuleError("the answer ran ahead of its reader and was ended"))
        elif self._buffer.is_high and not self._paused:
            self._pause()
        self._wake()

    def fail(self, error: CapsuleError) -> None:
        """The request has ended without `Finished`: events that are here are still handed out, then `error` is raised."""
        if self._over:
            return
        self._over = True
        self._error = error
        self._unpause()
        self._wake()

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    def _end(self) -> None:
        """Cancel in the runner unless it is over there; the only place besides `_give_up` that does, and only once."""
        if not self._over:
            self._over = True
            self._host.command(Cancel(self.id))
        self._unpause()
        self._buffer.clear()

    # ---- pacing ----------------------------------------------------------------------------------------------------

    def _pause(self) -> None:
        self._paused = True
        self._taken_at = time.monotonic()
        self._host.command(Pause(self.id))
        self._watch(self._limits.stall_timeout_s)

    def _unpause(self) -> None:
        self._paused = False
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _watch(self, seconds: float) -> None:
        self._stall_timer = asyncio.get_running_loop().call_later(seconds, self._check_stall)

    def _check_stall(self) -> None:
        left = self._taken_at + self._limits.stall_timeout_s - time.monotonic()
        if left > 0:
            self._watch(left)
            return
        self._give_up(RequestTimeout(f"the answer was not read for {self._limits.stall_timeout_s:g} s and was ended"))
        if self.on_stall is not None:
            self.on_stall()

    def _give_up(self, error: CapsuleError) -> None:
        self._end()
        self._error = error
        self._wake()
