"""`chat`: a conversation in the terminal, without an HTTP server. Reads, sends, prints; what it prints cannot steer the terminal.

At a terminal every line is a turn; lines pasted together are one, as is everything between two lines of three quotation marks.
From a pipe or file the whole input is one turn, and standard output holds the answer and nothing else. The event loop runs only
while there is something to wait for: the prompt belongs to the terminal.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

from server.api.sampling import defaults
from server.chat.renderer import Renderer
from server.commands.keyboard import Keyboard, help_lines
from server.commands.report import model_lines
from server.commands.start import Start, prepare, read_options, watched_parent
from server.errors import CapsuleError, ContextSizeExceeded, OperatorError
from server.lifecycle import console, extraction
from server.lifecycle.console import escaped, say
from server.lifecycle.stop import WINDOW_S, watch_parent
from server.protocol import Delta, Finished, GenerationRequest
from server.runners.process import launch
from server.runners.runner import Runner

Message = dict[str, Any]
T = TypeVar("T")


def main(argv: list[str]) -> int:
    """Chat until the end of the input.

    Raises:
        OperatorError: the start cannot succeed, or the model cannot be loaded.
    """
    options = read_options(argv, os.environ)
    extraction.sweep_in_background()
    log = console.set_up_log(verbose=options.settings.verbose, file=options.settings.log_file, quiet=True)
    for warning in options.warnings:
        log.warning("%s", warning)
    start = prepare(options, argv, os.environ)
    process = launch(start.runner)

    def parent_lost() -> None:
        process.kill()
        extraction.remove_own()
        os._exit(1)

    if watched_parent():
        watch_parent(parent_lost)
    try:
        with asyncio.Runner() as loop:
            chat = _Chat(start, Runner(start.runner, process, spawn=launch), Renderer(), loop)
            chat.install()
            try:
                return chat.converse() if console.is_terminal(sys.stdin) else chat.answer_once()
            finally:
                chat.close()
    finally:
        process.stop()


class _Chat:
    def __init__(self, start: Start, runner: Runner, renderer: Renderer, loop: asyncio.Runner) -> None:
        self._start = start
        self._settings = start.options.settings
        self._runner = runner
        self._renderer = renderer
        self._loop = loop
        self._messages: list[Message] = []
        self._working: asyncio.Task[None] | None = None
        self._reading = False
        self._interrupted_at = -WINDOW_S

    # ---- signals ---------------------------------------------------------------------------------------------------

    def install(self) -> None:
        """Ctrl-C stops the answer; at the prompt it drops the line. Other signals end the program in order."""
        signal.signal(signal.SIGINT, self._interrupt)
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _end)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        again, self._interrupted_at = now - self._interrupted_at < WINDOW_S, now
        if again:
            return  # the bootloader's parent passes on what the terminal has sent to us already
        if self._reading:
            raise KeyboardInterrupt
        if self._working is not None:
            self._loop.get_loop().call_soon_threadsafe(self._working.cancel)

    # ---- turns -----------------------------------------------------------------------------------------------------

    def converse(self) -> int:
        """At a terminal, until its end."""
        say(f"Loading {escaped(self._start.model_name)}…")
        if not self._complete(self._get_ready()):
            return 0
        assert self._runner.info is not None
        if self._settings.verbose:
            for line in model_lines(self._start, self._runner.info):
                say(line)
        say("Ctrl-C stops an answer, Ctrl-D or /exit ends the chat, /help lists what else there is.")
        keyboard = Keyboard()
        while True:
            try:
                text = self._read(keyboard.read)
            except KeyboardInterrupt:
                say("\nCtrl-D or /exit ends the chat.")
                continue
            if text is None:
                say()
                return 0
            if text.startswith("/"):
                if self._command(*text.partition(" ")[::2]):
                    return 0
            elif text.strip():
                self._turn(text)

    def answer_once(self) -> int:
        """From a pipe: one turn, only the answer on standard output.

        Raises:
            CapsuleError: there is no answer.
            KeyboardInterrupt: Ctrl-C before the input has ended.
        """
        text = self._read(sys.stdin.read) if sys.stdin is not None else ""
        if not text.strip():
            raise OperatorError("there is nothing to answer: the input is empty", hint="pipe a question in, or start chat in a terminal")
        self._messages.append({"role": "user", "content": text.rstrip("\n")})
        return 0 if self._complete(self._answer()) else 130

    def _read(self, read: Callable[[], T]) -> T:
        """Let Ctrl-C end `read`."""
        self._reading = True
        try:
            return read()
        finally:
            self._reading = False

    def close(self) -> None:
        async def end() -> None:
            await self._runner.stop()
            await self._renderer.stop()

        self._loop.run(end())

    def _command(self, word: str, rest: str) -> bool:
        """Do what a line that starts with / asks for; True if it ends the chat."""
        match word:
            case "/exit" | "/quit" | "/bye":
                return True
            case "/clear":
                self._messages = [m for m in self._messages if m["role"] == "system"]
                say("The conversation starts anew.")
            case "/system":
                self._messages = [{"role": "system", "content": rest.strip()}] if rest.strip() else []
                say("The conversation starts anew, " + ("with this system prompt." if rest.strip() else "without a system prompt."))
            case "/help":
                for line in help_lines():
                    say(line)
            case _:
                say(f"There is no {escaped(word)}; /help lists what there is. A line that is to start with / can start with a space.")
        return False

    def _turn(self, text: str) -> None:
        self._messages.append({"role": "user", "content": text.strip("\n")})
        before = len(self._messages)
        try:
            if not self._complete(self._answer()):
                say("\n(stopped)")
        except ContextSizeExceeded as error:
            say(f"The conversation no longer fits ({error.n_prompt_tokens:,} of {error.n_ctx:,} tokens); /clear starts anew.")
        except OperatorError:
            raise
        except CapsuleError as error:
            say(f"error: {escaped(error.message)}")
        if len(self._messages) == before:
            self._messages.pop()  # there was no answer, so there was no question

    # ---- on the event loop -----------------------------------------------------------------------------------------

    def _complete(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run `work` to its end; False if Ctrl-C has stopped it."""

        async def supervise() -> bool:
            self._working = asyncio.ensure_future(work)
            await asyncio.wait((self._working,))
            task, self._working = self._working, None
            if task.cancelled():
                return False
            task.result()
            return True

        return self._loop.run(supervise())

    async def _get_ready(self) -> None:
        await self._runner.start()
        info = await self._runner.wait_ready()
        template = self._start.template
        await self._renderer.start(template if template is not None else info.chat_template, info.bos_token, info.eos_token)

    async def _answer(self) -> None:
        """Answer the messages, printing as it comes; what was printed joins the conversation, also if it was stopped."""
        await self._get_ready()
        info = self._runner.info
        assert info is not None
        prompt = await self._renderer.render(self._messages)
        request = GenerationRequest(
            prompt=prompt,
            add_special=not (info.bos_token and prompt.startswith(info.bos_token)),
            max_tokens=self._settings.n_predict,
            sampling=defaults(self._settings),
        )
        said: list[str] = []
        try:
            async with self._runner.generate(request) as events:
                async for event in events:
                    if isinstance(event, Delta):
                        said.append(event.text)
                        say(escaped(event.text), end="")
                    elif isinstance(event, Finished):
                        say()
                        self._tell_speed(event)
        finally:
            if said:
                self._messages.append({"role": "assistant", "content": "".join(said)})

    def _tell_speed(self, end: Finished) -> None:
        if end.reason == "length":
            say("(the answer reached its limit)", file=sys.stderr)
        if self._settings.verbose:
            t = end.timings
            rates = [
                f"{n} {what} tokens, {1000 * n / ms:.1f}/s"
                for n, ms, what in ((t.prompt_n, t.prompt_ms, "prompt"), (t.predicted_n, t.predicted_ms, "answer"))
                if ms > 0
            ]
            say(f"[{'; '.join(rates)}; {end.n_cached_tokens} cached]", file=sys.stderr)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)
