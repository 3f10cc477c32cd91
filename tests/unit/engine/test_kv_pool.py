"""In the pool shared cells count once, idle prefixes go in the right order, and never for nothing."""

from __future__ import annotations

import pytest

from tests.unit.engine.test_kv_stores import POOL, A, B, C, World, refuse

D = [4] * 100


def pool(**options: int) -> World:
    return World(POOL, **{"n_slots": 12, "n_running": 4, "n_cells": 500, "ram": 0, **options})


def test_sharing_takes_no_cells() -> None:
    world = pool()
    for i in range(4):
        world.start([*A, *B, *C, i])
    assert world.kv.figures().n_used == world.decoder.n_used == 304 and world.kv.room() == 500 - 304


def test_a_useful_prefix_is_never_destroyed_while_ids_are_empty() -> None:
    world = pool()
    world.run(A + B)
    slot, n_cached = world.start(A + C)
    assert (slot, n_cached) == (1, 100)
    assert world.kv.longest("", A + B) == 199


def test_with_all_ids_in_use_a_prefix_that_others_hold_too_goes_first() -> None:
    world = pool(n_slots=3, n_cells=1000)
    world.run(A + B)
    world.run(C)
    slot, _ = world.start(A + B + D)
    assert slot == 0, "continued in place"
    world.run(A + [9])
    world.kv.release(slot, "", A + B + D, keep=True)
    assert world.start([8] * 50)[0] == 2 and world.kv.longest("", C) == 99 and world.kv.longest("", A + B + D) == 299


def test_room_counts_what_idle_prefixes_would_give() -> None:
    world = pool()
    world.run(A + B)
    world.start(A + C)
    assert world.kv.figures().n_used == 300 and world.kv.room() == 300
    assert world.kv.make_room(300) and world.kv.figures().n_used == 200


def test_the_least_recently_used_goes_first_and_no_more_than_needed() -> None:
    world = pool()
    for tokens in (A, B, C, D):
        world.run(tokens)
    world.run(A + [9])
    assert world.kv.make_room(199)
    assert [world.kv.longest("", tokens) for tokens in (A, B, C, D)] == [99, 0, 99, 99]


def test_a_common_beginning_outlives_the_ends() -> None:
    world = pool()
    for tail in (B, C, D):
        world.run(A + tail)
    assert world.kv.figures().n_used == 400
    assert world.kv.make_room(300)
    assert world.kv.longest("", A + [9]) == 100 and world.kv.figures().n_used == 200


def test_nothing_goes_if_it_would_not_be_enough() -> None:
    world = pool()
    world.start(A)
    world.run(B)
    assert not world.kv.make_room(401)
    assert world.kv.longest("", B) == 99
    assert world.kv.make_room(400) and world.kv.figures().n_used == 100


@pytest.mark.parametrize("ram", [0, 100_000])
def test_prefixes_that_make_room_go_to_host_memory_if_there_is_some(ram: int) -> None:
    world = pool(ram=ram)
    world.run(A + B)
    assert world.kv.make_room(500) and world.kv.figures().n_used == 0
    assert world.start(A + B + C)[1] == (200 if ram else 0)


def test_a_saved_state_for_which_there_is_no_room_is_not_restored() -> None:
    world = pool(ram=100_000)
    world.run(A + B)
    world.start(C + D + C + D)
    assert world.kv.longest("", A + B) == 199
    found = world.kv.attach("", A + B, reuse=True)
    assert found is not None and found.n_cached == 0
    assert world.kv.figures().n_used == world.decoder.n_used == 400
    assert world.kv.longest("", A + B) == 199, "it may be wanted when there is room"


def test_where_there_is_no_room_for_the_best_the_second_best_is_taken() -> None:
    world = pool(ram=100_000)
    world.run(A + B)
    assert world.kv.make_room(500)
    world.start(A[:50] + C + D)
    world.start(A[:50] + D + C)
    assert world.kv.longest("", A + B + C) == 200 and world.kv.room() < 200
    found = world.kv.attach("", A + B + C, reuse=True)
    assert found is not None and found.n_cached == 50


def test_what_had_to_go_for_a_state_that_could_not_be_restored_is_not_copied() -> None:
    world = pool(n_cells=310, ram=100_000)
    world.run(A + B)
    assert world.kv.make_room(310)
    world.start(C)
    assert world.run(A + [9])[1] == 100
    world.decoder.restore = refuse  # type: ignore[method-assign]
    found = world.kv.attach("", A + B + D[:9], reuse=True)
    assert found is not None and found.n_cached == 0 and world.kv.figures().n_used == world.decoder.n_used == 100


def test_a_way_back_that_takes_no_cells_is_not_given_up_for_none() -> None:
    world = pool(can_rewind=False)
    first, _ = world.start(A)
    second, _ = world.start(A + B)
    world.kv.release(first, "", A, keep=True)
    world.run(C)
    assert world.kv.figures().n_used == 300 and world.kv.make_room(300)
    assert world.kv.longest("", A + D) == 100 and world.kv.longest("", C + D) == 0


def test_more_ids_than_requests_hold_prefixes() -> None:
    world = pool(n_slots=6, n_running=2, n_cells=1000)
    for tokens in (A, B, C, D):
        world.run(tokens)
    assert [world.kv.longest("", tokens) for tokens in (A, B, C, D)] == [99] * 4
    world.start([8])
    world.start([9])
    assert world.kv.attach("", A, reuse=True) is None
    assert world.kv.hole() is None and not world.kv.move(0, 5)
