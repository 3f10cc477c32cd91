"""The front's side of chat templates: render children that are killed when they are late. Knows no Jinja and no HTTP.

A template comes out of a downloaded file and is a program; nothing it does may cost the server more than one child process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from server.chat import wire
from server.errors import CapsuleError, ClientError, ModelLoading, PayloadTooLarge, ServerBusy, ShuttingDown
from server.framing import FramingError, read_frame, write_frame
from server.pipes import LineReader
from server.spawn import child_environment, child_options, program

log = logging.getLogger("capsule.render")

N_CHILDREN = 2
MAX_WAITING = 1024
START_TIMEOUT_S = 60.0
"""For the child's own start, before any template is involved; a cold disk or a virus scanner may take long."""

T = TypeVar("T")


class ChildGone(Exception):
    """The child ended or broke off. `late`: because we killed it for taking too long."""

    def __init__(self, late: bool = False) -> None:
        super().__init__("the render child is gone")
        self.late = late


class _Child:
    """One process and blocking talk with it, by one thread at a time; `kill` may come from any."""

    def __init__(self, argv: Sequence[str], configuration: wire.Configure) -> None:
        self.configuration = configuration
        self.is_usable = True
        self._popen = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=child_environment(),
            **child_options(),
        )
        assert self._popen.stdin and self._popen.stdout and self._popen.stderr
        self._stdin, self._stdout = self._popen.stdin, self._popen.stdout
        self._lines = LineReader(self._popen.stderr, lambda line: log.info("%s", line), f"render-{self.pid}-stderr")

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_alive(self) -> bool:
        return self.is_usable and self._popen.poll() is None

    def greet(self) -> None:
        """Wait until the child has loaded, and give it its template."""
        if not isinstance(self._read(), wire.Hello):
            raise ChildGone
        self._write(wire.encode(self.configuration))

    def ask(self, body: bytes) -> wire.Reply:
        self._write(body)
        return self._read()

    def kill(self) -> None:
        self.is_usable = False
        with contextlib.suppress(OSError):
            self._popen.kill()

    def bury(self) -> None:
        """Kill and clean up; nobody may be talking to it."""
        self.kill()
        self._popen.wait()
        for pipe in (self._stdin, self._stdout):
            with contextlib.suppress(OSError):
                pipe.close()
        self._lines.join(1.0)

    def _write(self, body: bytes) -> None:
        try:
            write_frame(self._stdin, body)
        except OSError:
            raise ChildGone from None

    def _read(self) -> wire.Reply:
        try:
            body = read_frame(self._stdout)
            if body is not None:
                return wire.decode_reply(body)
        except (OSError, FramingError, msgspec.MsgspecError):
            pass
        raise ChildGone


