"""Nothing a reader does loses text, and what waits for a slow one is bounded; delays between restarts double up to a cap."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.errors import CapsuleError
from server.protocol import Delta, Event, Failed, Prefilled, Queued, TokenLogprob
from server.runners.failures import Backoff, error_of
from server.runners.flow import EventBuffer, FlowLimits

deltas = st.builds(
    Delta,
    id=st.just(1),
    text=st.text(max_size=20),
    tokens=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    logprobs=st.lists(st.builds(TokenLogprob, token=st.integers(0, 9), piece=st.binary(max_size=2), logprob=st.just(-1.0)), max_size=2).map(
        tuple
    ),
)
others = st.builds(Prefilled, id=st.just(1), processed=st.integers(0, 9), total=st.just(9), cached=st.just(0), time_ms=st.just(1.0))


def content(events: list[Event]) -> tuple[str, list[int], list[TokenLogprob]]:
    parts = [e for e in events if isinstance(e, Delta)]
    return "".join(d.text for d in parts), [t for d in parts for t in d.tokens], [lp for d in parts for lp in d.logprobs]


@given(st.lists(st.one_of(deltas, others, st.none()), max_size=120), st.integers(0, 8))
def test_any_interleaving_of_push_and_pop_keeps_text_tokens_and_logprobs(script: list[Event | None], coalesce: int) -> None:
    buffer = EventBuffer(FlowLimits(coalesce_events=coalesce))
    taken: list[Event] = []
    for item in script:
        if item is not None:
            buffer.push(item)
        elif len(buffer):
            taken.append(buffer.pop())
    while len(buffer):
        taken.append(buffer.pop())
    assert content(taken) == content([e for e in script if e is not None])
    assert (buffer.n_bytes, buffer.is_low, buffer.is_high) == (0, True, False)


def test_a_crowded_buffer_hands_out_one_joined_delta_and_keeps_the_order() -> None:
    buffer = EventBuffer(FlowLimits(coalesce_events=3))
    for i in range(5):
        buffer.push(Delta(1, str(i)))
    buffer.push(Prefilled(1, 1, 1, 0, 0.0))
    buffer.push(Delta(1, "z"))
    first, second, third = buffer.pop(), buffer.pop(), buffer.pop()
    assert isinstance(first, Delta) and first.text == "01234"
    assert isinstance(second, Prefilled)
    assert isinstance(third, Delta) and third.text == "z"


def test_an_uncrowded_buffer_keeps_deltas_apart() -> None:
    buffer = EventBuffer(FlowLimits(coalesce_events=3))
    for text in "ab":
        buffer.push(Delta(1, text))
    assert [e.text for e in (buffer.pop(), buffer.pop()) if isinstance(e, Delta)] == ["a", "b"]


def test_only_the_newest_position_and_progress_wait() -> None:
    buffer = EventBuffer(FlowLimits())
    for i in range(10_000):
        buffer.push(Queued(1, 10_000 - i, 5))
    for i in range(10_000):
        buffer.push(Prefilled(1, i, 10_000, 0, 0.0))
    assert len(buffer) == 2
    assert buffer.pop() == Queued(1, 1, 5)


def test_many_small_or_few_large_deltas_are_high_until_a_quarter_is_left() -> None:
    for limits, text in ((FlowLimits(pause_deltas=8), ""), (FlowLimits(pause_bytes=1000), "x" * 100)):
        buffer = EventBuffer(limits)
        n = 0
        while not buffer.is_high:
            buffer.push(Delta(1, text))
            n += 1
        while not buffer.is_low:
            assert len(buffer) > n // 4 - 1
            buffer._take()
        assert len(buffer) <= n // 4 + 1


def test_logprobs_count_as_memory() -> None:
    buffer = EventBuffer(FlowLimits())
    buffer.push(Delta(1, "", (1,), (TokenLogprob(1, b"a", -1.0, ((1, b"a", -1.0),) * 1000),)))
    assert buffer.is_high


def test_back_off_starts_again_after_healthy_time() -> None:
    backoff = Backoff()
    delays = [backoff.after_death(healthy) for healthy in (0, 9.9, 3600, 1, 10)]
    assert [round(d, 6) for d in delays] == [0.1, 0.2, 0.1, 0.2, 0.1]
    assert backoff.failures == 1
    assert [backoff.after_death(0) for _ in range(5000)][-1] == 30.0


def test_an_error_is_made_anew_each_time() -> None:
    failed = Failed(1, "internal", "no")
    assert error_of(failed) is not error_of(failed)
    assert type(error_of(failed)) is CapsuleError
