"""How many slots, with how many tokens each: a pure function of the model's numbers and the free memory.

Knows no native library. All sizes are bytes, all lengths tokens.

The rule where nothing is asked for: 16 slots of `WANTED_CTX` tokens, within a budget of half of the memory that the weights leave.
A cache is zeroed when it is made, at 1 to 4 GB/s (small or huge pages), so the budget is also no more than the weights or
`ALWAYS_FINE`, whichever is larger: starting never takes much longer for a cache that nobody asked for. If that is too much, slots
get shorter first (not below `MIN_CTX`), then fewer (not below `MIN_SLOTS`); if even that does not fit the memory, the answer is an
error with the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.errors import OperatorError

WANTED_SLOTS, MIN_SLOTS = 16, 4
WANTED_CTX, MIN_CTX = 8192, 2048
ALWAYS_FINE = 1600 << 20
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
    """`n_ctx` = `n_slots` x `n_ctx_slot`; `why` is one sentence for the log."""

    n_slots: int
    n_ctx_slot: int
    cache_bytes: int
    why: str

    @property
    def n_ctx(self) -> int:
        return self.n_slots * self.n_ctx_slot


def layer_cells(n_kv_heads: list[int], key_length: int, value_length: int, key_bytes: float, value_bytes: float) -> int:
    """Bytes of K and V for one token, from the number of KV heads of each layer and the bytes of one cached value."""
    heads = sum(n_kv_heads)
    return int(heads * (key_length * key_bytes + value_length * value_bytes))


def fit(needs: Needs, free_bytes: int, *, ctx_size: int = 0, parallel: int | None = None) -> Fit:
    """Choose slots and context. `ctx_size`: cells in all (0 = choose); `parallel`: slots (None = choose).

    Raises:
        OperatorError: what is asked for, or the least that makes sense, does not fit the memory.
    """
    if parallel is not None and not 1 <= parallel <= needs.max_slots:
        raise OperatorError(f"{parallel} slots are not possible", hint=f"--parallel takes 1 to {needs.max_slots}")
    spare = max(0, free_bytes - needs.weight_bytes)
    if ctx_size > 0:
        found = _requested(needs, ctx_size, parallel)
        return _checked(needs, found, spare, explicit=True)
    budget = min(spare // 2, max(ALWAYS_FINE, needs.total_weight_bytes)) - needs.fixed_bytes
    return _checked(needs, _chosen(needs, budget, parallel), spare, explicit=parallel is not None)


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


def _checked(needs: Needs, found: Fit, spare: int, *, explicit: bool) -> Fit:
    total = found.cache_bytes + needs.fixed_bytes
    if total <= spare * _MARGIN:
        return found
    what = (
        f"{found.n_slots} slot{'s' * (found.n_slots > 1)} of {found.n_ctx_slot} tokens{'' if explicit else ', the least that makes sense,'}"
    )
    room = max(0, int(spare * _MARGIN) - needs.fixed_bytes)
    slots = min(found.n_slots, room // _slot(needs, PAD))
    if slots < 1:
        hint = "close other programs, or use a smaller model"
    else:
        fitting = _length(needs, room, slots)
        hint = f"--ctx-size {slots * fitting} --parallel {slots} fits; a q8_0 cache (--cache-type-k, --cache-type-v) takes about half"
    raise OperatorError(
        f"{what} would take {shown(total)}, but beside the weights ({shown(needs.total_weight_bytes)}) {shown(spare)} are free",
        hint=hint,
    )


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
