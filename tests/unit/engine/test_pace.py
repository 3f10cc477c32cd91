"""Costs are learned on noisy machines of any kind: steps stay under the target, little is wasted, nonsense does no harm."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine.pace import StepCost

LEAST, MOST = 8, 512


@dataclass
class Machine:
    """Seconds for a step, a decode row, a graph for a chunk and a prompt token; now and then something else gets the processor."""

    step: float = 0.0075
    row: float = 0.0052
    graph: float = 0.007
    token: float = 0.0056
    noise: float = 0.06
    hiccups: float = 0.01
    slowness: float = 1.0
    random: random.Random = field(default_factory=lambda: random.Random(7))

    def ideal(self, n_decode: int, n_prefill: int) -> float:
        return self.slowness * (self.step + n_decode * self.row + n_prefill * self.token + (self.graph if n_decode and n_prefill else 0))

    def run(self, n_decode: int, n_prefill: int) -> float:
        noise = math.exp(self.random.gauss(0, self.noise))
        return self.ideal(n_decode, n_prefill) * noise * (4 if self.random.random() < self.hiccups else 1)

    def most_tokens(self, n_decode: int, target: float) -> int:
        """What a clairvoyant would add to `n_decode` rows."""
        limit = max(target, 1.5 * self.ideal(n_decode, 0)) if n_decode else target
        return min(MOST, max(LEAST, int((limit - self.ideal(n_decode, 1)) / (self.slowness * self.token)) + 1))


MACHINES = {
    "two cores": Machine(),
    "many cores": Machine(step=0.008, row=0.0006, graph=0.004, token=0.0004),
    "GPU": Machine(step=0.012, row=0.00002, graph=0.006, token=0.00005, noise=0.03),
    "no fixed costs": Machine(step=0.0, row=0.05, graph=0.0, token=0.05),
}


def budget(cost: StepCost, n_decode: int, target: float) -> int:
    return cost.prefill_budget(n_decode, target, least=LEAST, most=MOST)


def steps(cost: StepCost, machine: Machine, n_decode: int, target: float, n: int) -> list[tuple[int, float]]:
    """Let `n` steps take what they may: (tokens, seconds) of each."""
    made = []
    for _ in range(n):
        tokens = budget(cost, n_decode, target)
        made.append((tokens, machine.run(n_decode, tokens)))
        cost.observe(n_decode, *made[-1])
    return made


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("n_decode", [0, 1, 4, 16])
def test_steps_stay_under_the_target_and_little_is_wasted(name: str, n_decode: int) -> None:
    machine, cost, target = MACHINES[name], StepCost(), 0.15
    for _ in range(20):
        cost.observe(max(n_decode, 1), 0, machine.run(max(n_decode, 1), 0))
    steps(cost, machine, n_decode, target, 30)
    made = steps(cost, machine, n_decode, target, 400)
    ideal = machine.most_tokens(n_decode, target)
    limit = max(target, 1.5 * machine.ideal(n_decode, 0), machine.ideal(n_decode, LEAST) * (1 + 3 * machine.noise))
    assert sum(seconds <= limit for _, seconds in made) >= 0.95 * len(made)
    assert sum(tokens for tokens, _ in made) >= 0.7 * ideal * len(made)


def test_loads_of_every_shape_are_told_apart() -> None:
    machine, cost = Machine(noise=0.1, hiccups=0.02), StepCost()
    shapes = random.Random(3)
    for _ in range(600):
        n_decode = shapes.choice([0, 1, 2, 4, 8, 16])
        n_prefill = shapes.choice([0, 16, 24, 64]) if n_decode else shapes.choice([64, 128, 512])
        cost.observe(n_decode, n_prefill, machine.run(n_decode, n_prefill))
    for shape in [(1, 0), (4, 0), (16, 0), (4, 20), (16, 64), (0, 128), (0, 512)]:
        assert cost.seconds(*shape) == pytest.approx(machine.ideal(*shape), rel=0.25)


def test_a_change_of_speed_is_followed_within_twenty_steps_also_where_only_decodes_showed_it() -> None:
    machine, cost = Machine(), StepCost()
    for n_decode in (1, 4, 2, 8, 4):
        steps(cost, machine, n_decode, 0.3, 20)
        for _ in range(20):
            cost.observe(n_decode, 0, machine.run(n_decode, 0))
    for slowness in (5.0, 1.0, 3.0, 1.0):
        machine.slowness = slowness
        for _ in range(20):
            cost.observe(4, 0, machine.run(4, 0))
        assert cost.seconds(4, 0) == pytest.approx(machine.ideal(4, 0), rel=0.25)
        assert cost.seconds(4, 30) == pytest.approx(machine.ideal(4, 30), rel=0.4)
        steps(cost, machine, 4, 0.3, 20)
        assert cost.seconds(4, 30) == pytest.approx(machine.ideal(4, 30), rel=0.25)


def test_what_a_prompt_costs_is_not_forgotten_while_there_is_none() -> None:
    machine, cost = Machine(), StepCost()
    steps(cost, machine, 4, 0.15, 100)
    for _ in range(5000):
        cost.observe(4, 0, machine.run(4, 0))
    assert cost.seconds(4, 16) == pytest.approx(machine.ideal(4, 16), rel=0.25)


def test_one_wild_step_changes_little() -> None:
    machine, cost = Machine(hiccups=0), StepCost()
    steps(cost, machine, 4, 0.15, 100)
    before = budget(cost, 4, 0.15)
    cost.observe(4, before, 60.0)
    assert budget(cost, 4, 0.15) >= 0.7 * before


def test_the_start_is_cautious_and_the_bounds_hold() -> None:
    cost = StepCost()
    assert cost.seconds(1, 0) is None
    assert cost.prefill_budget(3, 0.15, least=8, most=512) == 32
    assert cost.prefill_budget(3, 0.15, least=8, most=20) == 20
    assert cost.prefill_budget(3, 0.15, least=64, most=512) == 64
    cost.observe(1, 0, 1e-5)
    assert cost.prefill_budget(1, 10.0, least=8, most=512) <= 64  # no prompt was timed yet
    cost.observe(1, 64, 50.0)
    assert cost.prefill_budget(1, 0.15, least=8, most=512) == 8


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(-2, 3000) | st.sampled_from([0, 1, 4]),
            st.integers(-2, 3000) | st.just(0),
            st.floats() | st.floats(1e-4, 10) | st.sampled_from([0.01, 1e308, 5e-324]),
        ),
        max_size=60,
    ),
    st.integers(1, 64),
    st.floats(0, 100),
)
def test_whatever_is_observed_the_answers_stay_sane_and_the_truth_is_found_again(
    observed: list[tuple[int, int, float]], n_decode: int, target: float
) -> None:
    machine, cost = Machine(noise=0.02, hiccups=0), StepCost()
    for observation in observed:
        cost.observe(*observation)
        found = cost.seconds(n_decode, 20)
        assert found is None or 0 < found < 1e9
        assert 8 <= cost.prefill_budget(n_decode, target, least=8, most=512) <= 512
    for _ in range(60):
        cost.observe(n_decode, 20, machine.run(n_decode, 20))
    assert cost.seconds(n_decode, 20) == pytest.approx(machine.ideal(n_decode, 20), rel=0.3)
    fewer = [cost.seconds(n_decode, tokens) or 0 for tokens in (0, 1, 20, 300)]
    assert fewer == sorted(fewer)
