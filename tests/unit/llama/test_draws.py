"""Draws side by side: each sequence gets what it would get alone, in its place, and nobody pays for another's failure."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.ports import Draw
from server.llama import draws as module
from server.llama.backends import Device
from server.llama.draws import WORTH_A_THREAD, DrawPool, draw_one, side_by_side
from server.protocol import TokenLogprob

N_CPUS = 4


class Scripted:
    """Says its tokens one after the other, and remembers the rows and the thread; `meet`: waits there until others have come too;
    `ends`: after the last token its constraint has ended."""

    def __init__(
        self, tokens: Sequence[int], *, fail_at: int | None = None, meet: threading.Barrier | None = None, ends: bool = False
    ) -> None:
        self.tokens, self.fail_at, self.meet, self.ends = list(tokens), fail_at, meet, ends
        self.rows: list[int] = []
        self.threads: set[int] = set()

    @property
    def has_ended(self) -> bool:
        return self.ends and len(self.rows) == len(self.tokens)

    def sample(self, row: int, n_logprobs: int | None) -> tuple[int, TokenLogprob | None]:
        if self.meet is not None:
            self.meet.wait(timeout=20)
        self.threads.add(threading.get_ident())
        if len(self.rows) == self.fail_at:
            raise ValueError(f"row {row} cannot be drawn from")
        self.rows.append(row)
        token = self.tokens[len(self.rows) - 1]
        return token, None if n_logprobs is None else TokenLogprob(token, b"", -float(n_logprobs), ())

    def accept_prompt(self, tokens: Sequence[int]) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[DrawPool]:
    """On four CPUs, and every row is worth a thread."""
    monkeypatch.setattr(module, "usable_cpus", lambda: N_CPUS)
    made = DrawPool(WORTH_A_THREAD)
    yield made
    made.close()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.lists(st.integers(0, 3), max_size=5))
def test_drafts_are_taken_as_far_as_they_are_right_and_one_token_more(tokens: list[int], drafts: list[int]) -> None:
    drafts = drafts[: len(tokens) - 1]
    sampler = Scripted(tokens)
    drawn = draw_one(Draw(sampler, range(10, 11 + len(drafts)), drafts))
    right = 0
    while right < len(drafts) and drafts[right] == tokens[right]:
        right += 1
    assert [token for token, _ in drawn] == tokens[: right + 1]
    assert sampler.rows == list(range(10, 11 + right)), "rows after a wrong guess are never looked at, so no randomness is spent"


def test_nothing_is_drawn_behind_the_end_of_a_constraint() -> None:
    sampler = Scripted([7, 8], ends=True)
    assert [token for token, _ in draw_one(Draw(sampler, range(4), (7, 8, 9)))] == [7, 8]


@given(st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=4, max_size=4), st.integers(0, 3), st.booleans()), max_size=20))
def test_results_are_in_the_order_of_the_draws_and_failures_stay_alone(cases: list[tuple[list[int], int, bool]]) -> None:
    shared = DrawPool(WORTH_A_THREAD)
    try:
        draws = [Draw(Scripted(tokens, fail_at=0 if bad else None), range(n + 1), (1,) * n, n) for tokens, n, bad in cases]
        results = shared.draw(draws, N_CPUS)
        for result, (tokens, n, bad) in zip(results, cases, strict=True):
            if bad:
                assert isinstance(result, ValueError)
            else:
                assert result == draw_one(Draw(Scripted(tokens), range(n + 1), (1,) * n, n))
    finally:
        shared.close()


def test_a_failure_in_the_middle_of_drafts_is_the_sequences_failure(pool: DrawPool) -> None:
    draws = [Draw(Scripted([1, 1, 1], fail_at=at), range(3), (1, 1)) for at in (None, 1, 2, None)]
    results = pool.draw(draws, N_CPUS)
    assert [isinstance(result, Exception) for result in results] == [False, True, True, False]


@pytest.mark.parametrize(("n_threads", "at_once"), [(1, 1), (2, 2), (3, 3), (9, N_CPUS)])
def test_as_many_draw_at_once_as_there_are_threads_and_cpus(pool: DrawPool, n_threads: int, at_once: int) -> None:
    meet = threading.Barrier(at_once)  # nobody gets past it unless so many are there at the same time
    samplers = [Scripted([7], meet=meet) for _ in range(3 * at_once)]
    pool.draw([Draw(sampler, [0]) for sampler in samplers], n_threads)
    used = set().union(*(sampler.threads for sampler in samplers))
    assert len(used) == at_once and threading.get_ident() in used


def test_little_work_stays_on_the_calling_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "usable_cpus", lambda: N_CPUS)
    small = DrawPool(WORTH_A_THREAD // 16)
    samplers = [Scripted([7]) for _ in range(31)]
    small.draw([Draw(sampler, [0]) for sampler in samplers], N_CPUS)
    assert set().union(*(sampler.threads for sampler in samplers)) == {threading.get_ident()}
    assert threading.active_count() == 1 or not any(thread.name.startswith("draw") for thread in threading.enumerate())
    small.close()


def test_no_draws_give_nothing(pool: DrawPool) -> None:
    assert pool.draw([], N_CPUS) == []


def test_only_devices_that_can_be_waited_for_twice_draw_side_by_side() -> None:
    def device(name: str, kind: str = "gpu") -> Device:
        return Device(name, "", kind, 0, 0, 0)

    assert side_by_side([]) and side_by_side([device("CPU", "cpu"), device("BLAS", "accelerator")])
    assert side_by_side([device("CUDA0"), device("CUDA1")])
    assert not side_by_side([device("CUDA0"), device("Vulkan0")]) and not side_by_side([device("Metal", "igpu")])
