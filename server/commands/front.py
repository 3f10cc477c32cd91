"""The event loop's half of `serve`: puts runner, renderer and application together, tells what runs where, ends in order.

Imported after the runner was started, since it brings aiohttp along. Knows no route and no dialect.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from server import __version__
from server.app import create_app
from server.chat.renderer import Renderer
from server.commands.report import model_lines
from server.commands.start import Start
from server.errors import OperatorError
from server.http.context import AppContext
from server.http.metrics import Metrics
from server.http.serving import make_app_runner
from server.licenses import licenses
from server.lifecycle import desktop
from server.lifecycle.console import say
from server.lifecycle.instance import Registration, Running
from server.lifecycle.listen import BACKLOG, Listening
from server.lifecycle.stop import Stopper
from server.runners.process import RunnerProcess
from server.runners.runner import Runner

_PAGE = Path(__file__).resolve().parent.parent / "web" / "index.html"
_PROGRESS_S = 3.0
_WATCH_S = 1.0
_DRAIN_STEP_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """All that a start has found and taken before the event loop runs."""

    start: Start
    listening: Listening
    process: RunnerProcess
    registration: Registration | None
    stopper: Stopper
    launch_secret: str
    nonce: str


def run(front: Front) -> int:
    """Serve until the stopper says so.

    Raises:
        OperatorError: the model cannot be loaded, or the application cannot be set up as asked.
    """
    return asyncio.run(_Serving(front).run())


class _Serving:
    def __init__(self, front: Front) -> None:
        self._front = front
        self._settings = front.start.options.settings
        self._runner = Runner(front.start.runner, front.process)
        self._renderer = Renderer()
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        # Called from signal handlers and other threads, perhaps after the loop has been closed.
        self._front.stopper.on_stop(lambda: _quietly_call(loop, self._stopping))
        context = self._context()
        site = make_app_runner(create_app(context), context)
        await self._runner.start()
        try:
            await self._listen(site)
            self._be_found()
            await self._until_stopped()
            context.draining = True
            await self._drain(context)
        finally:
            context.draining = True
            await self._runner.stop()
            await self._renderer.stop()
            await site.cleanup()
        return 0

    def _context(self) -> AppContext:
        front, start = self._front, self._front.start
        return AppContext(
            settings=self._settings,
            origins=start.options.origins,
            runner=self._runner,
            renderer=self._renderer,
            metrics=Metrics(self._runner, __version__, start.model_name),
            model_name=start.model_name,
            launch_secret=front.launch_secret,
            nonce=front.nonce,
            quit=front.stopper.stop,
            licenses=licenses,
            page=_PAGE.read_bytes(),
            version=__version__,
            model_path=os.fspath(start.weights.path),
            chat_template=start.template,
        )

    async def _listen(self, site: web.AppRunner) -> None:
        await site.setup()
        tls = _tls(self._settings.ssl_cert_file, self._settings.ssl_key_file)
        for one in self._front.listening.sockets:
            await web.SockSite(site, one, ssl_context=tls, backlog=BACKLOG).start()

    def _be_found(self) -> None:
        """By a second start of this file, and by the person's browser."""
        front = self._front
        if front.registration is not None:
            front.registration.publish(Running(os.getpid(), front.listening.port, front.nonce, front.launch_secret))
        if self._settings.browser and desktop.can_open_browser(os.environ):
            scheme = "https" if self._settings.ssl_cert_file else "http"
            desktop.open_browser(f"{scheme}://{front.listening.host}:{front.listening.port}/#launch={front.launch_secret}")

    async def _until_stopped(self) -> None:
        """Wait for the model, tell what it turned out to be, then wait for the wish to end.

        Raises:
            OperatorError: the model cannot be served, at first or after its process died.
        """
        if not await self._loaded():
            return
        info = self._runner.info
        assert info is not None
        template = self._front.start.template
        await self._renderer.start(template if template is not None else info.chat_template, info.bos_token, info.eos_token)
        for line in model_lines(self._front.start, info):
            say(line)
        while not await _within(self._stop.wait(), _WATCH_S):
            if self._runner.fatal is not None:
                raise OperatorError(self._runner.fatal.message, hint=self._runner.fatal.hint)

    async def _loaded(self) -> bool:
        """Whether the model is ready; False if the end was wanted first. A slow load says how far it is."""
        ready = asyncio.create_task(self._runner.wait_ready())
        stop = asyncio.create_task(self._stop.wait())
        told = ""
        try:
            while True:
                await asyncio.wait((ready, stop), timeout=_PROGRESS_S, return_when=asyncio.FIRST_COMPLETED)
                if stop.done():
                    return False
                if ready.done():
                    ready.result()
                    return True
                loading = self._runner.loading
                line = f"loading: {loading.stage}, {loading.progress:.0%}"
                if line != told:
                    say(line)
                told = line
        finally:
            for task in (ready, stop):
                task.cancel()
            await asyncio.gather(ready, stop, return_exceptions=True)

    async def _drain(self, context: AppContext) -> None:
        """Let open requests finish, up to --drain-timeout, unless the end has become urgent."""
        if not context.n_open or not self._front.stopper.patient:
            return
        seconds = self._settings.drain_timeout
        n = context.n_open
        say(f"Ending: {n} open request{'s' if n > 1 else ''} may finish within {seconds:g} s; Ctrl-C again ends at once.")
        deadline = asyncio.get_running_loop().time() + seconds
        while context.n_open and asyncio.get_running_loop().time() < deadline:
            if await _within(self._hurry.wait(), _DRAIN_STEP_S):
                return

    def _stopping(self) -> None:
        self._stop.set()
        if not self._front.stopper.patient:
            self._hurry.set()


async def _within(waiting: Awaitable[object], seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(waiting, seconds)
        return True
    return False


def _quietly_call(loop: asyncio.AbstractEventLoop, wake: object) -> None:
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(wake)  # type: ignore[arg-type]


def _tls(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    """Raises OperatorError if the two files are not a certificate and its key."""
    if certificate is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or "not PEM, or encrypted"
        raise OperatorError(
            f"--ssl-cert-file and --ssl-key-file are not a certificate and its key: {str(reason).replace('_', ' ').lower()}",
            hint="both are PEM files, the key without a password",
        ) from None
    return context
