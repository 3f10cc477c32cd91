"""How many slots, with how many tokens each: a pure function of the model's numbers and the free memory.

Knows no native library. All sizes are bytes, all lengths tokens.

The rule where nothing is asked for: 16 slots of `WANTED_CTX` tokens, within a budget of half of the memory that the weights leave.
A cache is zeroed when it is made, at 1 to 4 GB/s (small or huge pages), so the budget is also no more than the weights or
`ALWAYS_FINE`, whichever is larger: starting never takes much longer for a cache that nobody asked for. If that is too much, slots
get shorter first (not below `MIN_CTX`), then fewer (not below `MIN_SLOTS`).

Each slot has cells of its own (streams), which computes faster than one pool of cells for all (unified): 111 tokens/s against 52 for
16 sequences of 1,024 tokens. The pool is for contexts that are too short to be shared out: if even the shortest slots do not fit the
memory, it takes all the cells that do; if a given context leaves less than `USEFUL_CTX` to a slot, it takes those. In it one request
may be as long as the model was trained for. If not even the least pool fits, the answer is an error with the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from server.errors import OperatorError

WANTED_SLOTS, MIN_SLOTS = 16, 4
WANTED_CTX, MIN_CTX = 8192, 2048
ALWAYS_FINE = 1600 << 20
USEFUL_CTX = 512
"""Where a slot of its own would have fewer tokens than this, the slots draw on a pool."""
HOLDERS = 32
"""Slots of a pool beyond those that run at once: they hold prefixes, and cost nothing else."""
PAD = 256
"""The native library rounds a slot's cells up to a multiple of this."""
_MARGIN = 0.95
"""The part of the free memory that may be filled on request."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model takes. `cell_bytes`: K and V of one token over all layers; `slot_bytes`: state that a slot has whatever its
    length (recurrent layers, one row of logits); `fixed_bytes`: compute buffers; `weight_bytes`: mapped weights that have to
    stay in memory though the system counts them as free."""

    n_ctx_train: int
    cell_bytes: int
    slot_bytes: int
    fixed_bytes: int
    weight_bytes: int
    total_weight_bytes: int
    max_slots: int = 256


@dataclass(frozen=True, slots=True)
class Fit:
    """`n_slots` requests at once, each of up to `n_ctx_slot` tokens, in a cache of `n_ctx` cells; `why` is one sentence for the log."""

    n_slots: int
    n_ctx_slot: int
    cache_bytes: int
    why: str
    unified: bool = False
    n_pool: int = 0
    """Cells of the pool."""

    @property
    def n_ctx(self) -> int:
        return self.n_pool if self.unified else self.n_slots * self.n_ctx_slot


def layer_cells(n_kv_heads: list[int], key_length: int, value_length: int, key_bytes: float, value_bytes: float) -> int:
    """Bytes of K and V for one token, from the number of KV heads of each layer and the bytes of one cached value."""
    heads = sum(n_kv_heads)
    return int(heads * (key_length * key_bytes + value_length * value_bytes))


