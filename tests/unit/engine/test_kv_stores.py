"""What both stores promise: the longest beginning is found wherever it is held, and only what is worth little is lost."""

from __future__ import annotations

from typing import Any

import pytest

from server.engine.kv import KvStore
from server.engine.ports import Row, State
from server.engine.stores import store_for
from tests.unit.engine.fakes import FakeDecoder

STREAMS, POOL = False, True
both = pytest.mark.parametrize("unified", [STREAMS, POOL], ids=["streams", "pool"])
either = pytest.mark.parametrize("can_rewind", [True, False], ids=["rewinds", "whole only"])
A, B, C = [1] * 100, [2] * 100, [3] * 100


def refuse(slot: int, state: State) -> bool:
    return False


class World:
    """A store on a fake decoder; a request is whatever slot was taken last for a list of tokens."""

    def __init__(self, unified: bool, *, n_slots: int = 4, n_running: int | None = None, ram: int = 100_000, **options: Any) -> None:
        self.decoder = FakeDecoder(n_slots=n_slots, n_ctx_slot=500, n_batch=500, unified=unified, **options)
        self.kv: KvStore = store_for(self.decoder, n_running=n_running or n_slots, ram_limit=ram)

    def start(self, tokens: list[int], namespace: str = "", *, reuse: bool = True, publish: bool = True) -> tuple[int, int]:
        """Attach, compute all, publish. Returns slot and how many tokens were cached."""
        found = self.kv.attach(namespace, tokens, reuse=reuse)
        assert found is not None
        self.compute(found.slot, tokens, found.n_cached)
        if publish:
            self.kv.publish(found.slot, namespace, tokens)
        return found.slot, found.n_cached

    def compute(self, slot: int, tokens: list[int], n_computed: int) -> None:
        rows = [Row(slot, i, token, False) for i, token in enumerate(tokens)][n_computed:]
        assert self.kv.make_room(len(rows))
        self.decoder.decode(rows)
        self.kv.grew(slot, len(tokens))

    def run(self, tokens: list[int], namespace: str = "") -> tuple[int, int]:
        """Start and finish."""
        slot, n_cached = self.start(tokens, namespace)
        self.kv.release(slot, namespace, tokens, keep=True)
        return slot, n_cached


@both
@either
def test_the_next_turn_computes_only_what_is_new(unified: bool, can_rewind: bool) -> None:
    world = World(unified, can_rewind=can_rewind)
    assert world.run(A) == (0, 0)
    assert world.kv.longest("", A + B) == 100
    assert world.run(A + B) == (0, 100)


@both
def test_the_last_token_is_always_evaluated(unified: bool) -> None:
    world = World(unified)
    world.run(A)
    assert world.kv.longest("", A) == 99
    assert world.run(A)[1] == 99


@both
@pytest.mark.parametrize("finished", [True, False])
def test_a_beginning_is_found_while_its_owner_runs_and_afterwards(unified: bool, finished: bool) -> None:
    world = World(unified)
    slot, _ = world.start(A + B)
    if finished:
        world.kv.release(slot, "", A + B, keep=True)
    assert world.kv.longest("", A + C) == 100
    found = world.kv.attach("", A + C, reuse=True)
    assert found is not None and found.slot != slot and (found.n_cached, found.n_copied) == (100, 100)
    assert world.decoder.cells[found.slot] == A and world.decoder.cells[slot] == A + B


@both
def test_what_is_not_published_is_not_found(unified: bool) -> None:
    world = World(unified)
    slot, _ = world.start(A, publish=False)
    assert world.kv.longest("", A + B) == 0
    world.kv.release(slot, "", A, keep=False)
    assert world.kv.longest("", A + B) == 0 and world.decoder.cells[slot] == [] and world.kv.figures().n_used == 0


