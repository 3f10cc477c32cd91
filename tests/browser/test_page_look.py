"""How the page presents itself: both themes, phones, plain-HTTP names, keyboard; with pictures in tests/browser/shots/ to look at."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from tests.browser.conftest import LAN_NAME, OpenPage, shoot
from tests.browser.fake_server import PAGE, FakeServer
from tests.browser.test_page import ask, exchange

DESKTOP: ViewportSize = {"width": 1200, "height": 800}
PHONE: ViewportSize = {"width": 360, "height": 700}
REPLY = (
    "Sunlight holds every colour. As it passes through the air, it meets molecules much smaller than its wavelength, and those "
    "scatter short wavelengths far more than long ones.\n\nSo blue light is sent in all directions, and from wherever you look, "
    "some of it reaches your eye:\n\n  1. Violet scatters most, but there is less of it, and eyes see it poorly.\n"
    "  2. Blue scatters about four times as much as red.\n  3. At sunset the path is long, and only red is left."
)
LUMINANCE = """node => {
  const [r, g, b] = getComputedStyle(node).%s.match(/[0-9.]+/g).map(Number).map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}"""


def luminance(page: Page, selector: str, what: str) -> float:
    return float(page.locator(selector).first.evaluate(LUMINANCE % what))


def contrast(a: float, b: float) -> float:
    low, high = sorted((a, b))
    return (high + 0.05) / (low + 0.05)


def test_one_style_one_script_and_nothing_inline() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(re.findall(r"<style\b", page)) == len(re.findall(r"<script\b", page)) == 1
    markup = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)
    assert not re.search(r"<[^>]*\s(style|on\w+)\s*=", markup.replace("no style= and no on...=", ""))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|randomUUID|clipboard", page)
    assert len(page.splitlines()) < 400


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_themes_are_readable(fake: FakeServer, open_page: OpenPage, theme: Any) -> None:
    page = open_page(fake.url, color_scheme=theme, viewport=DESKTOP)
    expect(page.get_by_text("Up to 2,048 tokens a chat")).to_be_visible()
    shoot(page, f"empty-{theme}")
    background = luminance(page, "body", "backgroundColor")
    assert (background < 0.05) == (theme == "dark")
    exchange(page, fake, "Why is the sky blue?", REPLY)
    exchange(page, fake, "Thanks! And why is the sea blue?", "Water absorbs red light more than blue.\n" * 2)
    fake.refusal = (503, {"error": {"message": "the waiting queue is full (1024 requests); try again in 3 seconds"}})
    ask(page, "And grass?")
    expect(page.locator(".failed .note")).to_be_visible()
    for selector in (".answer", ".asked >> nth=0", ".note", "#hint", "#model"):
        assert contrast(luminance(page, selector, "color"), background) >= 4.5, selector
    shoot(page, f"chat-{theme}")


def test_the_toggle_overrides_the_system_and_goes_back_to_it(fake: FakeServer, open_page: OpenPage) -> None:
    page = open_page(fake.url, color_scheme="light")
    toggle = page.get_by_role("button", name="Switch between dark and light")
    assert luminance(page, "body", "backgroundColor") > 0.8
    toggle.click()
    assert luminance(page, "body", "backgroundColor") < 0.05
    page.reload()
    assert luminance(page, "body", "backgroundColor") < 0.05
    toggle.click()
    assert luminance(page, "body", "backgroundColor") > 0.8
    page.emulate_media(color_scheme="dark")
    assert luminance(page, "body", "backgroundColor") < 0.05


def test_a_phone_shows_everything_without_sideways_scrolling(fake: FakeServer, open_page: OpenPage) -> None:
    fake.model = "A-Model-With-A-Remarkably-Long-Name-70B-Instruct-Q4_K_M"
    page = open_page(fake.url + "#launch=x", viewport=PHONE, is_mobile=True, has_touch=True, device_scale_factor=2)
    expect(page.locator("#model")).to_have_text(fake.model)
    shoot(page, "phone-empty")
    exchange(page, fake, "Why is the sky blue?", REPLY)
    exchange(page, fake, "x" * 300, "y" * 300)
    shoot(page, "phone-chat")
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    for name in ("New chat", "Switch between dark and light", "Quit", "Send"):
        box = page.get_by_role("button", name=name).bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= PHONE["width"], name
        assert min(box["width"], box["height"]) >= 40, name


def test_a_plain_http_name_on_the_network_works_as_well(fake: FakeServer, open_page: OpenPage) -> None:
    """Not a secure context: no clipboard, no crypto.randomUUID."""
    page = open_page(f"http://{LAN_NAME}:{fake.port}/")
    assert page.evaluate("isSecureContext") is False
    exchange(page, fake, "Hi", "Hello there")
    expect(page.locator(".answer")).to_have_text("Answer: Hello there")


def test_the_keyboard_reaches_everything(fake: FakeServer, open_page: OpenPage) -> None:
    page = open_page(fake.url + "#launch=x")
    exchange(page, fake, "Hi", "Hello")
    page.get_by_label("Your message").fill("next")
    expect(page.get_by_label("Your message")).to_be_focused()
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    assert {"send", "fresh", "theme", "quit", "scroll", "Try again", "text"} <= set(reached)


def test_pictures_of_the_passing_states(fake: FakeServer, open_page: OpenPage) -> None:
    fake.loading = {"status": "loading", "progress": 0.62, "stage": "weights"}
    page = open_page(fake.url + "#launch=x", viewport=DESKTOP)
    expect(page.get_by_text("weights · 62 %")).to_be_visible()
    page.wait_for_timeout(400)
    shoot(page, "loading")
    fake.loading = None
    ask(page, "Why is the sky blue?")
    stream = fake.stream()
    stream.event({"choices": [], "prompt_progress": {"total": 100, "processed": 30}})
    expect(page.locator(".answer")).to_have_attribute("data-progress", "Reading, 30 %")
    shoot(page, "waiting")
    stream.text(REPLY[:330])
    expect(page.locator(".answer")).to_contain_text("wherever")
    page.get_by_label("Your message").fill("A following question\nof three lines,\nwritten meanwhile")
    shoot(page, "streaming")
    page.get_by_role("button", name="Quit").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    shoot(page, "quit")
    page.get_by_role("button", name="Cancel").click()
    stream.finish()
    fake.key = "k"
    dark = open_page(fake.url, viewport=DESKTOP, color_scheme="dark")
    expect(dark.get_by_role("dialog")).to_be_visible()
    shoot(dark, "key-dark")
    assert dark.get_by_label("API key").evaluate("node => node === document.activeElement")
