"""A step takes everybody who lacks one token first, then prompt chunks in the rest of the budget; it never exceeds a limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.engine.plan import Limits, plan_step
from server.engine.request import Sequence
from server.protocol import GenerationRequest


def sequence(slot: int, *, n_prompt: int, n_computed: int, n_predicted: int = 0, max_tokens: int = -1, last_step: int = 0) -> Sequence:
    request = GenerationRequest(prompt="", max_tokens=max_tokens)
    tokens = list(range(n_prompt + n_predicted))
    return Sequence(slot, request, slot, tokens, n_prompt, 0, 0.0, n_computed, last_step=last_step)


def decoding(slot: int, last_step: int = 0) -> Sequence:
    return sequence(slot, n_prompt=5, n_predicted=3, n_computed=7, last_step=last_step)


def prefilling(slot: int, missing: int, max_tokens: int = -1) -> Sequence:
    return sequence(slot, n_prompt=missing + 2, n_computed=2, max_tokens=max_tokens)


LIMITS = Limits(n_slots=16, n_ctx_slot=4096, n_batch=2048, n_ubatch=512, max_output_rows=64, prefill_chunk=64, max_prefills=4)


def test_alone_a_prompt_gets_a_full_micro_batch() -> None:
    plan = plan_step([prefilling(0, 2000)], LIMITS)
    assert len(plan.rows) == 512 and plan.shares[0].row == -1 and not any(row.logits for row in plan.rows)


def test_beside_a_stream_a_prompt_gets_a_chunk_and_the_stream_comes_along() -> None:
    plan = plan_step([prefilling(0, 2000), decoding(1)], LIMITS)
    assert [(share.sequence.slot, share.n_tokens) for share in plan.shares] == [(0, 64), (1, 1)]
    assert [row.logits for row in plan.rows] == [False] * 64 + [True]
    assert plan.shares[1].row == 64


def test_the_chunk_is_shared_in_order_of_admission() -> None:
    plan = plan_step([decoding(9), prefilling(3, 40), prefilling(1, 40), prefilling(2, 40)], LIMITS)
    assert {share.sequence.slot: share.n_tokens for share in plan.shares} == {9: 1, 3: 40, 1: 24}


def test_not_more_than_so_many_prompts_at_once() -> None:
    plan = plan_step([prefilling(slot, 10) for slot in range(8)], LIMITS)
    assert [share.sequence.slot for share in plan.shares] == [0, 1, 2, 3]


def test_the_last_row_of_a_prompt_is_sampled_unless_nothing_is_wanted() -> None:
    assert [row.logits for row in plan_step([prefilling(0, 3)], LIMITS).rows] == [False, False, True]
    assert [row.logits for row in plan_step([prefilling(0, 3, max_tokens=0)], LIMITS).rows] == [False, False, False]


def test_with_more_streams_than_output_rows_all_move_in_turn() -> None:
    limits = Limits(n_slots=8, n_ctx_slot=64, n_batch=64, n_ubatch=64, max_output_rows=3)
    sequences = [decoding(slot) for slot in range(8)]
    for step in range(1, 50):
        plan = plan_step(sequences, limits)
        assert len(plan.rows) == 3
        for share in plan.shares:
            share.sequence.last_step = step
        assert step < 3 or min(sequence.last_step for sequence in sequences) >= step - 2


def test_streams_never_starve_a_prompt() -> None:
    limits = Limits(n_slots=8, n_ctx_slot=64, n_batch=4, n_ubatch=4, max_output_rows=4)
    plan = plan_step([*(decoding(slot) for slot in range(4)), prefilling(5, 10)], limits)
    assert [share.sequence.slot for share in plan.shares] == [0, 1, 2, 5]


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Sequence], Limits]:
    limits = Limits(
        n_slots=12,
        n_ctx_slot=64,
        n_batch=draw(st.integers(1, 40)),
        n_ubatch=draw(st.integers(1, 40)),
        max_output_rows=draw(st.integers(1, 12)),
        prefill_chunk=draw(st.integers(1, 40)),
        max_prefills=draw(st.integers(1, 4)),
    )
    slots = draw(st.lists(st.integers(0, 11), unique=True, min_size=1))
    sequences = []
    for slot in slots:
        n_prompt, n_predicted = draw(st.integers(1, 30)), draw(st.integers(0, 3))
        n_computed = draw(st.integers(0, n_prompt + n_predicted - 1))
        sequences.append(
            sequence(slot, n_prompt=n_prompt, n_predicted=n_predicted, n_computed=n_computed, max_tokens=draw(st.sampled_from([-1, 0, 9])))
        )
    return sequences, limits


@given(situations())
def test_no_limit_is_ever_exceeded_and_every_row_is_the_next_of_its_slot(situation: tuple[list[Sequence], Limits]) -> None:
    sequences, limits = situation
    plan = plan_step(sequences, limits)
    assert 0 < len(plan.rows) <= limits.n_batch
    assert sum(row.logits for row in plan.rows) <= limits.max_output_rows
    assert [(row.slot, row.pos) for row in plan.rows] == sorted((row.slot, row.pos) for row in plan.rows)
    expected = []
    for share in plan.shares:
        owner, first = share.sequence, share.sequence.n_computed
        expected += [(owner.slot, first + k, owner.tokens[first + k]) for k in range(share.n_tokens)]
        complete = share.n_tokens == owner.n_pending
        assert (share.row >= 0) == (complete and owner.wants_token)
        assert share.row < 0 or (plan.rows[share.row].slot, plan.rows[share.row].logits) == (owner.slot, True)
    assert [(row.slot, row.pos, row.token) for row in plan.rows] == expected
    many = [share for share in plan.shares if share.n_tokens > 1]
    assert len(many) <= limits.max_prefills
    if any(sequence.is_decoding for sequence in sequences):
        assert sum(share.n_tokens for share in many) <= limits.prefill_chunk