@both
def test_nothing_is_found_across_namespaces(unified: bool) -> None:
    world = World(unified, n_slots=2)
    world.run(A, "mine")
    assert world.kv.longest("yours", A + B) == 0 and world.run(A + B, "yours")[1] == 0
    world.run(C, "mine")
    assert world.kv.figures().n_saved > 0, "what gave way is in host memory"
    for namespace in ("", "yours", "other"):
        assert world.kv.longest(namespace, C + B) == 0
    assert world.kv.longest("mine", A + B) == 100


@both
def test_without_reuse_the_slot_is_empty(unified: bool) -> None:
    world = World(unified)
    world.run(A)
    found = world.kv.attach("", A + B, reuse=False)
    assert found is not None and found.n_cached == 0 and world.decoder.cells[found.slot] == []


@both
@either
def test_displaced_content_comes_back_from_host_memory(unified: bool, can_rewind: bool) -> None:
    world = World(unified, n_slots=1, can_rewind=can_rewind)
    world.run(A)
    world.run(B)
    assert world.kv.figures().n_saved >= 1 and world.kv.longest("", A + C) == 100
    found = world.kv.attach("", A + C, reuse=True)
    assert found is not None and (found.n_cached, found.n_copied) == (100, 100) and world.decoder.cells[0] == A


@both
@pytest.mark.parametrize("options", [{"ram": 0}, {"ram": 999}, {"can_save": False}])
def test_what_cannot_be_saved_is_lost_and_nothing_else(unified: bool, options: dict[str, Any]) -> None:
    world = World(unified, n_slots=1, **options)
    world.run(A)
    world.run(B)
    assert world.kv.longest("", A) == 0 and world.kv.longest("", B) == 99
    assert world.kv.figures().n_saved == 0


@both
def test_few_tokens_and_those_that_others_hold_are_not_saved(unified: bool) -> None:
    world = World(unified, n_slots=2)
    world.run([7] * 63)
    world.start(A)
    world.start(B)
    assert world.kv.figures().n_saved == 0, "63 tokens are computed again"
    world = World(unified, n_slots=3)
    slot, _ = world.start(A + B)
    world.run(A + C[:60])
    world.start(C)
    world.start([7] * 80)
    assert world.kv.figures().n_saved == 0 and world.kv.longest("", A + C) == 100, "its beginning is held by another slot"


@both
def test_the_least_recently_used_goes_from_host_memory_first(unified: bool) -> None:
    world = World(unified, n_slots=1, ram=2010)
    for tokens in (A, B, C):
        world.run(tokens)
    assert [world.kv.longest("", tokens) for tokens in (A, B, C)] == [99, 99, 99]
    assert world.run(A[:90] + [5] * 9) == (0, 90)
    figures = world.kv.figures()
    assert [world.kv.longest("", tokens) for tokens in (A, B, C)] == [99, 0, 99] and figures.ram_bytes <= figures.ram_limit == 2010


@both
def test_a_saved_state_that_a_longer_one_covers_is_not_kept(unified: bool) -> None:
    world = World(unified, n_slots=1)
    world.run(A + B)
    world.run(C)
    assert world.start(A + B)[1] == 199 and world.kv.figures().n_saved == 2
    world.compute(0, A + B + C, 200)
    world.kv.release(0, "", A + B + C, keep=True)
    world.run([7] * 100)
    assert world.kv.figures().n_saved == 2 and world.kv.longest("", C) == 99 and world.kv.longest("", A + B + C) == 299


@both
def test_a_saved_state_that_cannot_be_restored_is_not_tried_again(unified: bool) -> None:
    world = World(unified, n_slots=1)
    world.run(A)
    world.run(B)
    world.decoder.restore = refuse  # type: ignore[method-assign]
    assert world.start(A)[1] == 0 and world.kv.figures().n_saved == 1 and world.kv.longest("", B) == 99


@both
def test_a_request_put_aside_comes_back_to_the_bit_and_is_found_again(unified: bool) -> None:
    world = World(unified)
    slot, _ = world.start(A + B)
    state = world.kv.swap_out(slot)
    assert state is not None and world.decoder.cells[slot] == [] and world.kv.figures().ram_bytes == 2000
    world.start(C)
    assert world.kv.longest("", A + B) == 0
    back = world.kv.swap_in(state, 200)
    assert back is not None and back[1] == 200 and world.decoder.cells[back[0]] == A + B
    assert world.kv.figures().ram_bytes == 0 and world.kv.longest("", A + B) == 199


