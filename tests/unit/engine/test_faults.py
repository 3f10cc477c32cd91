"""A decode that fails takes down the one request that cannot be computed, never another's, and the cells are believed afterwards."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.engine.ports import DecodeFault, Row
from server.engine.stepper import FAULTS_ALONE, EngineBroken
from server.protocol import Failed
from tests.unit.engine.fakes import POISON, FakeDecoder, fails_with, poisoned_by
from tests.unit.engine.harness import World


@pytest.mark.parametrize("restored", [True, False])
@pytest.mark.parametrize("place", [0, 5, 30])
def test_a_request_that_cannot_be_computed_fails_alone(restored: bool, place: int) -> None:
    world = World()
    world.decoder.fault = poisoned_by(POISON, restored=restored)
    bad_prompt = [*b"x" * place, POISON, *b"tail"]
    good = [world.submit("one", max_tokens=9, seed=2), world.submit("two " * 6, max_tokens=9, seed=3)]
    bad = world.submit(bad_prompt, max_tokens=9)
    good.append(world.submit("three", max_tokens=9, seed=4))
    world.drain()
    end = world.terminal(bad)
    assert isinstance(end, Failed) and end.kind == "internal" and "-3" in end.message
    for request in good:
        world.check_answer(request)
    world.check_accounts()


@given(st.data(), st.booleans())
def test_passing_faults_cost_nobody_anything(data: st.DataObject, can_rewind: bool) -> None:
    """Faults leave time to try everybody alone in between, so nobody fails; every text is the solo text."""
    world = World(FakeDecoder(n_slots=4, can_rewind=can_rewind))
    quiet = [0]

    def sometimes(rows: Seq[Row]) -> tuple[DecodeFault, int] | None:
        quiet[0] += 1
        if quiet[0] <= 4 or not data.draw(st.booleans()):
            return None
        quiet[0] = 0
        done = data.draw(st.integers(0, len(rows)))
        return DecodeFault(1 if done else -2, "now and then", restored=not done), done

    requests = [world.submit("p" * (3 + 7 * i), max_tokens=4 + i, seed=i) for i in range(6)]
    world.decoder.fault = sometimes
    for _ in range(20):
        world.step()
        world.check_accounts()
    world.decoder.fault = None
    world.drain()
    for request in requests:
        world.check_answer(request)
    world.check_accounts()


def test_suspects_may_be_cancelled_or_paused_meanwhile() -> None:
    world = World()
    requests = [world.submit("x", max_tokens=20, seed=4) for _ in range(4)]
    world.step(3)
    world.decoder.fault = fails_with(-3, restored=False, done=2)
    world.step()
    world.decoder.fault = None
    world.cancel(requests[0])
    world.pause(requests[1])
    world.step(3)
    world.resume(requests[1])
    world.drain()
    assert world.finished(requests[0]).reason == "cancelled"
    for request in requests[1:]:
        world.check_answer(request)
    world.check_accounts()


def test_when_nothing_can_be_computed_at_all_the_loop_gives_up_instead_of_failing_for_ever() -> None:
    world = World(max_queue=100)
    world.decoder.fault = fails_with(-3, restored=False)
    requests = [world.submit("x", max_tokens=3) for _ in range(50)]
    with pytest.raises(EngineBroken):
        world.drain()
    world.engine.fail_all("the process is ending")
    assert all(isinstance(world.terminal(request), Failed) for request in requests)
    assert sum("evaluated" in end.message for r in requests if isinstance(end := world.terminal(r), Failed)) == FAULTS_ALONE


def test_many_bad_requests_in_a_row_do_not_end_the_process() -> None:
    world = World()
    world.decoder.fault = poisoned_by(POISON)
    bad = [world.submit([*b"x", POISON], max_tokens=3) for _ in range(20)]
    good = world.submit("x", max_tokens=3)
    world.drain()
    assert all(isinstance(world.terminal(request), Failed) for request in bad)
    world.check_answer(good)
    world.check_accounts()