def fit(needs: Needs, free_bytes: int, *, ctx_size: int = 0, parallel: int | None = None, kv: str = "streams") -> Fit:
    """Choose slots and context. `ctx_size`: cells in all (0 = choose); `parallel`: slots (None = choose); `kv`: auto, streams, unified.

    Raises:
        OperatorError: what is asked for, or the least that makes sense, does not fit the memory.
    """
    if parallel is not None and not 1 <= parallel <= needs.max_slots:
        raise OperatorError(f"{parallel} slots are not possible", hint=f"--parallel takes 1 to {needs.max_slots}")
    spare = max(0, free_bytes - needs.weight_bytes)
    room = int(spare * _MARGIN) - needs.fixed_bytes
    """Bytes that a cache may take if it must."""
    if ctx_size > 0:
        found = _requested(needs, ctx_size, parallel)
        if kv == "unified" or (kv == "auto" and found.n_slots > 1 and found.n_ctx_slot < min(USEFUL_CTX, _train(needs))):
            found = _pooled(needs, _padded(ctx_size), found.n_slots)
        if found.n_ctx > ctx_size:
            found = replace(found, why=f"{found.why}; {ctx_size} cells were asked for, a slot takes multiples of {PAD}")
        return _checked(needs, found, spare, room, explicit=True)
    budget = min(spare // 2, max(ALWAYS_FINE, needs.total_weight_bytes)) - needs.fixed_bytes
    found = _chosen(needs, budget, parallel)
    if kv == "unified" or (kv == "auto" and found.cache_bytes > room):
        n_cells = max(min(MIN_CTX, _train(needs)), min(found.n_ctx, _pool_cells(needs, room, found.n_slots)))
        found = _pooled(needs, n_cells, found.n_slots)
    return _checked(needs, found, spare, room, explicit=parallel is not None)


def n_ids(needs: Needs, n_slots: int) -> int:
    """Slots of a pool in which `n_slots` requests run at once."""
    return min(needs.max_slots, n_slots + HOLDERS)


def _pooled(needs: Needs, n_cells: int, n_slots: int) -> Fit:
    n_bytes = max(1, needs.cell_bytes * n_cells + needs.slot_bytes * n_ids(needs, n_slots))
    length = min(n_cells, _train(needs))
    why = f"{n_slots} slots draw on one pool of {n_cells} tokens, each on up to {length}"
    return Fit(n_slots, length, n_bytes, why, unified=True, n_pool=n_cells)


def _pool_cells(needs: Needs, room: int, n_slots: int) -> int:
    """The most cells (a multiple of PAD, possibly 0) of a pool for `n_slots` slots."""
    return max(0, (room - needs.slot_bytes * n_ids(needs, n_slots)) // max(1, needs.cell_bytes) // PAD * PAD)


def cache_ram(free_bytes: int, asked: int | None) -> int:
    """Bytes of host memory for saved prefixes: as asked for, else a quarter of what is still free, 8 GiB at most.

    Raises:
        OperatorError: more is asked for than is free.
    """
    if asked is not None and asked > max(0, free_bytes):
        raise OperatorError(
            f"--cache-ram {asked >> 20} (MiB) is more than the {shown(max(0, free_bytes))} that are free beside the model",
            hint="ask for less, or leave it out: then a quarter of what is free is used",
        )
    return asked if asked is not None else max(0, min(8 << 30, free_bytes // 4))


def _chosen(needs: Needs, budget: int, parallel: int | None) -> Fit:
    wanted, least = min(WANTED_CTX, _train(needs)), min(MIN_CTX, _train(needs))
    slots = parallel or min(WANTED_SLOTS, needs.max_slots)
    length = _length(needs, budget, slots)
    if length < least and parallel is None:
        slots = max(MIN_SLOTS, min(slots, budget // _slot(needs, least)))
        length = _length(needs, budget, slots)
    length = max(least, min(wanted, length))
    if length == wanted and slots == WANTED_SLOTS:
        why = f"{slots} slots of {length} tokens"
    else:
        why = f"{slots} slots of {length} tokens fit the {shown(max(0, budget))} meant for the KV cache"
    return Fit(slots, length, slots * _slot(needs, length), why)


def _requested(needs: Needs, ctx_size: int, parallel: int | None) -> Fit:
    slots = parallel or max(MIN_SLOTS, min(WANTED_SLOTS, ctx_size // MIN_CTX))
    length = _padded(-(-ctx_size // slots))
    why = f"{slots} slots share the {ctx_size} tokens of --ctx-size"
    if length > _train(needs):
        length = _train(needs)
        why += f"; one slot gets no more than the {needs.n_ctx_train} tokens that the model was trained on"
    return Fit(slots, length, slots * _slot(needs, length), why)


def _checked(needs: Needs, found: Fit, spare: int, room: int, *, explicit: bool) -> Fit:
    if found.cache_bytes <= room:
        return found
    what = f"{found.n_slots} slot{'s' * (found.n_slots > 1)} of {found.n_ctx_slot} tokens"
    if found.unified:
        what = f"a pool of {found.n_pool} tokens for {found.n_slots} slot{'s' * (found.n_slots > 1)}"
    what += "" if explicit else ", the least that makes sense,"
    raise OperatorError(
        f"{what} would take {shown(found.cache_bytes + needs.fixed_bytes)}, but beside the weights"
        f" ({shown(needs.total_weight_bytes)}) {shown(spare)} are free",
        hint=_way_out(needs, found, room),
    )


def _way_out(needs: Needs, found: Fit, room: int) -> str:
    """Options that fit, with as many of the slots as possible."""
    if found.unified:
        slots = next((n for n in range(found.n_slots, 0, -1) if _pool_cells(needs, room, n)), 0)
        n_cells, kv = _pool_cells(needs, room, slots), " --kv unified"
    else:
        slots = max(0, min(found.n_slots, room // _slot(needs, PAD)))
        length = _length(needs, room, slots) if slots else 0
        n_cells, kv = slots * length, " --kv streams" * (length < USEFUL_CTX)
    if slots < 1:
        return "close other programs, or use a smaller model"
    return f"--ctx-size {n_cells} --parallel {slots}{kv} fits; a q8_0 cache (--cache-type-k, --cache-type-v) takes about half"


def _train(needs: Needs) -> int:
    """The model's own limit as cells."""
    return _padded(needs.n_ctx_train) if needs.n_ctx_train > 0 else WANTED_CTX


def _padded(length: int) -> int:
    return max(PAD, -(-length // PAD) * PAD)


def _slot(needs: Needs, length: int) -> int:
    return max(1, needs.cell_bytes * length + needs.slot_bytes)


def _length(needs: Needs, budget: int, slots: int) -> int:
    """The most cells (a multiple of PAD, possibly 0) that each of `slots` slots can have within a budget."""
    cells = (budget // slots - needs.slot_bytes) // max(1, needs.cell_bytes)
    return max(0, cells // PAD * PAD)


def shown(count: int) -> str:
    """Bytes for people."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