@both
def test_states_of_requests_put_aside_push_cached_ones_out_but_not_each_other(unified: bool) -> None:
    world = World(unified, n_slots=2, ram=2500)
    world.run(A)
    world.run(B)
    first, _ = world.start(C + A)
    assert world.kv.figures().n_saved == 1
    second, _ = world.start([7] * 100)
    assert world.kv.swap_out(first) is not None
    assert world.kv.longest("", A + C) == 0 or world.kv.longest("", B + C) == 0
    assert world.kv.swap_out(second) is None, "the second does not fit beside the first"
    assert world.kv.figures().n_saved == 1 and world.kv.longest("", [7] * 100) == 99, "what was published stays until it is in the way"


@both
def test_a_forgotten_state_takes_no_memory(unified: bool) -> None:
    world = World(unified)
    state = world.kv.swap_out(world.start(A)[0])
    world.kv.forget(state)
    world.kv.forget(None)
    assert world.kv.figures().ram_bytes == 0 == world.kv.figures().n_saved


@both
def test_a_state_that_cannot_be_restored_is_computed_again(unified: bool) -> None:
    world = World(unified)
    state = world.kv.swap_out(world.start(A)[0])
    world.decoder.restore = refuse  # type: ignore[method-assign]
    back = world.kv.swap_in(state, 100)
    assert back is not None and back[1] == 0 and world.kv.figures().n_used == 0 == world.kv.figures().ram_bytes


@both
def test_no_more_slots_are_taken_than_run_at_once(unified: bool) -> None:
    world = World(unified, n_slots=4, n_running=4)
    state = world.kv.swap_out(world.start(A)[0])
    for tokens in ([4], [5], [6], [7]):
        world.start(tokens)
    assert world.kv.attach("", B, reuse=True) is None and world.kv.swap_in(state, 100) is None
    assert world.kv.figures().ram_bytes == 1000, "it is still there"


@both
def test_a_follower_takes_over_what_its_leader_has_computed(unified: bool) -> None:
    world = World(unified)
    leader, _ = world.start(A + B, publish=False)
    follower, _ = world.start([1] * 10)
    used = world.kv.figures().n_used
    assert world.kv.share(leader, follower, 150) == 150 and world.decoder.cells[follower] == (A + B)[:150]
    assert world.kv.figures().n_used == (200 if unified else used + 140)
    assert world.kv.share(leader, follower, 20) == 150, "it has more already"


@both
def test_a_model_that_cannot_rewind_starts_from_checkpoints(unified: bool) -> None:
    """A prompt's end is a way back to it, however far its owner has gone on; a part of one is not."""
    world = World(unified, can_rewind=False)
    slot, _ = world.start(A)
    world.compute(slot, A + B, 100)
    assert world.kv.longest("", A + C) == 100 and world.kv.longest("", A[:50] + C) == 0
    found = world.kv.attach("", A + C, reuse=True)
    assert found is not None and found.n_cached == 100 and world.decoder.cells[found.slot] == A
    sibling = found.slot
    assert world.kv.share(slot, sibling, 150) == 100 and world.decoder.cells[sibling] == A, "nothing is lost in a copy that cannot be"
    assert world.kv.share(slot, sibling, 200) == 200
    world.kv.release(slot, "", A + B, keep=True)
    assert world.kv.longest("", A + B + C) == 200
    assert world.kv.cut(sibling, 150) == 0 and world.decoder.cells[sibling] == []


@both
def test_a_model_that_cannot_rewind_saves_no_short_prompts_and_none_twice(unified: bool) -> None:
    world = World(unified, can_rewind=False)
    world.start([7] * 31)
    assert world.kv.figures().n_saved == 0
    world.run(A)
    world.run(A)
    assert world.kv.figures().n_saved == 1
