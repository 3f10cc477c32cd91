"""What both KV stores have in common: slots that are taken, filled from whoever holds the prompt's beginning, and given back.

Knows the decoder's port, no request, no queue and no clock. Whatever the decoder refuses costs cached tokens, never a request: account
and decoder stay in step.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Generic, TypeVar

from server.engine.cells import Cells
from server.engine.kv import Attached, KvFigures
from server.engine.placement import KEEP_WEIGHT, Place, cheapest, copy_cost, worth
from server.engine.ports import Decoder, State
from server.engine.prefix_cache import Holder, PrefixCache, Saved

WORTH_SAVING = 64
"""Idle content goes to host memory, rather than nowhere, if so many tokens of it are held by nobody else."""
CHECKPOINT_LEAST = 32
"""Of a model that cannot rewind, prompts of so many tokens are saved when they are computed: it is the only way back to them."""

AnyCells = TypeVar("AnyCells", bound=Cells)


@dataclass(frozen=True, slots=True)
class Source:
    """Somebody who holds the first `n_tokens` of a prompt. `gain`: tokens of prefill that it saves, less what the copy costs."""

    holder: Holder
    n_tokens: int
    gain: float


class SlotStore(Generic[AnyCells]):
    """The part of `kv.KvStore` that does not depend on whose the cells are. An idle slot's cells are exactly its entry in the cache."""

    def __init__(self, decoder: Decoder, cells: AnyCells, *, n_running: int, ram_limit: int) -> None:
        """At most `n_running` slots are taken at once. `ram_limit`: bytes of host memory for saved states."""
        self._decoder, self._cells = decoder, cells
        self._cache = PrefixCache(ram_limit=ram_limit, whole=not decoder.can_rewind)
        self._n_running = min(n_running, decoder.n_slots)
        self._taken: set[int] = set()
        self._uses = 0
        self._used_at = [0] * decoder.n_slots
        self._can_save = ram_limit > 0
        """Whether the last attempt to save something worked."""

    # ---- what the stores differ in ---------------------------------------------------------------------------------

    def _n_graphs(self, slot: int) -> int:
        """Graphs more in a step if this slot is taken."""
        return 0

    def _copy_cost(self, slot: int) -> float:
        """What it costs to give another slot a part of this one's cells, in tokens of prefill."""
        return 0.0

    def make_room(self, n_cells: int) -> bool:
        return True

    # ---- questions -------------------------------------------------------------------------------------------------

    @property
    def n_ctx_slot(self) -> int:
        return self._decoder.n_ctx_slot

    def longest(self, namespace: str, tokens: Seq[int]) -> int:
        return self._cache.longest(namespace, tokens[:-1])

    def held(self, slot: int) -> int:
        return self._decoder.n_tokens(slot)

    def figures(self) -> KvFigures:
        cache = self._cache
        return KvFigures(self._cells.n_used, self._decoder.n_cells, cache.n_saved, cache.ram_bytes, cache.ram_limit)

    # ---- taking and giving back ------------------------------------------------------------------------------------

    def attach(self, namespace: str, tokens: Seq[int], *, reuse: bool) -> Attached | None:
        free = self._free()
        if not free:
            return None
        own, sources = self._offers(namespace, tokens[:-1]) if reuse else ({}, [])
        slot, in_place = cheapest([self._place(slot, own.get(slot, 0)) for slot in free], sources[0].gain if sources else 0.0)
        if in_place:
            self._keep(slot, own[slot])
        else:
            # What is wanted must not be what has to go for the sake of the slot's old content.
            for source in sources[:1]:
                self._touch(source.holder)
            self._empty(slot)
            for source in sources:
                if self._fetch(source, slot):
                    break
        n_cached = self._cells.held(slot)
        self._cache.hold(slot, namespace, tokens[:n_cached])
        self._take(slot)
        return Attached(slot, n_cached, 0 if in_place else n_cached)

    def share(self, source: int, target: int, n_tokens: int) -> int:
        n_held = self._cells.held(target)
        if n_tokens <= n_held or (self._cache.whole and n_tokens != self._cells.held(source)):
            return n_held
        self._copy(source, target, n_tokens)
        return self._cells.held(target)

    def grew(self, slot: int, n_tokens: int) -> None:
        self._cells.put(slot, n_tokens)
        self._keep_entry_true(slot)

    def cut(self, slot: int, n_tokens: int) -> int:
        if n_tokens < self._decoder.n_tokens(slot):
            self._decoder.truncate(slot, n_tokens)
        return self._sync(slot)

    def publish(self, slot: int, namespace: str, tokens: Seq[int]) -> None:
        self._cache.hold(slot, namespace, tokens[: self._cells.held(slot)])
        self._keep_entry_true(slot)
        if self._cache.whole and self._cache.n_tokens(slot) >= CHECKPOINT_LEAST and not self._cache.is_saved(slot):
            self._save(slot)

    def release(self, slot: int, namespace: str, tokens: Seq[int], *, keep: bool) -> None:
        n_kept = self.cut(slot, len(tokens) if keep else 0)
        self._cache.hold(slot, namespace, tokens[:n_kept])
        self._give_back(slot)

    def swap_out(self, slot: int) -> State | None:
        state = self._swapped(slot)
        # If nothing is saved, at least what others may copy stays until the slot is needed.
        self.cut(slot, 0 if state is not None else self._cache.n_tokens(slot))
        self._give_back(slot)
        return state

    def swap_in(self, state: State | None, n_tokens: int) -> tuple[int, int] | None:
        free = self._free()
        if not free:
            return None
        slot, _ = cheapest([self._place(slot, 0) for slot in free], 0.0)
        self._empty(slot)
        if state is not None:
            published = self._cache.unswap(state)
            if self._restore(slot, state, n_tokens) and published is not None:
                self._cache.hold(slot, published.namespace, published.tokens[: self._cells.held(slot)])
        self._take(slot)
        return slot, self._cells.held(slot)

    def forget(self, state: State | None) -> None:
        if state is not None:
            self._cache.unswap(state)

    def hole(self) -> tuple[int, int] | None:
        return None

    def move(self, source: int, target: int) -> bool:
        return False

    # ---- which slot, and from whom ---------------------------------------------------------------------------------

    def _free(self) -> list[int]:
        """Slots that may be taken now."""
        if len(self._taken) >= self._n_running:
            return []
        return [slot for slot in range(self._decoder.n_slots) if slot not in self._taken]

    def _place(self, slot: int, n_own: int) -> Place:
        return Place(slot, n_own, self._loss(slot, n_own), self._loss(slot, 0), self._n_graphs(slot))

    def _loss(self, slot: int, n_kept: int) -> float:
        """What giving up all but the first tokens of an idle slot costs, in tokens of prefill."""
        n_lost = self._n_lost(slot, n_kept)
        if not n_lost:
            return 0.0
        value = worth(n_lost, self._uses - self._used_at[slot], self._decoder.n_slots)
        # Saved now, restored when it is wanted: that is all it costs as long as there is memory for it.
        return min(value, 2 * copy_cost(self._cells.held(slot))) if n_lost >= WORTH_SAVING and self._can_save else value

    def _n_lost(self, slot: int, n_kept: int) -> int:
        """Tokens that nobody holds any more if all but the first of an idle slot go."""
        return max(0, min(self._cache.n_alone(slot), self._cells.held(slot) - n_kept))

    def _offers(self, namespace: str, tokens: Seq[int]) -> tuple[dict[int, int], list[Source]]:
        """What slots hold of a prompt themselves, and whom others can get it from, the best of the slots and of the saved states first."""
        own: dict[int, int] = {}
        best: dict[bool, Source] = {}
        least = 0.0
        for n_tokens, holder in self._cache.ranked(namespace, tokens):
            # Beyond here even what a slot saves by keeping its own content is less than what it could be given. Some slot has to be
            # among the offers, should the better ones come to nothing.
            if n_tokens * (1 + KEEP_WEIGHT) < least and True in best:
                break
            if is_slot := isinstance(holder, int):
                own[holder] = n_tokens
            cost = self._copy_cost(holder) if isinstance(holder, int) else copy_cost(holder.n_tokens)
            source = Source(holder, n_tokens, n_tokens - cost)
            if source.gain > 0 and (is_slot not in best or source.gain > best[is_slot].gain):
                best[is_slot] = source
                least = max(least, source.gain)
        return own, sorted(best.values(), key=lambda source: -source.gain)

    # ---- what happens to cells -------------------------------------------------------------------------------------

    def _take(self, slot: int) -> None:
        self._taken.add(slot)
        self._use(slot)

    def _give_back(self, slot: int) -> None:
        self._taken.remove(slot)
        self._use(slot)

    def _use(self, slot: int) -> None:
        self._uses += 1
        self._used_at[slot] = self._uses

    def _touch(self, holder: Holder) -> None:
        """Somebody wants what it holds."""
        if isinstance(holder, Saved):
            self._cache.used(holder)
        else:
            self._use(holder)

    def _keep(self, slot: int, n_tokens: int) -> None:
        """Of a free slot's own content only the first tokens stay; the rest is saved if it is worth it."""
        if self._n_lost(slot, n_tokens) >= WORTH_SAVING:
            self._save(slot)
        self.cut(slot, n_tokens)

    def _empty(self, slot: int) -> None:
        self._keep(slot, 0)

    def _fetch(self, source: Source, slot: int) -> int:
        """Give an empty slot the tokens that the source holds, as many as can be had. Returns how many."""
        holder = source.holder
        if isinstance(holder, Saved):
            return self._fetch_saved(holder, slot, source.n_tokens)
        if self._cache.n_tokens(holder) < source.n_tokens:
            return 0
        self._copy(holder, slot, source.n_tokens)
        return self._cells.held(slot)

    def _fetch_saved(self, saved: Saved, slot: int, n_tokens: int) -> int:
        if not self.make_room(saved.n_tokens):
            return 0
        if not self._restore(slot, saved.state, saved.n_tokens):
            self._cache.discard(saved)
            return 0
        if n_tokens < saved.n_tokens:
            return self.cut(slot, n_tokens)
        if not self._cache.whole:
            # The slot holds it now.
            self._cache.discard(saved)
        return self._cells.held(slot)

    def _copy(self, source: int, target: int, n_tokens: int) -> None:
        if self._decoder.copy(source, target, n_tokens):
            self._cells.copy(source, target, n_tokens)
        self._sync(target)

    def _restore(self, slot: int, state: State, n_tokens: int) -> bool:
        """Fill an empty slot with a state of `n_tokens` cells. False = the slot is empty."""
        if self.make_room(n_tokens):
            self._decoder.restore(slot, state)
        return self._sync(slot) > 0

    def _sync(self, slot: int) -> int:
        """Believe the decoder. Returns how many cells the slot holds."""
        n_cells = self._decoder.n_tokens(slot)
        self._cells.put(slot, n_cells)
        self._keep_entry_true(slot)
        return n_cells

    def _keep_entry_true(self, slot: int) -> None:
        """An entry holds no more than the cells do; where the model cannot rewind, no less either."""
        n_cells, n_tokens = self._cells.held(slot), self._cache.n_tokens(slot)
        if n_tokens > n_cells:
            self._cache.cut(slot, n_cells)
        elif self._cache.whole and n_tokens < n_cells:
            self._cache.drop(slot)

    # ---- host memory -----------------------------------------------------------------------------------------------

    def _save(self, slot: int) -> None:
        """Put a slot's entry, which is all it holds, into host memory, if there is room and the decoder can."""
        entry = self._cache.entry(slot)
        state = self._state(slot)
        self._can_save = state is not None and entry is not None and self._cache.save(entry, state)

    def _swapped(self, slot: int) -> State | None:
        state = self._state(slot) if self._cells.held(slot) else None
        return state if state is not None and self._cache.swap(state, self._cache.entry(slot)) else None

    def _state(self, slot: int) -> State | None:
        return self._decoder.save(slot) if self._cache.could_take(self._decoder.state_bytes(slot)) else None
