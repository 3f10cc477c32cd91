"""Streams keep the taken slots neighbours, and idle content gives way to that without being lost."""

from __future__ import annotations

from tests.unit.engine.test_kv_stores import STREAMS, A, B, C, World

D, E = [4] * 100, [5] * 100


def contents(world: World) -> list[list[int]]:
    return world.decoder.cells


def test_slots_are_taken_from_the_lowest_and_beside_each_other() -> None:
    world = World(STREAMS, n_slots=4)
    assert [world.start(tokens)[0] for tokens in (A, B, C)] == [0, 1, 2]


def test_a_prefix_in_a_distant_slot_is_copied_beside_the_running_ones() -> None:
    world = World(STREAMS, n_slots=8)
    slots = [world.start(tokens)[0] for tokens in (A, B, C, D, E)]
    for slot, tokens in zip(slots[1:], (B, C, D, E), strict=True):
        world.kv.release(slot, "", tokens, keep=True)
    slot, n_cached = world.start(E + A)
    assert (slot, n_cached) == (1, 100), "a copy costs less than a graph in every step"
    assert contents(world)[4] == E and world.kv.figures().n_saved == 1 and world.kv.longest("", B) == 99


def test_own_content_is_used_in_place_where_that_costs_nothing() -> None:
    world = World(STREAMS, n_slots=4)
    for tokens in (A, B, C):
        world.start(tokens)
    for slot, tokens in enumerate((A, B, C)):
        world.kv.release(slot, "", tokens, keep=True)
    assert world.start(C + A) == (2, 100)
    assert world.start(B + A) == (1, 100)
    assert world.decoder.copies == []


def test_a_conversation_is_not_cut_down_for_a_common_beginning_while_a_slot_is_empty() -> None:
    world = World(STREAMS, n_slots=2)
    world.run(A[:20] + B + C)
    assert world.start(A[:20] + D) == (1, 20)
    assert world.kv.longest("", A[:20] + B + C) == 219


def test_one_common_token_is_not_worth_a_copy() -> None:
    world = World(STREAMS, n_slots=2)
    world.start([9, *A])
    assert world.start([9, *B]) == (1, 0)


def test_a_large_state_is_not_restored_for_few_tokens() -> None:
    world = World(STREAMS, n_slots=1)
    world.run([9, *A, *B, *C, *D])
    world.run(E)
    assert world.start([9, 8, *E])[1] == 0 and world.decoder.n_restores == 0


def test_a_gap_is_closed_and_idle_content_changes_places() -> None:
    world = World(STREAMS, n_slots=4, ram=0)
    for tokens in (A, B, C):
        world.start(tokens)
    world.kv.release(1, "", B, keep=True)
    assert world.kv.hole() == (2, 1)
    assert world.kv.move(2, 1) and world.kv.hole() is None
    assert contents(world) == [A, C, B, []]
    assert world.kv.longest("", B) == world.kv.longest("", C) == world.kv.longest("", A) == 99


def test_no_move_for_neighbours_onto_taken_slots_or_from_free_ones() -> None:
    world = World(STREAMS, n_slots=4)
    assert world.kv.hole() is None
    for tokens in (A, B):
        world.start(tokens)
    assert world.kv.hole() is None and not world.kv.move(0, 1) and not world.kv.move(2, 3)
    assert contents(world) == [A, B, [], []]


def test_a_move_that_fails_changes_nothing_for_the_running() -> None:
    world = World(STREAMS, n_slots=4)
    for tokens in (A, B, C):
        world.start(tokens)
    world.kv.release(1, "", B, keep=True)
    copy = world.decoder.copy
    world.decoder.copy = lambda source, target, n_tokens: world.decoder.truncate(target, 0) and False  # type: ignore[method-assign]
    assert not world.kv.move(2, 1) and contents(world) == [A, B, C, []] and world.kv.longest("", B) == 99
    world.decoder.copy = copy  # type: ignore[method-assign]
    world.decoder.save = lambda slot: None  # type: ignore[method-assign]
    assert not world.kv.move(2, 1), "what cannot change places and is worth something stays"
    assert contents(world) == [A, B, C, []]


def test_a_saved_state_goes_on_living_in_the_slot_it_is_restored_to() -> None:
    world = World(STREAMS, n_slots=1)
    world.run(A)
    world.run(B)
    assert world.run(A + C)[1] == 100
    assert world.kv.figures().n_saved == 1 and world.kv.longest("", B) == 99, "not A, which the slot holds"
