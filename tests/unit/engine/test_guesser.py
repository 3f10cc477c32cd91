"""Guesses are for streams alone, never for more than a request may still say, and a draft model's own time counts."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from server.engine.guesser import Guesser
from server.engine.pace import StepCost
from server.engine.request import Sequence
from server.protocol import GenerationRequest


def stream(request_id: int = 0, *, n_prompt: int = 30, n_said: int = 6, paused: bool = False, **options: Any) -> Sequence:
    """It says its prompt again."""
    tokens = [100 + i % n_prompt for i in range(n_prompt + n_said)]
    request = GenerationRequest(prompt="", **options)
    return Sequence(
        request_id, request, request_id, tokens, n_prompt, 0, submitted_at=0.0, n_computed=len(tokens) - 1, paused=paused
    )  # fmt: skip


def known_cost() -> StepCost:
    """A step is 10 ms and 1 ms a row."""
    cost = StepCost()
    for _ in range(30):
        for n_rows in (1, 2, 5, 9):
            cost.observe(n_rows, 0, 0.010 + 0.001 * n_rows)
    return cost


class Draft:
    """Right or wrong, `seconds` for each token; its clock is the test's."""

    def __init__(self, seconds: float) -> None:
        self.now = 0.0
        self.n_calls = 0
        self._seconds = seconds

    def propose(self, wanted: Seq[tuple[int, Seq[int], int]]) -> list[list[int]]:
        self.n_calls += 1
        self.now += self._seconds * sum(n for _, _, n in wanted)
        return [[7] * n for _, _, n in wanted]


def test_a_stream_that_repeats_its_prompt_gets_what_follows_there() -> None:
    sequence = stream()
    Guesser(8, known_cost(), 1000).guess([sequence])
    assert 1 <= len(sequence.drafts) <= 8 and sequence.drafts == [106 + i for i in range(len(sequence.drafts))]


def test_prompts_paused_streams_and_who_wants_none_get_none() -> None:
    prefilling = stream(1)
    prefilling.n_computed = 3
    for sequence in (prefilling, stream(2, paused=True), stream(3, n_draft_max=0)):
        Guesser(8, known_cost(), 1000).guess([sequence])
        assert sequence.drafts == []


def test_the_last_token_is_drawn_not_guessed() -> None:
    for n_more in (1, 2, 3):
        for guesser, sequence in (
            (Guesser(8, known_cost(), 1000), stream(max_tokens=6 + n_more)),
            (Guesser(8, known_cost(), 36 + n_more), stream()),
        ):
            guesser.guess([sequence])
            assert len(sequence.drafts) == n_more - 1
    few = stream(n_draft_max=1)
    Guesser(8, known_cost(), 1000).guess([few])
    assert len(few.drafts) == 1


def test_a_draft_model_that_takes_longer_than_it_saves_is_asked_no_more() -> None:
    calls = {}
    for seconds in (0.0001, 0.05):
        draft = Draft(seconds)
        guesser = Guesser(8, known_cost(), 10_000, draft, clock=lambda draft=draft: draft.now)  # type: ignore[misc]
        sequence = stream()
        for _ in range(100):
            guesser.guess([sequence])
            guesser.verified(sequence, len(sequence.drafts), len(sequence.drafts))
        calls[seconds] = draft.n_calls
    assert calls[0.0001] == 100 and calls[0.05] == 1


def test_who_is_over_is_forgotten() -> None:
    guesser = Guesser(8, known_cost(), 1000)
    for request_id in range(20):
        sequence = stream(request_id)
        guesser.guess([sequence])
        guesser.verified(sequence, 8, 8)
        guesser.forget(request_id)
    guesser.verified(sequence, 8, 8)
    assert not guesser._lookups and not guesser._controls
