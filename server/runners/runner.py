"""Supervises one runner child from the event loop: state, restarts, and the requests that are open in it.

A request or query belongs to the process it was sent to; when that process dies they all end at once, and a fresh process is
started with back-off. Knows neither HTTP nor how a model is run.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from server.errors import (
    CapsuleError,
    ClientError,
    ModelLoading,
    OperatorError,
    PayloadTooLarge,
    RunnerDied,
    ServerBusy,
    ShuttingDown,
    Unavailable,
)
from server.protocol import (
    Command,
    Detokenize,
    EngineStats,
    Failed,
    Fatal,
    GenerationRequest,
    GetQueue,
    GetSlots,
    Loading,
    ModelInfo,
    Queue,
    Ready,
    Resume,
    RunnerSettings,
    Slots,
    Step,
    Submit,
    Text,
    Tokenize,
    Tokens,
)
from server.runners.failures import Backoff, error_of, with_retry
from server.runners.flow import FlowLimits
from server.runners.generation import Generation
from server.runners.process import Delivery, Ended, RunnerProcess, launch
from server.runners.state import State as State
from server.runners.watch import StepWatch

log = logging.getLogger("capsule.runner")

MAX_BACKLOG_BYTES = 256 * 1024 * 1024
"""With more than this unread by the child, new requests are refused."""

R = TypeVar("R", Tokens, Text, Slots, Queue)


class Runner:
    def __init__(
        self,
        settings: RunnerSettings,
        process: RunnerProcess | None = None,
        *,
        spawn: Callable[[RunnerSettings], RunnerProcess] = launch,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        backoff: Backoff | None = None,
        limits: FlowLimits | None = None,
        restart_wait_s: float = 10.0,
    ) -> None:
        """`process`: a child that `launch` has started already with the same settings.

        `restart_wait_s`: how long a request waits for the restart after a single death before it is refused.
        """
        self._settings = settings
        self._first = process
        self._spawn = spawn
        self._sleep = sleep
        self._clock = clock
        self._backoff = backoff or Backoff()
        self._limits = limits or FlowLimits()
        self._restart_wait_s = restart_wait_s

        self._state = State.LOADING
        self._changed = asyncio.Event()
        self._draining = False
        self._process: RunnerProcess | None = None
        self._ended: asyncio.Future[Ended] | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._born_at = clock()
        self._ready_at: float | None = None
        self._due_at = 0.0
        self._watch = StepWatch(clock)
        self._ids = itertools.count(1)
        self._open: dict[int, Generation] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._queries: dict[int, asyncio.Future[Any]] = {}

        self.loading = Loading("starting", 0.0)
        self.info: ModelInfo | None = None
        """The model as last loaded; stays while a dead process is being replaced."""
        self.stats = EngineStats()
        """Of the present process: counters start again with it."""
        self.fatal: Fatal | None = None
        self.restarts = 0
        self.last_death: Ended | None = None

    @property
    def state(self) -> State:
        return self._state

    @property
    def n_active(self) -> int:
        """Generations that have been entered and not left."""
        return len(self._open)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def step_age_s(self) -> float:
        """Seconds since the engine's last step; 0 while nobody waits for one."""
        return self._watch.age if self._state is State.READY and any(not g.is_paused for g in self._open.values()) else 0.0

    @property
    def stalled(self) -> bool:
        """Whether the process has hung for minutes; needs to be asked every now and then."""
        return self._process is not None and self.step_age_s > 0 and self._watch.is_stalled(self._process.cpu_seconds)

    # ---- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start (or adopt) the process and watch it. Returns at once; `wait_ready` waits for the model."""
        if self._supervisor is None and self._state is not State.STOPPED:
            self._supervisor = asyncio.create_task(self._supervise(), name="runner-supervisor")

    async def wait_ready(self, timeout: float | None = None) -> ModelInfo:
        """Wait until the model can serve.

        Raises:
            OperatorError: it never will (bad file, too little memory).
            ModelLoading, RunnerDied: not within `timeout` seconds.
            ShuttingDown: it was stopped.
        """
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while self._state in (State.LOADING, State.RESTARTING):
                    await self._changed.wait()
        if self._state is State.FAILED and self.fatal is not None:
            raise OperatorError(self.fatal.message, hint=self.fatal.hint)
        self._require_ready()
        assert self.info is not None
        return self.info

    async def drain(self, timeout: float) -> None:
        """Refuse new requests, give the open ones up to `timeout` seconds, then stop."""
        self._draining = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout)
        await self.stop()

    async def stop(self, grace_s: float = 2.0) -> None:
        """End the process (by closing its input, after `grace_s` seconds by force); open requests end with ShuttingDown."""
        self._set_state(State.STOPPED)
        self._fail_all(lambda: ShuttingDown("the server is shutting down"))
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self._process is None and self._first is not None:
            self._attach(self._first)  # stopped before it was started
        process, ended = self._process, self._ended
        if process is not None and ended is not None:
            process.close_stdin()
            await asyncio.wait([ended], timeout=grace_s)
            process.kill()
            await ended

    async def _supervise(self) -> None:
        while True:
            ended = await self._run_once()
            if self._state in (State.FAILED, State.STOPPED):
                return
            healthy_s = 0.0 if self._ready_at is None else self._clock() - self._ready_at
            delay = self._backoff.after_death(healthy_s)
            log.error("the model's process %s; starting it again in %.1f s", ended.reason, delay)
            self.restarts += 1
            self._ready_at = None
            self._due_at = self._clock() + delay
            await self._sleep(delay)

    async def _run_once(self) -> Ended:
        """Start a process and wait until it has ended."""
        self.loading = Loading("starting", 0.0)
        self._born_at = self._clock()
        process, self._first = self._first, None
        if process is None:
            try:
                process = self._spawn(self._settings)
            except (OSError, OperatorError) as error:
                if isinstance(error, OperatorError):
                    self._on_message(Fatal(error.message, error.hint))
                ended = Ended(f"could not be started ({error})", -1)
                self._on_ended(ended)
                return ended
        return await asyncio.shield(self._attach(process))

    def _attach(self, process: RunnerProcess) -> asyncio.Future[Ended]:
        loop = asyncio.get_running_loop()
        self._process = process
        self._ended = loop.create_future()

        def deliver(message: Delivery) -> None:
            loop.call_soon_threadsafe(self._on_message, message)

        process.adopt(deliver)
        return self._ended

    def _set_state(self, state: State) -> None:
        if self._state is not state and self._state is not State.STOPPED:
            self._state = state
            self._changed.set()
            self._changed = asyncio.Event()

    # ---- what comes from the process -------------------------------------------------------------------------------

    def _on_message(self, message: Delivery) -> None:
        match message:
            case Step(events, stats):
                self.stats = stats
                self._watch.stepped(stats.n_steps)
                for event in events:
                    generation = self._open.get(event.id)
                    if generation is not None:  # else: cancelled meanwhile
                        generation.push(with_retry(event, stats.retry_after_s) if isinstance(event, Failed) else event)
            case Loading():
                self.loading = message
            case Ready(info):
                self.info = info
                self._ready_at = self._clock()
                self._set_state(State.READY)
            case Fatal():
                self.fatal = message
                self._set_state(State.FAILED)
                log.error("the model cannot be served: %s", message.message)
                if self._process is not None:
                    self._process.close_stdin()
                    asyncio.get_running_loop().call_later(2.0, self._process.kill)
            case Ended():
                self._on_ended(message)
            case Failed() if message.id in self._open:
                self._open[message.id].push(message)
            case _:
                self._answer(message)

    def _answer(self, message: Tokens | Text | Slots | Queue | Failed) -> None:
        waiting = self._queries.pop(message.id, None)
        if waiting is None or waiting.done():
            return
        if isinstance(message, Failed):
            waiting.set_exception(error_of(message))
        else:
            waiting.set_result(message)

    def _on_ended(self, ended: Ended) -> None:
        self.last_death = ended
        if self._state is not State.FAILED:
            self._set_state(State.RESTARTING)
        self._fail_all(lambda: RunnerDied("the model's process ended while it worked on this request", retry_after=self._retry_after()))
        self.stats = EngineStats()
        self._process = None
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(ended)

    def _fail_all(self, error: Callable[[], CapsuleError]) -> None:
        for generation in list(self._open.values()):
            generation.fail(error())
        queries, self._queries = self._queries, {}
        for waiting in queries.values():
            if not waiting.done():
                waiting.set_exception(error())

    # ---- what goes to the process ----------------------------------------------------------------------------------

    def generate(self, request: GenerationRequest) -> Generation:
        """One request; see `Generation` for how to use it and what it raises."""
        return Generation(request, self, self._limits)

    async def tokenize(
        self, content: str | list[int | str], add_special: bool = False, parse_special: bool = True, *, timeout: float = 60.0
    ) -> Tokens:
        return await self._query(Tokens, lambda id: Tokenize(id, content, add_special, parse_special), timeout)

    async def detokenize(self, tokens: list[int], *, timeout: float = 60.0) -> str:
        return (await self._query(Text, lambda id: Detokenize(id, tokens), timeout)).text

    async def slots(self, *, timeout: float = 30.0) -> Slots:
        return await self._query(Slots, GetSlots, timeout)

    async def queue(self, most: int = 1000, *, timeout: float = 30.0) -> Queue:
        """Who waits: the next `most` of them, and numbers about all."""
        return await self._query(Queue, lambda id: GetQueue(id, most), timeout)

    async def _query(self, kind: type[R], make: Callable[[int], Command], timeout: float) -> R:
        """Ask the process something.

        Raises:
            Unavailable: the model is not ready, or no answer came within `timeout` seconds.
            ClientError: the question cannot be answered, or cannot even be put.
        """
        self._require_ready()
        id = next(self._ids)
        self._send(make(id))
        waiting = self._queries[id] = asyncio.get_running_loop().create_future()
        try:
            answer = await asyncio.wait_for(waiting, timeout)
        except TimeoutError:
            raise Unavailable(f"the model's process did not answer within {timeout:g} s") from None
        finally:
            self._queries.pop(id, None)
        if not isinstance(answer, kind):
            raise CapsuleError("the model's process gave the wrong kind of answer")
        return answer

    async def admit(self, generation: Generation) -> int:
        """For `Generation`: submit it as soon as it is entered."""
        if self._state is State.RESTARTING and self._backoff.failures <= 1 and self._restart_wait_s > 0:
            with contextlib.suppress(CapsuleError):
                await self.wait_ready(self._restart_wait_s)
        self._require_ready()
        assert self._process is not None
        if self._process.backlog > MAX_BACKLOG_BYTES:
            raise ServerBusy("the model's process is behind with taking requests", retry_after=max(5.0, self.stats.retry_after_s))
        id = next(self._ids)
        self._send(Submit(id, generation.request))
        if self.step_age_s == 0:
            self._watch.began()
        self._open[id] = generation
        self._idle.clear()
        return id

    def release(self, generation: Generation) -> None:
        """For `Generation`: its consumer has left."""
        self._open.pop(generation.id, None)
        if not self._open:
            self._idle.set()

    def command(self, command: Command) -> None:
        """For `Generation`: pace or cancel it."""
        if isinstance(command, Resume):
            self._watch.began()
        if self._process is not None:
            self._process.send(command)

    def _send(self, command: Command) -> None:
        assert self._process is not None
        try:
            self._process.send(command)
        except UnicodeEncodeError:
            raise ClientError("the text holds half of a surrogate pair, which is no character") from None
        except (OverflowError, RecursionError):
            raise ClientError("the request holds a number or a nesting that is too large") from None
        except ValueError:
            raise PayloadTooLarge("the request is too large to be handed to the model") from None

    def _require_ready(self) -> None:
        if self._draining or self._state is State.STOPPED:
            raise ShuttingDown("the server is shutting down")
        match self._state:
            case State.LOADING:
                stage, percent = self.loading.stage, round(100 * self.loading.progress)
                raise ModelLoading(f"the model is being loaded ({stage}, {percent} %)", retry_after=self._retry_after())
            case State.RESTARTING:
                raise RunnerDied("the model's process ended unexpectedly and is being started again", retry_after=self._retry_after())
            case State.FAILED:
                raise Unavailable("the model could not be loaded; the server's log says why", retry_after=60.0)

    def _retry_after(self) -> float:
        """Seconds until the model may be ready: the rest of the back-off and of the load, guessed from the last one."""
        now = self._clock()
        if self._state is State.RESTARTING and self._process is None:
            return min(60.0, max(0.0, self._due_at - now) + (self.info.load_seconds if self.info else 1.0))
        spent = now - self._born_at
        progress = self.loading.progress
        return min(60.0, max(1.0, spent * (1 - progress) / progress if progress > 0.05 else spent))
