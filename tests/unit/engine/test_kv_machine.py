"""Whatever is called in whatever order, and whatever the decoder refuses: account and decoder agree, and every slot holds what its
owner believes, found only in its own namespace, within the limits."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from server.engine.cells import OwnCells, SharedCells
from server.engine.kv_pool import PoolStore
from server.engine.kv_streams import StreamStore
from server.engine.ports import DecodeFault, Row, State
from server.engine.prefix_cache import Saved
from server.engine.slots import SlotStore
from server.engine.stores import store_for
from tests.unit.engine.fakes import FakeDecoder, FakeState, fails_with

N_SLOTS, N_CTX = 6, 240
STEMS = [[1] * 40 + [2] * 50, [1] * 40 + [3] * 70, [2] * 35, []]
TAILS = [[4] * 80, [4] * 30 + [5] * 40, [6], []]
PROMPTS = st.builds(lambda stem, tail, last: [*stem, *tail, last], st.sampled_from(STEMS), st.sampled_from(TAILS), st.integers(4, 6))
NAMESPACES = st.sampled_from(["", "other"])
PICK = st.integers(0, 1000)


class Refusing(FakeDecoder):
    """Says no to whatever is in `refuse`."""

    refuse: frozenset[str] = frozenset()

    def copy(self, source: int, target: int, n_tokens: int) -> bool:
        if "copy" in self.refuse:
            return super().truncate(target, 0) and False
        return super().copy(source, target, n_tokens)

    def save(self, slot: int) -> FakeState | None:
        return None if "save" in self.refuse else super().save(slot)

    def restore(self, slot: int, state: State) -> bool:
        if "restore" in self.refuse:
            return super().truncate(slot, 0) and False
        return super().restore(slot, state)


class Request:
    """A prompt with an answer: `tokens` of which the slot holds the first `n_computed`."""

    def __init__(self, slot: int, namespace: str, tokens: list[int], n_computed: int) -> None:
        self.slot, self.namespace, self.tokens, self.n_computed = slot, namespace, tokens, n_computed

    @property
    def content(self) -> list[int]:
        return self.tokens[: self.n_computed]

    @property
    def missing(self) -> list[int]:
        return self.tokens[self.n_computed :]


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class Stores(RuleBasedStateMachine):
    @initialize(
        unified=st.booleans(),
        can_rewind=st.booleans(),
        can_save=st.booleans(),
        n_cells=st.integers(N_CTX, N_SLOTS * N_CTX),
        n_running=st.integers(2, N_SLOTS),
        ram_limit=st.sampled_from([0, 2000, 5000, 100_000]),
    )
    def start(self, unified: bool, can_rewind: bool, can_save: bool, n_cells: int, n_running: int, ram_limit: int) -> None:
        self.decoder = Refusing(
            n_slots=N_SLOTS, n_ctx_slot=N_CTX, n_batch=N_CTX, can_rewind=can_rewind, can_save=can_save, unified=unified, n_cells=n_cells
        )
        if not unified:
            self.decoder.n_cells = N_SLOTS * N_CTX
        self.kv = store_for(self.decoder, n_running=n_running, ram_limit=ram_limit)
        self.n_running = n_running if unified else N_SLOTS
        self.running: list[Request] = []
        self.aside: list[tuple[State, Request]] = []
        self.public: list[tuple[str, list[int]]] = []

    # ---- calls -----------------------------------------------------------------------------------------------------

    @rule(refuse=st.frozensets(st.sampled_from(["copy", "save", "restore"]), max_size=2), again=st.booleans())
    def refuse(self, refuse: frozenset[str], again: bool) -> None:
        self.decoder.refuse = refuse if again else frozenset()

    @rule(namespace=NAMESPACES, prompt=PROMPTS, reuse=st.booleans(), answer=st.integers(4, 6))
    def attach(self, namespace: str, prompt: list[int], reuse: bool, answer: int) -> None:
        self.attached(namespace, prompt, reuse, answer)

    def attached(self, namespace: str, prompt: list[int], reuse: bool, answer: int) -> Request | None:
        longest = self.kv.longest(namespace, prompt)
        found = self.kv.attach(namespace, prompt, reuse=reuse)
        assert (found is None) == (len(self.running) == self.n_running)
        if found is None:
            return None
        assert found.slot not in {request.slot for request in self.running}
        assert 0 <= found.n_copied <= found.n_cached < len(prompt)
        assert found.n_cached <= (longest if reuse else 0) <= self.longest_public(namespace, prompt)
        request = Request(found.slot, namespace, [*prompt, *[answer] * 20], found.n_cached)
        self.running.append(request)
        return request

    @rule(namespace=NAMESPACES, prompt=PROMPTS, answer=st.integers(4, 6), end=st.sampled_from(["publish", "release", "both"]))
    def serve(self, namespace: str, prompt: list[int], answer: int, end: str) -> None:
        """What a request usually does, in one call."""
        if request := self.attached(namespace, prompt, True, answer):
            if self.decodes(request, len(prompt) - request.n_computed) and end != "release":
                self.kv.publish(request.slot, namespace, prompt)
                self.public.append((namespace, prompt))
            if end != "publish" and (self.decodes(request, 19) or True):
                self.finish(request, keep=True)

    @rule(which=PICK, n=st.integers(1, 90))
    def compute(self, which: int, n: int) -> None:
        if request := self.pick(which):
            self.decodes(request, n)

    def decodes(self, request: Request, n: int) -> bool:
        """Compute the next `n` tokens, or all that are left. False = there is no room, or nothing left."""
        rows = [Row(request.slot, request.n_computed + i, token, False) for i, token in enumerate(request.missing[:n])]
        if not rows or not self.kv.make_room(len(rows)):
            return False
        self.decoder.decode(rows)
        request.n_computed += len(rows)
        self.kv.grew(request.slot, request.n_computed)
        return True

    @rule(which=PICK, n=st.integers(1, 60), done=st.integers(0, 60))
    def fail_half_way(self, which: int, n: int, done: int) -> None:
        if request := self.pick(which):
            rows = [Row(request.slot, request.n_computed + i, token, False) for i, token in enumerate(request.missing[:n])]
            if rows and self.kv.make_room(len(rows)):
                self.decoder.fault = fails_with(-3, restored=False, done=done)
                with pytest.raises(DecodeFault):
                    self.decoder.decode(rows)
                self.decoder.fault = None
            request.n_computed = self.kv.cut(request.slot, min(self.kv.held(request.slot), len(request.tokens) - 1))

    @rule(which=PICK, n=st.integers(0, N_CTX))
    def cut(self, which: int, n: int) -> None:
        if request := self.pick(which):
            n = min(n, request.n_computed)
            left = self.kv.cut(request.slot, n)
            assert left == n or (left == 0 and not self.decoder.can_rewind)
            request.n_computed = left

    @rule(which=PICK, n=st.integers(0, N_CTX), whole=st.booleans())
    def publish(self, which: int, n: int, whole: bool) -> None:
        if request := self.pick(which):
            tokens = request.content if whole else request.content[:n]
            self.kv.publish(request.slot, request.namespace, tokens)
            self.public.append((request.namespace, tokens))

    @rule(which=PICK, keep=st.booleans())
    def release(self, which: int, keep: bool) -> None:
        if request := self.pick(which):
            self.finish(request, keep)

    def finish(self, request: Request, keep: bool) -> None:
        self.running.remove(request)
        self.kv.release(request.slot, request.namespace, request.content, keep=keep)
        if keep:
            self.public.append((request.namespace, request.content))
        assert self.decoder.cells[request.slot] == (request.content if keep else [])

    @rule(which=PICK, other=PICK, n=st.integers(1, N_CTX))
    def share(self, which: int, other: int, n: int) -> None:
        source, target = self.pick(which), self.pick(other)
        if source is None or target is None or source is target or source.namespace != target.namespace:
            return
        most = min(common(source.content, target.tokens), len(target.tokens) - 1)
        if most > target.n_computed:
            n = max(target.n_computed + 1, min(n, most))
            left = self.kv.share(source.slot, target.slot, n)
            assert left == n or self.decoder.refuse or not self.decoder.can_rewind
            target.n_computed = left

    @rule(which=PICK)
    def swap_out(self, which: int) -> None:
        if request := self.pick(which):
            self.running.remove(request)
            state = self.kv.swap_out(request.slot)
            if state is not None:
                assert isinstance(state, FakeState) and state.tokens == request.content
                self.aside.append((state, request))

    @rule(which=PICK)
    def swap_in(self, which: int) -> None:
        if not self.aside:
            return
        state, request = aside = self.aside[which % len(self.aside)]
        found = self.kv.swap_in(state, request.n_computed)
        assert (found is None) == (len(self.running) == self.n_running)
        if found is not None:
            self.aside.remove(aside)
            assert found[1] in (0, request.n_computed)
            request.slot, request.n_computed = found
            self.running.append(request)

    @rule(which=PICK)
    def forget(self, which: int) -> None:
        if self.aside:
            state, _ = self.aside.pop(which % len(self.aside))
            self.kv.forget(state)

    @rule(tokens=PROMPTS)
    def swap_in_nothing(self, tokens: list[int]) -> None:
        found = self.kv.swap_in(None, len(tokens))
        if found is not None:
            assert found[1] == 0
            self.running.append(Request(found[0], "", tokens, 0))
            self.decodes(self.running[-1], len(tokens))

    @rule()
    def close_gap(self) -> None:
        found = self.kv.hole()
        taken = {request.slot for request in self.running}
        if found is None:
            assert self.decoder.unified or not taken or max(taken) - min(taken) < len(taken)
            return
        source, target = found
        assert source in taken and target not in taken
        if self.kv.move(source, target):
            next(request for request in self.running if request.slot == source).slot = target

    @rule(which=PICK, to=st.integers(0, N_SLOTS - 1))
    def move(self, which: int, to: int) -> None:
        taken = {request.slot for request in self.running}
        if (request := self.pick(which)) and self.kv.move(request.slot, to):
            assert to not in taken and not self.decoder.unified
            request.slot = to

    @rule(n=st.integers(0, N_CTX))
    def make_room(self, n: int) -> None:
        possible = n <= self.kv.room()
        assert self.kv.make_room(n) == possible
        assert not possible or not self.decoder.unified or self.decoder.n_cells - self.decoder.n_used >= n

    # ---- truths ----------------------------------------------------------------------------------------------------

    @property
    def store(self) -> SlotStore[OwnCells] | SlotStore[SharedCells]:
        assert isinstance(self.kv, StreamStore | PoolStore)
        return self.kv

    def pick(self, which: int) -> Request | None:
        return self.running[which % len(self.running)] if self.running else None

    def longest_public(self, namespace: str, prompt: list[int]) -> int:
        return max((common(prompt[:-1], tokens) for name, tokens in self.public if name == namespace), default=0)

    @invariant()
    def everybody_holds_what_is_believed(self) -> None:
        store, cells = self.store, self.decoder.cells
        cache = store._cache
        running = {request.slot: request for request in self.running}
        assert store._taken == set(running) and len(running) == len(self.running)
        for slot in range(N_SLOTS):
            entry = cache.entry(slot)
            tokens = list(entry.tokens) if entry else []
            if slot in running:
                assert cells[slot] == running[slot].content
                assert tokens == cells[slot][: len(tokens)]
                assert not tokens or self.decoder.can_rewind or tokens == cells[slot]
                assert entry is None or entry.namespace == running[slot].namespace
            else:
                assert cells[slot] == tokens
            assert store._cells.held(slot) == len(cells[slot])

    @invariant()
    def the_account_is_exact(self) -> None:
        figures, decoder = self.kv.figures(), self.decoder
        assert figures.n_used == decoder.n_used <= figures.n_cells == decoder.n_cells
        if decoder.unified:
            taken = {cell for request in self.running for cell in decoder.cell_ids[request.slot]}
            assert self.kv.room() == decoder.n_cells - len(taken) and self.kv.n_ctx_pool == decoder.n_cells
        else:
            assert self.kv.room() == self.kv.n_ctx_slot == N_CTX and self.kv.n_ctx_pool is None

    @invariant()
    def host_memory_is_within_its_limit(self) -> None:
        figures, cache = self.kv.figures(), self.store._cache
        aside = [state for state, _ in self.aside]
        states = [*aside, *(saved.state for saved in cache._saved)]
        assert figures.ram_bytes == sum(state.n_bytes for state in states) <= figures.ram_limit
        assert figures.n_saved == len(states)
        for saved in cache._saved:
            entry = cache.entry(saved)
            assert isinstance(saved.state, FakeState) and entry and saved.state.tokens == list(entry.tokens)
        assert len(cache._namespaces) == sum(map(len, cache._trees.values())) and all(cache._trees.values())
        assert {holder for holder in cache._namespaces if isinstance(holder, Saved)} == set(cache._saved)


TestStores = Stores.TestCase
TestStores.settings = settings(max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
