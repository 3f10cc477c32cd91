"""On simulated machines the governor leaves a core to a busy neighbour, takes it back, and otherwise keeps still, for 1 % of the time."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.governor import ThreadGovernor

FEW, SOME, MANY = (1, 0), (8, 0), (4, 60)


class Machine:
    """`busy` neighbours want a core each of `n_cores`. A step is partly serial; barriers wait for threads that share a core."""

    def __init__(self, n_cores: int, *, noise: float = 0.1, serial: float = 0.02, collapse: float = 2.5, seed: int = 1) -> None:
        self.n_cores, self.serial, self.collapse, self.noise = n_cores, serial, collapse, noise
        self.busy = 0
        self.random = random.Random(seed)

    def ideal(self, shape: tuple[int, int], n_threads: int) -> float:
        late = self.collapse if n_threads > self.n_cores - self.busy else 1.0
        return 0.004 * (2 + sum(shape)) * late * self._share(n_threads) / self._share(self.n_cores)

    def _share(self, n_threads: int) -> float:
        return self.serial + (1 - self.serial) / n_threads

    def best(self, shape: tuple[int, int]) -> float:
        return min(self.ideal(shape, n) for n in range(1, self.n_cores + 1))

    def seconds(self, shape: tuple[int, int], n_threads: int) -> float:
        hiccup = 5.0 if self.random.random() < 0.01 else 1.0
        return self.ideal(shape, n_threads) * math.exp(self.random.gauss(0, self.noise)) * hiccup


def run(governor: ThreadGovernor, machine: Machine, shape: tuple[int, int], seconds: float) -> tuple[float, list[int]]:
    """Ideal time of the counts chosen ÷ that of the best count, and the counts."""
    spent, best = 0.0, machine.best(shape)
    counts: list[int] = []
    while spent < seconds:
        counts.append(governor.n_threads)
        spent += machine.ideal(shape, governor.n_threads)
        governor.observe(*shape, machine.seconds(shape, governor.n_threads))
    return spent / (best * len(counts)), counts


def settled(counts: list[int]) -> int:
    """What most of the last steps had."""
    last = counts[-100:]
    return max(set(last), key=last.count)


@pytest.mark.parametrize("n_cores", [2, 8, 64])
@pytest.mark.parametrize("shape", [FEW, SOME, MANY])
@pytest.mark.parametrize("noise", [0.02, 0.2])
def test_an_idle_machine_is_used_whole_and_probing_costs_one_percent(n_cores: int, shape: tuple[int, int], noise: float) -> None:
    machine, governor = Machine(n_cores, noise=noise), ThreadGovernor(n_cores)
    run(governor, machine, shape, 30)
    loss, counts = run(governor, machine, shape, 120)
    assert loss <= 1.015
    assert sum(count == n_cores for count in counts) >= 0.97 * len(counts) or loss < 1.005


@pytest.mark.parametrize("n_cores", [2, 8])
@pytest.mark.parametrize("shape", [FEW, SOME])
@pytest.mark.parametrize("noise", [0.02, 0.2])
def test_a_neighbour_gets_its_core_and_it_is_taken_back(n_cores: int, shape: tuple[int, int], noise: float) -> None:
    machine, governor = Machine(n_cores, noise=noise), ThreadGovernor(n_cores)
    run(governor, machine, shape, 60)
    for _ in range(2):
        machine.busy = 1
        run(governor, machine, shape, 30)
        loss, counts = run(governor, machine, shape, 60)
        assert settled(counts) == n_cores - 1
        assert loss <= 1.02
        machine.busy = 0
        run(governor, machine, shape, 60)
        loss, counts = run(governor, machine, shape, 60)
        assert settled(counts) == n_cores
        assert loss <= 1.02


def test_a_change_is_noticed_within_a_second_if_all_was_quiet_before() -> None:
    machine, governor = Machine(2), ThreadGovernor(2)
    run(governor, machine, FEW, 120)
    machine.busy = 1
    _, counts = run(governor, machine, FEW, 3)
    assert counts[-1] == 1


def test_a_neighbour_that_was_there_before_is_found_too() -> None:
    machine, governor = Machine(2), ThreadGovernor(2)
    machine.busy = 1
    _, counts = run(governor, machine, FEW, 5)
    assert settled(counts) == 1


def test_half_a_machine_full_of_neighbours() -> None:
    machine, governor = Machine(64, collapse=4.0), ThreadGovernor(64)
    machine.busy = 40
    run(governor, machine, SOME, 120)
    loss, _ = run(governor, machine, SOME, 100)
    assert loss <= 1.25
    machine.busy = 0
    run(governor, machine, SOME, 60)
    loss, _ = run(governor, machine, SOME, 100)
    assert loss <= 1.02


@pytest.mark.parametrize("n_cores", [2, 8])
@pytest.mark.parametrize("seed", range(3))
def test_counts_that_make_no_difference_do_not_flap(n_cores: int, seed: int) -> None:
    machine = Machine(n_cores, noise=0.2, serial=1.0, seed=seed)
    governor = ThreadGovernor(n_cores)
    _, counts = run(governor, machine, FEW, 200)
    # A switch that lasts: probing alone changes the count for single steps.
    blocks = [settled(counts[i : i + 100]) for i in range(0, len(counts), 100)]
    assert sum(a != b for a, b in zip(blocks, blocks[1:], strict=False)) <= len(blocks) // 20


def test_each_class_of_steps_has_its_own_count() -> None:
    """A neighbour that hurts small steps only, as barriers do: prompts go on with all threads."""
    machine, governor = Machine(2), ThreadGovernor(2)
    machine.busy = 1
    sizes = {FEW: 2.5, MANY: 1.2}
    counts: dict[tuple[int, int], list[int]] = {FEW: [], MANY: []}
    for _ in range(40):
        for shape, n in ((FEW, 60), (MANY, 30)):
            machine.collapse = sizes[shape]
            for _ in range(n):
                counts[shape].append(governor.n_threads)
                governor.observe(*shape, machine.seconds(shape, governor.n_threads))
    assert settled(counts[FEW]) == 1
    assert settled(counts[MANY]) == 2


def test_growing_steps_are_no_neighbours() -> None:
    """Prompts of all sizes beside streams, and longer contexts all the time."""
    machine, governor, dice = Machine(2), ThreadGovernor(2), random.Random(4)
    counts = []
    for n in range(4000):
        shape = (4, dice.choice([0, 0, 8, 20]))
        counts.append(governor.n_threads)
        governor.observe(*shape, machine.seconds(shape, governor.n_threads) * (1 + n / 2000))
    assert counts.count(2) >= 0.97 * len(counts)


def test_one_thread_and_a_fixed_count_stay() -> None:
    for governor, count in ((ThreadGovernor(1), 1), (ThreadGovernor(4, fixed=True), 4)):
        machine = Machine(4)
        for n in range(500):
            machine.busy = 3 if n > 200 else 0
            assert governor.observe(*FEW, machine.seconds(FEW, governor.n_threads)) == governor.n_threads == count


@settings(deadline=None)
@given(
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(-1, 40), st.integers(-1, 600), st.floats() | st.sampled_from([1e-9, 0.01, 1e300])), max_size=200),
)
def test_whatever_is_observed_the_count_stays_between_one_and_most(most: int, observed: list[tuple[int, int, float]]) -> None:
    governor = ThreadGovernor(most)
    for observation in observed * 3:
        assert 1 <= governor.observe(*observation) == governor.n_threads <= most
