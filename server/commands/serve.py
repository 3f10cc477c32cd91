"""`serve`: the blocking half of a start. Everything that can be wrong is found here, the port is taken, the runner is loading;
only then asyncio and aiohttp are imported by `front.py`, which serves.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable

from server.commands.early import check_access
from server.commands.report import url_lines
from server.commands.start import Start, own_file, prepare, read_options, watched_parent
from server.lifecycle import console, desktop, extraction
from server.lifecycle.instance import Registration, identity
from server.lifecycle.listen import listen
from server.lifecycle.stop import Stopper, watch_parent
from server.options import Options

_GRACE_S = 10.0
"""After our parent has been killed: how long an orderly end may take."""


def main(argv: list[str]) -> int:
    """Serve until a signal, the page's Quit, or a model that cannot be loaded.

    Raises:
        OperatorError: the start cannot succeed.
    """
    options = read_options(argv, os.environ)
    extraction.sweep_in_background()
    registration = _registration(options)
    if registration is not None and options.settings.browser and desktop.is_double_click(argv) and _reopen(registration):
        return 0
    if registration is not None:
        registration.claim()  # so early that a second double-click waits for us to listen instead of starting beside us
    end = _End(registration)
    try:
        log = console.set_up_log(verbose=options.settings.verbose, file=options.settings.log_file)
        for warning in options.warnings:
            log.warning("%s", warning)
        stopper = Stopper(end_now=end.now)
        stopper.install()
        if watched_parent():
            watch_parent(lambda: end.parent_lost(stopper))
        return _serve(prepare(options, argv, os.environ), registration, stopper)
    finally:
        if registration is not None:
            registration.release()
        end.last_step()


def _serve(start: Start, registration: Registration | None, stopper: Stopper) -> int:
    from server.runners.process import launch

    settings = start.options.settings
    check_access(settings)
    listening = listen(settings.host, settings.port, explicit=start.options.origins["port"] != "default")
    process = launch(start.runner)
    try:
        for line in url_lines(start, listening):
            console.say(line)
        from server.commands.front import Front, run

        return run(
            Front(
                start=start,
                listening=listening,
                process=process,
                registration=registration,
                stopper=stopper,
                launch_secret=secrets.token_urlsafe(24),
                nonce=secrets.token_hex(16),
            )
        )
    finally:
        listening.close()
        process.stop()


def _registration(options: Options) -> Registration | None:
    """Our entry among the running instances; None where there is no private directory, or where TLS makes the probe impossible."""
    from models.cache import default_cache_dir
    from server.errors import OperatorError

    if options.settings.ssl_cert_file is not None:
        return None
    try:
        return Registration(default_cache_dir(), identity(own_file(), options.settings.model))
    except (OSError, OperatorError):
        return None


def _reopen(registration: Registration) -> bool:
    """Open the browser on the instance of this file that runs already, if one does."""
    running = registration.find()
    if running is None:
        return False
    console.say(f"Already running: {running.url}")
    desktop.open_browser(f"{running.url}#launch={running.launch}").join(10)
    return True


class _End:
    """What is left to do when the program ends in a hurry or has lost the parent that would have cleaned up after it."""

    def __init__(self, registration: Registration | None, exit: Callable[[int], None] = os._exit) -> None:
        self._registration = registration
        self._exit = exit
        self._lock = threading.Lock()
        self._orphaned = False

    def now(self) -> None:
        """A second signal: the children end by themselves, since their input does."""
        if self._registration is not None:
            self._registration.release()
        self._exit(0)

    def parent_lost(self, stopper: Stopper) -> None:
        """On the watcher's thread. The front ends in order if it can; otherwise this ends it."""
        self._orphaned = True
        stopper.stop(patient=False)
        time.sleep(_GRACE_S)
        self.last_step()

    def last_step(self) -> None:
        """Remove the directory we run from, if nobody else will; does not come back then."""
        if self._orphaned:
            with self._lock:
                extraction.remove_own()
                self._exit(0)
