"""Constraints in the step loop: the answer ends with its form, a fault is its own request's, and nothing else changes for anybody."""

from __future__ import annotations

import pytest

from server.protocol import Constraint, Delta, Failed
from tests.unit.engine.fakes import FakeDecoder
from tests.unit.engine.harness import World
from tests.unit.engine.oracle import solo_answer


def held_to(text: str) -> Constraint:
    return Constraint(kind="regex", source=text, param="regex")


def test_the_text_ends_where_the_constraint_does() -> None:
    world = World()
    request = world.submit("prompt", constraint=held_to("whole"))
    world.drain()
    end = world.finished(request)
    assert (world.text(request), end.reason, end.stop_type, end.n_predicted) == ("whole", "stop", "eos", 5)
    world.check_accounts()


@pytest.mark.parametrize(("max_tokens", "text", "stop_type"), [(5, "whole", "eos"), (4, "whol", "limit"), (0, "", "limit")])
def test_a_text_that_is_whole_at_its_last_token_is_not_cut(max_tokens: int, text: str, stop_type: str) -> None:
    world = World()
    request = world.submit("prompt", constraint=held_to("whole"), max_tokens=max_tokens)
    world.drain()
    end = world.finished(request)
    assert (world.text(request), end.stop_type) == (text, stop_type)
    assert end.reason == ("stop" if stop_type == "eos" else "length")


def test_a_stop_string_ends_it_before() -> None:
    world = World()
    request = world.submit("prompt", constraint=held_to("a whole text"), stop=("le",))
    world.drain()
    end = world.finished(request)
    assert (world.text(request), end.stop_type, end.stopping_word) == ("a who", "word", "le")


def test_what_was_held_back_for_a_stop_string_comes_with_the_end() -> None:
    world = World()
    request = world.submit("prompt", constraint=held_to("whole"), stop=("let",), return_tokens=True, n_logprobs=0)
    world.drain()
    deltas = [event for event in world.events[request] if isinstance(event, Delta)]
    assert world.text(request) == "whole"
    assert [token for delta in deltas for token in delta.tokens] == list(b"whole")
    assert sum(len(delta.logprobs) for delta in deltas) == 5


def test_a_constraint_that_is_stuck_fails_its_request_alone() -> None:
    world = World()
    free = [world.submit(f"free {n}", seed=n, max_tokens=12) for n in range(2)]
    stuck = world.submit("prompt", constraint=held_to("so far!"))
    world.drain()
    end = world.terminal(stuck)
    assert isinstance(end, Failed) and (end.kind, end.param) == ("invalid", "regex") and "it is stuck" in end.message
    assert world.text(stuck) == "so far"
    for request in free:
        world.check_answer(request)
    world.check_accounts()


def test_guesses_are_verified_under_the_constraint_and_none_behind_its_end() -> None:
    """A text that repeats itself is guessed ahead of; it ends in the middle of guesses that would all be right."""
    world = World(FakeDecoder(n_slots=2, n_ctx_slot=256), guesses=4)
    text = "tick tock " * 8 + "ti"
    request = world.submit("tick tock tick tock ", constraint=held_to(text))
    world.drain()
    end = world.finished(request)
    assert (world.text(request), end.stop_type) == (text, "eos")
    assert end.timings.draft_n_accepted > 10
    world.check_accounts()


def test_a_sequence_that_is_put_aside_goes_on_where_it_was() -> None:
    world = World(FakeDecoder(n_slots=1, n_ctx_slot=64), policy="priority", max_preemptions=2)
    batch = world.submit("prompt", constraint=held_to("a text of some length"), priority="batch")
    world.step(8)
    urgent = world.submit("now", seed=3, max_tokens=4, priority="interactive")
    world.drain()
    assert world.finished(batch).timings.n_preemptions == 1
    assert world.text(batch) == "a text of some length"
    world.check_answer(urgent)
    world.check_accounts()


def test_a_cancel_in_the_middle_gives_everything_back() -> None:
    world = World()
    request = world.submit("prompt", constraint=held_to("a text of some length"))
    world.step(6)
    world.cancel(request)
    world.drain()
    assert world.finished(request).reason == "cancelled"
    world.check_accounts()


# ---- control tokens that show ------------------------------------------------------------------------------------------


def texts(shown: tuple[str, ...]) -> list[str]:
    world = World(FakeDecoder(n_slots=4, n_ctx_slot=256))
    requests = [world.submit(f"prompt {n}", seed=n, max_tokens=200, shown_tokens=shown) for n in range(24)]
    world.drain()
    return [world.text(request) for request in requests]


def test_control_tokens_show_where_that_is_asked_for() -> None:
    """<257> is one that the fake draws now and then, <256> ends the text, and a byte's name names no control token."""
    hidden, shown = texts(()), texts(("<257>", "<256>", "<never heard of>", "z"))
    assert any("<257>" in text for text in shown) and not any("<257>" in text for text in hidden)
    assert [ascii_of(text.replace("<257>", "")) for text in shown] == [ascii_of(text) for text in hidden]
    assert not any("<256>" in text for text in shown)
    assert texts(("<never heard of>",)) == hidden


def ascii_of(text: str) -> str:
    """Without characters that a control token in their middle cuts in two."""
    return "".join(character for character in text if character.isascii())


def test_showing_is_each_requests_own() -> None:
    world = World(FakeDecoder(n_slots=4, n_ctx_slot=256))
    seeds = [seed for seed in range(40) if "<257>" in texts_of(seed)][:2]
    pairs = [
        (world.submit("p", seed=seed, max_tokens=100, shown_tokens=("<257>",)), world.submit("p", seed=seed, max_tokens=100))
        for seed in seeds
    ]
    world.drain()
    for shown, hidden in pairs:
        assert "<257>" in world.text(shown)
        world.check_answer(hidden)


def texts_of(seed: int) -> str:
    world = World(FakeDecoder(n_slots=1, n_ctx_slot=256))
    request = world.submit("p", seed=seed, max_tokens=100, shown_tokens=("<257>",))
    world.drain()
    return world.text(request)


def test_a_stop_string_may_be_a_control_token_that_shows() -> None:
    seed = next(seed for seed in range(40) if "<257>" in texts_of(seed))
    world = World(FakeDecoder(n_slots=1, n_ctx_slot=256))
    request = world.submit("p", seed=seed, max_tokens=100, shown_tokens=("<257>",), stop=("<257>",))
    world.drain()
    assert world.finished(request).stopping_word == "<257>"
    assert world.text(request) == texts_of(seed).partition("<257>")[0]
    assert solo_answer([*b"p"], world.requests[request][1], 256)[1] != "word"
