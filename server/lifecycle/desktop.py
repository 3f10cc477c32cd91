"""Whether somebody sits in front of a desktop, and what to show there: the browser, a message box, a console kept open."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping

from server.lifecycle.console import is_terminal, say
from server.spawn import message_box, owns_console

_TITLE = "Capsule"
_BROWSERS = ("xdg-open", "gio", "wslview", "sensible-browser", "x-www-browser")


def can_open_browser(environment: Mapping[str, str], platform: str = sys.platform) -> bool:
    """Whether a page opened now would be seen: never in CI, over ssh, or on a Linux without a display."""
    if environment.get("CI", "").lower() not in ("", "0", "false"):
        return False
    if environment.get("SSH_CONNECTION") or environment.get("SSH_TTY"):
        return False
    if platform in ("win32", "darwin"):
        return True
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def is_double_click(argv: list[str]) -> bool:
    """Whether we were started from a file manager: nothing was typed, and there is no terminal that is not ours alone."""
    if argv or not can_open_browser(os.environ):
        return False
    return owns_console() or not is_terminal()


def open_browser(url: str) -> threading.Thread:
    """Open `url` in the person's browser, without waiting and without a word if that fails (the URL is printed anyway)."""
    thread = threading.Thread(target=_open_browser, args=(url,), name="browser", daemon=True)
    thread.start()
    return thread


def _open_browser(url: str) -> None:
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            os.startfile(url)
            return
        if sys.platform == "darwin":
            _run(["open", url])
            return
        for name in _BROWSERS:
            if found := shutil.which(name):
                if _run([found, "open", url] if name == "gio" else [found, url]) == 0:
                    return


def show_fatal(text: str) -> None:
    """Tell somebody who has no terminal why nothing happens. Does nothing where there is one that stays open."""
    if owns_console():
        if is_terminal(sys.stdin):
            say("Press Enter to close this window.", file=sys.stderr, end=" ")
            with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
                input()
        return
    if is_terminal() or not can_open_browser(os.environ):
        return
    with contextlib.suppress(OSError):
        if message_box(_TITLE, text):
            return
        for command in _boxes(text):
            if shutil.which(command[0]) and _run(command) is not None:
                return


def _boxes(text: str) -> list[list[str]]:
    """Commands that show an error box. The text is an argument of its own, never part of a script."""
    if sys.platform == "darwin":
        script = "on run argv\ndisplay alert (item 1 of argv) message (item 2 of argv) as critical\nend run"
        return [["osascript", "-e", script, _TITLE, text]]
    return [
        ["zenity", "--error", "--no-markup", f"--title={_TITLE}", f"--text={text}"],
        ["kdialog", "--title", _TITLE, "--error", text],
        ["xmessage", "-center", text],
    ]


def _run(command: list[str]) -> int | None:
    """Exit status of a program of the system, run with the environment that we were started with; None if it would not start."""
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=outside_environment(os.environ),
            start_new_session=True,
            check=False,
        ).returncode
    except OSError:
        return None


def outside_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for programs that are not ours: without what the bootloader put there for our own libraries."""
    outside = {name: value for name, value in environment.items() if not name.startswith("_PYI_")}
    for name in ("LD_LIBRARY_PATH", "LIBPATH"):
        original = outside.pop(f"{name}_ORIG", None)
        if original is not None:
            outside[name] = original
        elif "_PYI_APPLICATION_HOME_DIR" in environment:
            outside.pop(name, None)
    return outside
