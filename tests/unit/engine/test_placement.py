"""A request goes where it recomputes least, destroys least and keeps the running slots neighbours."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.engine.placement import Slot, choose_slot, common_prefix
from server.engine.request import Sequence
from server.protocol import GenerationRequest


def slots(*contents: list[int], running: tuple[int, ...] = ()) -> list[Slot]:
    out = [Slot(index, tokens=tokens) for index, tokens in enumerate(contents)]
    for index in running:
        out[index].sequence = Sequence(index, GenerationRequest(prompt=""), index, [1], 1, 0, 0.0)
    return out


def chosen(slots: list[Slot], prompt: list[int], **options: int) -> tuple[int, int]:
    slot, kept = choose_slot(slots, prompt, reuse=True, admissions=options.get("admissions", 0))
    return slot.id, kept


PROMPT = list(range(100))


@given(st.lists(st.integers(0, 2), max_size=1600), st.integers(0, 1600), st.integers(0, 2))
def test_common_prefix(tokens: list[int], cut: int, other: int) -> None:
    changed = tokens[:cut] + [other] + tokens[cut + 1 :]
    n = 0
    while n < min(len(tokens), len(changed)) and tokens[n] == changed[n]:
        n += 1
    assert common_prefix(tokens, changed) == n


def test_empty_slots_fill_from_the_lowest() -> None:
    assert chosen(slots([], [], []), PROMPT) == (0, 0)
    assert chosen(slots([], [], [], running=(0,)), PROMPT) == (1, 0)


def test_the_longest_common_prefix_is_reused_but_never_the_whole_prompt() -> None:
    assert chosen(slots([], PROMPT[:50], PROMPT[:80]), PROMPT) == (2, 80)
    assert chosen(slots([], PROMPT + [7, 8]), PROMPT) == (1, 99)


def test_a_short_common_beginning_does_not_destroy_a_conversation() -> None:
    """Every chat begins with the same template; an empty slot costs 30 tokens, the other one a conversation."""
    conversation = PROMPT[:30] + [5000] * 1000
    assert chosen(slots(conversation, []), PROMPT) == (1, 0)


def test_a_hole_between_running_slots_is_filled_before_a_far_slot() -> None:
    assert chosen(slots([], [], [], [], running=(0, 2)), PROMPT) == (1, 0)
    assert chosen(slots([], [9] * 40, [], running=(0,)), PROMPT) == (1, 0)


def test_a_long_idle_conversation_yields_before_a_fresh_one() -> None:
    two = slots([1] * 400, [2] * 300)
    two[0].last_used, two[1].last_used = 2, 10
    assert chosen(two, [3] * 50, admissions=10) == (0, 0)


def test_without_reuse_no_prefix_counts() -> None:
    slot, kept = choose_slot(slots(PROMPT, []), PROMPT, reuse=False, admissions=0)
    assert (slot.id, kept) == (1, 0)
