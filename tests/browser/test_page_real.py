"""The chat page against the real program: the policy it is served under, a streamed answer, and that Stop frees the slot."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import OpenPage
from tests.browser.test_page import ask
from tests.e2e.harness import Server

LONG = "Write a very long story about a lighthouse keeper, with every day of his year."


@pytest.fixture(scope="module")
def program() -> Iterator[Server]:
    """Two slots, so that a slot that stays taken is noticed."""
    with Server("--parallel", "2", "--ctx-size", "4096") as running:
        yield running


def test_an_answer_is_streamed_under_the_servers_own_policy(program: Server, open_page: OpenPage) -> None:
    page = open_page(program.url + "/")
    expect(page.get_by_role("heading", name="What would you like to know?")).to_be_visible()
    expect(page.locator("#model")).not_to_have_text("Capsule")
    expect(page.get_by_text("Up to 2,048 tokens a chat")).to_be_visible()
    expect(page.get_by_role("button", name="Quit")).to_be_hidden()
    response = page.request.get(program.url + "/")
    policy = response.headers["content-security-policy"]
    for part in ("default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "form-action 'none'"):
        assert part in policy
    assert "unsafe" not in policy and "*" not in policy
    ask(page, "What is the capital of France? One short sentence.")
    expect(page.locator(".note")).to_have_text(re.compile(r"^\d+ tokens? · [\d.]+ tokens/s"), timeout=60_000)
    assert page.locator(".answer").inner_text().removeprefix("Answer:").strip()
    program.wait_idle()


@pytest.mark.parametrize("how", ["stop", "new chat", "close"])
def test_leaving_an_answer_frees_its_slot(program: Server, open_page: OpenPage, how: str) -> None:
    page = open_page(program.url + "/")
    ask(page, LONG)
    expect(page.locator(".answer")).to_have_text(re.compile(r"^Answer: \S+ \S+"), timeout=60_000)
    assert program.busy_slots() == 1
    if how == "stop":
        page.get_by_role("button", name="Stop").click()
        expect(page.locator(".note")).to_have_text("Stopped")
    elif how == "new chat":
        page.get_by_role("button", name="New chat").click()
    else:
        page.close()
    program.wait_idle(10)


def test_two_people_are_answered_at_the_same_time(program: Server, open_page: OpenPage) -> None:
    first, second = open_page(program.url + "/"), open_page(program.url + "/")
    for page in (first, second):
        ask(page, LONG)
    for page in (first, second):
        expect(page.locator(".answer")).to_have_text(re.compile(r"^Answer: \S+ \S+"), timeout=60_000)
    assert program.busy_slots() == 2
    for page in (first, second):
        page.get_by_role("button", name="Stop").click()
    program.wait_idle(10)


def test_a_guessed_launch_secret_does_not_quit(open_page: OpenPage) -> None:
    """Only the browser that the program itself has opened knows it."""
    with Server("--parallel", "1", "--ctx-size", "512") as server:
        page = open_page(server.url + "/#launch=a-guess")
        page.get_by_role("button", name="Quit").click()
        page.get_by_role("dialog").get_by_role("button", name="Quit").click()
        expect(page.get_by_role("dialog")).to_contain_text("this needs an admin key")
        assert server.process.poll() is None