class Renderer:
    """Renders with the template given to `start`, up to `N_CHILDREN` at a time; a child is started when it is needed."""

    def __init__(self, timeout_s: float = 5.0, memory_mib: int = 512, *, argv: Sequence[str] | None = None) -> None:
        self._timeout_s = timeout_s
        self._memory_mib = memory_mib
        self._argv = [*(argv or [*program(), "render"]), str(timeout_s), str(memory_mib)]
        self._configuration: wire.Configure | None = None
        self._gate = asyncio.Semaphore(N_CHILDREN)
        self._n_waiting = 0
        self._idle: list[_Child] = []
        self._children: set[_Child] = set()
        self._jobs: set[asyncio.Task[Any]] = set()
        self._warming: asyncio.Task[Any] | None = None
        self._threads = ThreadPoolExecutor(N_CHILDREN, thread_name_prefix="render")
        self._is_stopped = False

    async def start(self, template: str | None, bos: str, eos: str) -> None:
        """Set the template (None: ChatML) and get a first child ready in the background. Again with another one: replaces it."""
        configuration = wire.Configure(template, bos, eos)
        if configuration == self._configuration or self._is_stopped:
            return
        self._configuration = configuration
        self._warming = self._background(self._warm())
        self._warming.add_done_callback(self._jobs.discard)

    async def stop(self) -> None:
        """End all children. Renders in progress fail."""
        self._is_stopped = True
        for child in list(self._children):
            child.kill()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        for child in list(self._children):
            child.bury()
        self._children.clear()
        self._idle.clear()
        self._threads.shutdown(wait=False)

    async def render(
        self, messages: list[dict[str, Any]], /, *, add_generation_prompt: bool = True, continue_final: bool = False, **variables: Any
    ) -> str:
        """The prompt for `messages`; `variables` are further names for the template (tools, enable_thinking...).

        `continue_final`: the prompt ends inside the last (assistant) message, for the model to go on with it.

        Raises:
            ClientError: the template refuses these messages, or they cost it too much time or memory.
            PayloadTooLarge, ServerBusy: too much at once.
            ModelLoading, ShuttingDown: before `start`, after `stop`.
        CapsuleError: the template is broken, or no child can be started.
        """
        body = self._encode(wire.Render(messages, add_generation_prompt, continue_final, variables))
        if self._n_waiting >= MAX_WAITING:
            raise ServerBusy("too many chats wait for their template")
        self._n_waiting += 1
        try:
            if self._warming is not None and not self._warming.done():
                await asyncio.wait([self._warming])  # sooner ready than another child
            await self._gate.acquire()
        finally:
            self._n_waiting -= 1
        # The child has to be awaited also when our caller is cancelled, so the job goes on without it.
        job = self._background(self._ask(body))
        job.add_done_callback(self._finish)
        return _text_of(await asyncio.shield(job))

    def _encode(self, request: wire.Render) -> bytes:
        try:
            body = wire.encode(request)
        except UnicodeEncodeError:
            raise ClientError("the text holds half of a surrogate pair, which is no character", param="messages") from None
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ClientError(f"the messages cannot be handed to the chat template: {error}", param="messages") from None
        if len(body) > wire.MAX_INPUT_BYTES:
            raise PayloadTooLarge(f"the messages are larger than {wire.MAX_INPUT_BYTES} bytes", param="messages")
        return body

    def _background(self, work: Any) -> asyncio.Task[Any]:
        job: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work)
        self._jobs.add(job)
        return job

    def _finish(self, job: asyncio.Task[Any]) -> None:
        self._jobs.discard(job)
        self._gate.release()
        if not job.cancelled():
            job.exception()  # seen: our caller may have left

    async def _warm(self) -> None:
        async with self._gate:
            try:
                self._idle.append(await self._ready_child())
            except CapsuleError as error:
                if not self._is_stopped:
                    log.warning("%s", error.message)

    async def _ask(self, body: bytes) -> wire.Reply:
        child = await self._ready_child()
        try:
            reply = await self._timed(child, self._timeout_s, lambda: child.ask(body))
        except ChildGone as gone:
            await self._drop(child)
            if gone.late:
                log.warning("a chat template took more than %g s and was stopped", self._timeout_s)
                raise ClientError(
                    f"the model's chat template did not finish with these messages within {self._timeout_s:g} s and was stopped",
                    param="messages",
                ) from None
            log.warning("a render child ended unexpectedly")
            raise ClientError("the model's chat template crashed on these messages", param="messages") from None
        if isinstance(reply, wire.Refused) and reply.by == "memory":
            log.warning("a chat template needed more than %d MiB and was stopped", self._memory_mib)
            await self._drop(child)
            raise ClientError(
                f"the model's chat template needed more than {self._memory_mib} MiB of memory for these messages and was stopped",
                param="messages",
            )
        self._idle.append(child)
        return reply

    async def _ready_child(self) -> _Child:
        """A greeted child with the present template: an idle one, or a new one."""
        configuration = self._configuration
        if self._is_stopped:
            raise ShuttingDown("the server is shutting down")
        if configuration is None:
            raise ModelLoading("the model's chat template is not loaded yet")
        while self._idle:
            child = self._idle.pop()
            if child.configuration == configuration and child.is_alive:
                return child
            await self._drop(child)
        try:
            child = _Child(self._argv, configuration)
        except OSError as error:
            raise CapsuleError(f"the chat template's process could not be started ({error.strerror})") from None
        self._children.add(child)
        try:
            await self._timed(child, START_TIMEOUT_S, child.greet)
        except ChildGone:
            await self._drop(child)
            raise CapsuleError("the chat template's process did not start; the server's log may say why") from None
        return child

    async def _timed(self, child: _Child, seconds: float, work: Callable[[], T]) -> T:
        """Run `work` on a thread; kill the child when it takes too long, which ends `work` too."""
        loop = asyncio.get_running_loop()
        late = threading.Event()

        def end() -> None:
            late.set()
            child.kill()

        timer = loop.call_later(seconds, end)
        try:
            return await loop.run_in_executor(self._threads, work)
        except ChildGone:
            raise ChildGone(late.is_set()) from None
        finally:
            timer.cancel()

    async def _drop(self, child: _Child) -> None:
        self._children.discard(child)
        await asyncio.get_running_loop().run_in_executor(self._threads, child.bury)


def _text_of(reply: wire.Reply) -> str:
    match reply:
        case wire.Rendered(text):
            return text
        case wire.Refused(by="input", message=message, param=param):
            raise ClientError(message, param=param)
        case wire.Refused(message=message):
            raise CapsuleError(f"the model's chat template is broken: {message}")
        case _:
            raise CapsuleError("the chat template's process gave the wrong kind of answer")
