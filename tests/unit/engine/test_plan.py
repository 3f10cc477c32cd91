"""A step takes everybody who lacks one token first, then prompt chunks in the rest of the budget; it never exceeds a limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.engine.plan import Limits, StepPlan, plan_step
from server.engine.request import Sequence
from server.protocol import GenerationRequest


def sequence(slot: int, *, n_prompt: int, n_computed: int, n_predicted: int = 0, max_tokens: int = -1, last_step: int = 0) -> Sequence:
    request = GenerationRequest(prompt="", max_tokens=max_tokens)
    tokens = list(range(n_prompt + n_predicted))
    return Sequence(slot, request, slot, tokens, n_prompt, 0, 0.0, n_computed=n_computed, last_step=last_step)


def decoding(slot: int, last_step: int = 0) -> Sequence:
    return sequence(slot, n_prompt=5, n_predicted=3, n_computed=7, last_step=last_step)


def prefilling(slot: int, missing: int, max_tokens: int = -1) -> Sequence:
    return sequence(slot, n_prompt=missing + 2, n_computed=2, max_tokens=max_tokens)


LIMITS = Limits(n_slots=16, n_ctx_slot=4096, n_batch=2048, n_ubatch=512, max_output_rows=64, max_prefills=4)


def plan_of(sequences: list[Sequence], limits: Limits = LIMITS, chunk: int = 64) -> StepPlan:
    """In order of urgency; `chunk` prompt tokens beside streams, a micro-batch alone."""
    streaming = any(sequence.is_decoding for sequence in sequences)
    ready = [sequence for sequence in sequences if sequence.n_pending == 1]
    behind = [sequence for sequence in sequences if sequence.n_pending > 1]
    return plan_step(ready, behind, limits, lambda n: chunk if streaming else max(1, limits.n_ubatch - n))


def test_alone_a_prompt_gets_a_full_micro_batch() -> None:
    plan = plan_of([prefilling(0, 2000)], LIMITS)
    assert len(plan.rows) == 512 and plan.shares[0].row == -1 and not any(row.logits for row in plan.rows)


def test_beside_a_stream_a_prompt_gets_a_chunk_and_the_stream_comes_along() -> None:
    plan = plan_of([prefilling(0, 2000), decoding(1)], LIMITS)
    assert [(share.sequence.slot, share.n_tokens) for share in plan.shares] == [(0, 64), (1, 1)]
    assert [row.logits for row in plan.rows] == [False] * 64 + [True]
    assert plan.shares[1].row == 64


def test_the_chunk_is_shared_in_order_of_admission() -> None:
    plan = plan_of([decoding(9), prefilling(3, 40), prefilling(1, 40), prefilling(2, 40)], LIMITS)
    assert {share.sequence.slot: share.n_tokens for share in plan.shares} == {9: 1, 3: 40, 1: 24}


def test_not_more_than_so_many_prompts_at_once() -> None:
    plan = plan_of([prefilling(slot, 10) for slot in range(8)], LIMITS)
    assert [share.sequence.slot for share in plan.shares] == [0, 1, 2, 3]


def test_the_last_row_of_a_prompt_is_sampled_unless_nothing_is_wanted() -> None:
    assert [row.logits for row in plan_of([prefilling(0, 3)], LIMITS).rows] == [False, False, True]
    assert [row.logits for row in plan_of([prefilling(0, 3, max_tokens=0)], LIMITS).rows] == [False, False, False]


def test_with_more_streams_than_output_rows_all_move_in_turn() -> None:
    limits = Limits(n_slots=8, n_ctx_slot=64, n_batch=64, n_ubatch=64, max_output_rows=3)
    sequences = [decoding(slot) for slot in range(8)]
    for step in range(1, 50):
        plan = plan_of(sequences, limits)
        assert len(plan.rows) == 3
        for share in plan.shares:
            share.sequence.last_step = step
        assert step < 3 or min(sequence.last_step for sequence in sequences) >= step - 2


def test_streams_never_starve_a_prompt() -> None:
    limits = Limits(n_slots=8, n_ctx_slot=64, n_batch=4, n_ubatch=4, max_output_rows=4)
    plan = plan_of([*(decoding(slot) for slot in range(4)), prefilling(5, 10)], limits)
    assert [share.sequence.slot for share in plan.shares] == [0, 1, 2, 5]


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Sequence], Limits, int]:
    limits = Limits(
        n_slots=12,
        n_ctx_slot=64,
        n_batch=draw(st.integers(1, 40)),
        n_ubatch=draw(st.integers(1, 40)),
        max_output_rows=draw(st.integers(1, 12)),
        max_prefills=draw(st.integers(1, 4)),
    )
    slots = draw(st.lists(st.integers(0, 11), unique=True, min_size=1))
    sequences = []
    for slot in slots:
        n_prompt, n_predicted = draw(st.integers(1, 30)), draw(st.integers(0, 3))
        n_computed = draw(st.integers(0, n_prompt + n_predicted - 1))
        max_tokens = draw(st.sampled_from([-1, 0, 9]))
        made = sequence(slot, n_prompt=n_prompt, n_predicted=n_predicted, n_computed=n_computed, max_tokens=max_tokens)
        if made.is_decoding:
            made.drafts = draw(st.lists(st.integers(100, 200), max_size=5))
        sequences.append(made)
    return sequences, limits, draw(st.integers(1, 40))


@given(situations())
def test_no_limit_is_ever_exceeded_and_every_row_is_the_next_of_its_slot(situation: tuple[list[Sequence], Limits, int]) -> None:
    sequences, limits, chunk = situation
    plan = plan_of(sequences, limits, chunk)
    assert 0 < len(plan.rows) <= limits.n_batch
    assert sum(row.logits for row in plan.rows) <= limits.max_output_rows
    assert [(row.slot, row.pos) for row in plan.rows] == sorted((row.slot, row.pos) for row in plan.rows)
    expected = []
    for share in plan.shares:
        owner, first = share.sequence, share.sequence.n_computed
        expected += [(owner.slot, first + k, owner.tokens[first + k]) for k in range(share.n_tokens)]
        expected += [(owner.slot, len(owner.tokens) + k, guess) for k, guess in enumerate(owner.drafts[: share.n_drafts])]
        assert all(plan.rows[share.row + k].logits for k in range(1 + share.n_drafts) if share.row >= 0)
        complete = share.n_tokens == owner.n_pending
        assert (share.row >= 0) == (complete and owner.wants_token)
        assert share.row < 0 or (plan.rows[share.row].slot, plan.rows[share.row].logits) == (owner.slot, True)
    assert [(row.slot, row.pos, row.token) for row in plan.rows] == expected
    assert plan.n_decode + plan.n_prefill == len(plan.rows)
    many = [share for share in plan.shares if share.n_tokens > 1]
    assert len(many) <= limits.max_prefills
    if any(sequence.is_decoding for sequence in sequences):
        assert sum(share.n_tokens for share in many) <= chunk


def test_guesses_take_what_is_left_and_never_the_place_of_a_stream_or_a_prompt() -> None:
    limits = Limits(n_slots=8, n_ctx_slot=64, n_batch=64, n_ubatch=64, max_output_rows=6)
    first, second, prompt = decoding(0), decoding(1), prefilling(2, 3)
    first.drafts, second.drafts = [7, 7, 7], [8, 8, 8]
    plan = plan_of([first, second, prompt], limits)
    assert [(share.n_tokens, share.n_drafts) for share in plan.shares] == [(1, 3), (1, 0), (3, 0)]
    assert [row.token for row in plan.rows[:4]] == [first.tokens[-1], 7, 7, 7] and sum(row.logits for row in plan.rows) == 6
