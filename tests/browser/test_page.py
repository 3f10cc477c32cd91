"""The chat page against a scripted server: what it sends, what it shows, and that nothing it is told can run in it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import OpenPage
from tests.browser.fake_server import WAIT, FakeServer, Stream

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script><b>bold</b>'


def ask(page: Page, text: str) -> None:
    page.get_by_label("Your message").fill(text)
    page.get_by_role("button", name="Send").click()


def answers(page: Page) -> Any:
    return page.locator(".answer")


def exchange(page: Page, fake: FakeServer, question: str, reply: str) -> Stream:
    """One complete question and answer."""
    ask(page, question)
    stream = fake.stream()
    stream.text(reply)
    stream.finish()
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    return stream


# ---- streaming and stopping ----


def test_text_appears_as_it_arrives(fake: FakeServer, open_page: OpenPage) -> None:
    page = open_page(fake.url)
    ask(page, "Hello?")
    stream = fake.stream()
    assert stream.request["stream"] is True
    assert stream.request["messages"] == [{"role": "user", "content": "Hello?"}]
    assert stream.request["model"] == fake.model
    stream.event({"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]})
    stream.event({"choices": [], "prompt_progress": {"total": 200, "processed": 90, "cache": 0}})
    expect(answers(page).last).to_have_attribute("data-progress", "Reading, 45 %")
    stream.text("One ")
    expect(answers(page).last).to_have_text("Answer: One")
    stream.text("two.")
    expect(answers(page).last).to_have_text("Answer: One two.")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    stream.finish(n=42, rate=17.04)
    expect(page.get_by_text("42 tokens · 17.0 tokens/s")).to_be_visible()
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    expect(page.locator("#said")).to_have_text("One two.")


@pytest.mark.parametrize("size", [1, 3, 7])
def test_chunks_may_be_cut_anywhere(fake: FakeServer, open_page: OpenPage, size: int) -> None:
    """Within a line, within a character, and between CR and LF."""
    text = "naïve 👩‍🚀 日本語\n  indented\u2028end"
    event = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
    data = b": ping\r\n\r\ndata:" + json.dumps(event, ensure_ascii=False).encode() + b"\r\n\r\n"
    page = open_page(fake.url)
    ask(page, "Cut")
    stream = fake.stream()
    for start in range(0, len(data), size):
        stream.raw(data[start : start + size])
    stream.finish()
    expect(page.get_by_text("tokens/s")).to_be_visible()
    assert answers(page).last.evaluate("node => node.lastChild.data") == text


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop_drops_the_request_and_keeps_the_text(fake: FakeServer, open_page: OpenPage, how: str) -> None:
    page = open_page(fake.url)
    ask(page, "Count")
    stream = fake.stream()
    stream.text("one, two")
    expect(answers(page).last).to_have_text("Answer: one, two")
    assert not stream.closed.is_set()
    if how == "button":
        page.get_by_role("button", name="Stop").click()
    else:
        page.keyboard.press("Escape")
    assert stream.closed.wait(WAIT)
    expect(page.get_by_text("Stopped")).to_be_visible()
    expect(answers(page).last).to_have_text("Answer: one, two")
    again = exchange(page, fake, "Go on", "three")
    assert [m["content"] for m in again.request["messages"]] == ["Count", "one, two", "Go on"]


def test_stop_before_the_first_word_gives_the_text_back_on_request(fake: FakeServer, open_page: OpenPage) -> None:
    page = open_page(fake.url)
    ask(page, "A long question")
    stream = fake.stream()
    page.get_by_role("button", name="Stop").click()
    assert stream.closed.wait(WAIT)
    page.get_by_role("button", name="Edit").click()
    expect(page.get_by_label("Your message")).to_have_value("A long question")
    expect(page.locator(".turn")).to_have_count(0)


def test_a_double_click_on_send_does_not_stop_the_answer(fake: FakeServer, open_page: OpenPage) -> None:
    page = open_page(fake.url)
    page.get_by_label("Your message").fill("Twice")
    box = page.get_by_role("button", name="Send").bounding_box()
    assert box is not None
    page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    stream = fake.stream()
    stream.text("still here")
    stream.finish()
    expect(page.get_by_text("tokens/s")).to_be_visible()
    assert len(fake.sent("/v1/chat/completions")) == 1


# ---- the conversation ----


def test_new_chat_stops_and_forgets(fake: FakeServer, open_page: OpenPage) -> None:
    page = open_page(fake.url)
    exchange(page, fake, "First", "Answer one")
    ask(page, "Second")
    stream = fake.stream()
    stream.text("half an")
    expect(answers(page).last).to_have_text("Answer: half an")
    page.get_by_role("button", name="New chat").click()
    assert stream.closed.wait(WAIT)
    expect(page.locator(".turn")).to_have_count(0)
    expect(page.get_by_role("heading", name="What would you like to know?")).to_be_visible()
    assert page.evaluate("sessionStorage.getItem('capsule.turns')") == "[]"
    again = exchange(page, fake, "Third", "Fresh")
    assert [m["content"] for m in again.request["messages"]] == ["Third"]


def test_a_reload_keeps_the_conversation(fake: FakeServer, open_page: OpenPage) -> None:
    page = open_page(fake.url)
    exchange(page, fake, "My name is Ada", "Hello Ada")
    page.reload()
    expect(answers(page).last).to_have_text("Answer: Hello Ada")
    again = exchange(page, fake, "And now?", "Still Ada")
    assert [m["role"] for m in again.request["messages"]] == ["user", "assistant", "user"]


def test_enter_sends_except_with_shift_or_inside_an_input_method(fake: FakeServer, open_page: OpenPage) -> None:
    page = open_page(fake.url)
    field = page.get_by_label("Your message")
    expect(field).to_be_focused()
    expect(page.get_by_role("heading", name="What would you like to know?")).to_be_visible()
    field.press_sequentially("line one")
    field.press("Shift+Enter")
    field.press_sequentially("line two")
    for composing in ("{isComposing: true}", "{keyCode: 229}"):
        field.evaluate(f"node => node.dispatchEvent(new KeyboardEvent('keydown', {{key: 'Enter', bubbles: true, ...{composing}}}))")
    expect(field).to_have_value("line one\nline two")
    assert fake.sent("/v1/chat/completions") == []
    field.press("Enter")
    assert fake.stream().request["messages"][0]["content"] == "line one\nline two"


def test_the_view_follows_until_the_reader_scrolls_up(fake: FakeServer, open_page: OpenPage) -> None:
    page = open_page(fake.url, viewport={"width": 800, "height": 500})
    distance = "node => node.scrollHeight - node.scrollTop - node.clientHeight"
    scroll = page.locator("#scroll")
    ask(page, "Talk")
    stream = fake.stream()
    for n in range(60):
        stream.text(f"line {n}\n")
    expect(answers(page).last).to_contain_text("line 59")
    assert scroll.evaluate(distance) < 3
    scroll.hover()
    page.mouse.wheel(0, -150)
    latest = page.get_by_role("button", name="Go to the latest text")
    expect(latest).to_be_visible()
    top = scroll.evaluate("node => node.scrollTop")
    for n in range(60, 90):
        stream.text(f"line {n}\n")
    expect(answers(page).last).to_contain_text("line 89")
    assert scroll.evaluate("node => node.scrollTop") == top
    latest.click()
    assert scroll.evaluate(distance) < 3
    stream.text("the end\n")
    expect(answers(page).last).to_contain_text("the end")
    assert scroll.evaluate(distance) < 3
    stream.finish()


# ---- failures ----


def test_the_server_s_error_is_shown_verbatim_and_can_be_tried_again(fake: FakeServer, open_page: OpenPage) -> None:
    message = "the request needs 9000 prompt tokens, but the context of one request is 2048 tokens; <shorten> it"
    fake.refusal = (400, {"error": {"message": message, "type": "exceed_context_size_error"}})
    page = open_page(fake.url)
    ask(page, "Far too long")
    expect(page.locator(".failed .note")).to_have_text(message)
    fake.refusal = None
    page.get_by_role("button", name="Try again").click()
    stream = fake.stream()
    assert [m["content"] for m in stream.request["messages"]] == ["Far too long"]
    stream.text("Now it works")
    stream.finish()
    expect(answers(page).last).to_have_text("Answer: Now it works")
    expect(page.locator(".failed")).to_have_count(0)


def test_a_failed_turn_is_not_told_to_the_model(fake: FakeServer, open_page: OpenPage) -> None:
    fake.refusal = (502, "Bad gateway")
    page = open_page(fake.url)
    ask(page, "Lost")
    expect(page.locator(".failed .note")).to_have_text("Bad gateway")
    fake.refusal = None
    again = exchange(page, fake, "Heard", "Yes")
    assert [m["content"] for m in again.request["messages"]] == ["Heard"]


def test_an_error_within_the_stream_keeps_what_was_said(fake: FakeServer, open_page: OpenPage) -> None:
    page = open_page(fake.url)
    ask(page, "Go")
    stream = fake.stream()
    stream.text("so far")
    stream.event({"error": {"message": "the model's process ended under this request", "code": "runner_died"}})
    stream.end()
    expect(page.locator(".failed .note")).to_have_text("the model's process ended under this request")
    expect(answers(page).last).to_have_text("Answer: so far")


@pytest.mark.parametrize("abort", [False, True])
def test_a_stream_that_just_ends_is_not_a_complete_answer(fake: FakeServer, open_page: OpenPage, abort: bool) -> None:
    page = open_page(fake.url)
    ask(page, "Go")
    stream = fake.stream()
    stream.text("half")
    expect(answers(page).last).to_have_text("Answer: half")
    stream.end(abort=abort)
    expect(page.locator(".failed .note")).to_have_text(re.compile("connection ended before|No answer from the server"))
    expect(answers(page).last).to_have_text("Answer: half")


def test_nothing_that_is_shown_can_run(fake: FakeServer, open_page: OpenPage) -> None:
    fake.model = HOSTILE
    page = open_page(fake.url)
    expect(page.locator("#model")).to_have_text(HOSTILE)
    exchange(page, fake, f"Say {HOSTILE}", HOSTILE)
    expect(answers(page).last).to_have_text(f"Answer: {HOSTILE}")
    fake.refusal = (500, {"error": {"message": HOSTILE}})
    ask(page, "again")
    expect(page.locator(".failed .note")).to_have_text(HOSTILE)
    page.reload()
    expect(answers(page).first).to_have_text(f"Answer: {HOSTILE}")
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, b, main script").count() == 0


# ---- loading, keys, quitting ----


def test_load_progress_is_followed_until_the_model_is_there(fake: FakeServer, open_page: OpenPage) -> None:
    error = {"message": "the model is being loaded (weights, 40 %)", "code": "model_loading"}
    fake.loading = {"error": error, "status": "loading", "progress": 0.4, "stage": "weights"}
    page = open_page(fake.url)
    expect(page.get_by_role("progressbar")).to_have_js_property("value", 0.4)
    expect(page.get_by_text("weights · 40 %")).to_be_visible()
    page.get_by_label("Your message").fill("Typed early")
    expect(page.get_by_role("button", name="Send")).to_be_disabled()
    fake.loading = {"error": error, "status": "loading", "progress": 0.9, "stage": "warming up"}
    expect(page.get_by_role("progressbar")).to_have_js_property("value", 0.9)
    fake.loading = {"error": {"message": "the model could not be loaded: the file is truncated"}}
    expect(page.get_by_text("the model could not be loaded: the file is truncated")).to_be_visible()
    expect(page.get_by_role("progressbar")).to_be_hidden()
    fake.loading = None
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    expect(page.locator("#model")).to_have_text(fake.model)
    expect(page.get_by_text("Up to 2,048 tokens a chat")).to_be_visible()


def test_a_key_is_asked_for_kept_for_the_tab_and_sent(fake: FakeServer, open_page: OpenPage) -> None:
    fake.key = "right"
    page = open_page(fake.url)
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("an API key is required")
    dialog.get_by_label("API key").fill("wrong")
    dialog.get_by_role("button", name="Continue").click()
    expect(dialog).to_contain_text("the API key is not valid")
    dialog.get_by_label("API key").fill("right")
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    expect(page.locator("#model")).to_have_text(fake.model)
    assert exchange(page, fake, "Hi", "Hello").headers["authorization"] == "Bearer right"
    page.reload()
    expect(page.locator("#model")).to_have_text(fake.model)
    assert "right" not in page.url and page.evaluate("JSON.stringify(localStorage)").find("right") < 0


def test_without_a_key_the_refusal_is_shown(fake: FakeServer, open_page: OpenPage) -> None:
    page = open_page(fake.url)
    expect(page.locator("#model")).to_have_text(fake.model)
    page.wait_for_load_state("networkidle")  # else a request of the start meets the new key
    fake.key = "changed meanwhile"
    ask(page, "Hi")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".failed .note")).to_have_text("an API key is required")


def test_quit_only_with_the_launch_secret(fake: FakeServer, open_page: OpenPage) -> None:
    stranger = open_page(fake.url)
    expect(stranger.get_by_role("heading", name="What would you like to know?")).to_be_visible()
    expect(stranger.get_by_role("button", name="Quit")).to_be_hidden()
    page = open_page(f"{fake.url}#launch={fake.launch_secret}")
    button = page.get_by_role("button", name="Quit")
    expect(button).to_be_visible()
    assert page.url == fake.url and page.evaluate("history.length") <= 2
    button.click()
    page.get_by_role("button", name="Cancel").click()
    assert not fake.quit.is_set()
    button.click()
    page.get_by_role("dialog").get_by_role("button", name="Quit").click()
    expect(page.get_by_role("heading", name="Capsule has ended")).to_be_visible()
    assert fake.quit.is_set()
    assert fake.sent("/quit")[0].headers["content-type"] == "application/json"


def test_a_stale_launch_secret_says_so(fake: FakeServer, open_page: OpenPage) -> None:
    page = open_page(f"{fake.url}#launch=old")
    page.get_by_role("button", name="Quit").click()
    page.get_by_role("dialog").get_by_role("button", name="Quit").click()
    expect(page.get_by_role("dialog")).to_contain_text("only the browser that was opened may quit")
    assert not fake.quit.is_set()


def test_an_address_never_sends_anything(fake: FakeServer, open_page: OpenPage) -> None:
    for suffix in ("?q=hello&prompt=hello&submit=1", "#hello", "#q=hello&launch="):
        page = open_page(fake.url + suffix)
        expect(page.locator("#model")).to_have_text(fake.model)
        expect(page.get_by_label("Your message")).to_have_value("")
    assert {r.method for r in fake.requests} == {"GET"}
