"""A real browser for the page tests. Every test also fails if the page broke its policy, threw, or asked another origin for anything.

Needs Chromium: Debian's package (`apt-get install chromium`), CAPSULE_CHROMIUM=/path/to/it, or `playwright install chromium`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request, sync_playwright

from tests.browser.fake_server import FakeServer

SHOTS = Path(__file__).parent / "shots"
LAN_NAME = "capsule.test"
"""A name for 127.0.0.1 that the browser does not trust: a plain-HTTP origin as on a local network."""

ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    f"--host-resolver-rules=MAP {LAN_NAME} 127.0.0.1",
)

OpenPage = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Module scope: the browser's event loop must be gone before a test elsewhere runs its own."""
    found = os.environ.get("CAPSULE_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with FakeServer() as server:
        yield server


class Watch:
    """Collects what a page must never do."""

    def __init__(self, page: Page, origin: str) -> None:
        self.faults: list[str] = []
        self._origin = origin
        page.on("pageerror", self._threw)
        page.on("console", self._said)
        page.on("request", self._asked)

    def _threw(self, error: Error) -> None:
        self.faults.append(f"threw: {error}")

    def _said(self, message: ConsoleMessage) -> None:
        # The browser itself reports every 4xx and 5xx; those are the tests' own doing.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            self.faults.append(f"console: {message.text}")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith((self._origin, "data:")):
            self.faults.append(f"foreign request: {request.url}")


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """`open_page(url, **context_options)`: a page in a fresh profile, watched until the test ends."""
    watches: list[Watch] = []
    contexts = []

    def open_(url: str, **options: Any) -> Page:
        context = browser.new_context(**options)
        context.set_default_timeout(15_000)
        contexts.append(context)
        page = context.new_page()
        parts = urlsplit(url)
        watches.append(Watch(page, f"{parts.scheme}://{parts.netloc}/"))
        page.goto(url)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert [fault for watch in watches for fault in watch.faults] == []


def shoot(page: Page, name: str) -> None:
    """A picture for people to look at; git ignores the folder."""
    SHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png")
