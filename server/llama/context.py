"""The KV cache and the forward pass of one model; implements `engine.ports.Decoder`. A stream of cells per slot, or one pool for all.

Used from one thread. Knows token ids, slots and positions; nothing about requests, text or time.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

from server.engine.ports import DecodeFault, Draw, Drawn, Matcher, Row, State
from server.errors import OperatorError
from server.llama.draws import DrawPool, side_by_side
from server.llama.library import messages, native, reason
from server.llama.matcher import GrammarMatcher
from server.llama.model import Model
from server.llama.sampler import ChainSampler, LogprobReader
from server.protocol import SamplingParams

KV_TYPES: dict[str, tuple[int, float]] = {
    "f32": (0, 4.0),
    "f16": (1, 2.0),
    "bf16": (30, 2.0),
    "q8_0": (8, 34 / 32),
    "q5_1": (7, 24 / 32),
    "q5_0": (6, 22 / 32),
    "q4_1": (3, 20 / 32),
    "q4_0": (2, 18 / 32),
    "iq4_nl": (20, 18 / 32),
}
"""KV cache types by name: ggml's number and bytes per value."""

DETERMINISTIC_KV_TYPE = "q8_0"
"""With this type every attention path gives the same bits, so a request says the same alone or in a crowd."""

_FLASH_ATTENTION_ON = 1
_COPY_BYTES = 64 << 20
"""Largest copy between streams that goes through host memory."""
_FAULTS = {1: "there is no room in the KV cache", 2: "the computation was aborted", -1: "the batch is invalid"}


def output_rows(n_running: int) -> int:
    """Rows of one step that may want logits where `n_running` sequences are decoded at once: guesses are checked several rows each.

    Two float32 rows of the vocabulary are reserved for each, 1.2 MB with 150,000 tokens.
    """
    return max(64, n_running, min(4 * n_running, 256))


def kv_type(name: str) -> str:
    """The name in lower case.

    Raises:
        OperatorError: no KV cache can be of that type.
    """
    if name.lower() not in KV_TYPES:
        raise OperatorError(f'"{name}" is no type for a KV cache', hint=f"use one of: {', '.join(KV_TYPES)}")
    return name.lower()


class SavedState:
    """One slot's cells in host memory, in the library's own format."""

    __slots__ = ("data", "n_bytes")

    def __init__(self, data: Any, n_bytes: int) -> None:
        self.data = data
        self.n_bytes = n_bytes


class Context:
    """`n_ctx` cells in all, shared out evenly over `n_slots`; the library rounds a slot up to a multiple of 256.

    `unified`: one pool of `n_ctx` cells on which all slots draw; of the slots no more than `n_running` are decoded at once.

    `swa_full` False: layers with a sliding window keep little more than the window, and a slot cannot rewind past it.

    Raises:
        OperatorError: the library refuses these sizes or types, or memory is short.
    """

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int,
        n_slots: int,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        n_threads: int = 1,
        type_k: str = "f16",
        type_v: str = "f16",
        swa_full: bool = True,
        unified: bool = False,
        n_running: int | None = None,
    ) -> None:
        n = self._n = native()
        params = n.llama_context_default_params()
        params.n_ctx, params.n_seq_max = n_ctx, n_slots
        params.n_batch, params.n_ubatch = n_batch, n_ubatch
        # The planner keeps to it; the default (n_batch) would reserve logits for every row. More rows than that, or more slots, abort.
        params.n_outputs_max = max(output_rows(n_running or n_slots), n_slots)
        params.n_threads = params.n_threads_batch = n_threads
        params.flash_attn_type = _FLASH_ATTENTION_ON
        params.type_k, params.type_v = KV_TYPES[kv_type(type_k)][0], KV_TYPES[kv_type(type_v)][0]
        params.kv_unified = unified
        params.swa_full = swa_full
        params.no_perf = True
        with messages.collect() as lines:
            handle: int | None = n.llama_init_from_model(model.handle, params)
        if not handle:
            raise OperatorError(
                f"a context of {n_ctx} tokens for {n_slots} slots cannot be made: {reason(lines) or 'the native library gave no reason'}",
                hint="use a smaller --ctx-size or --parallel, or other --cache-type-k and --cache-type-v",
            )
        self.handle = handle
        self.model = model
        self._memory = n.llama_get_memory(handle)
        self._n_slots, self._n_vocab, self._n_swa = n_slots, model.vocab.n_vocab, model.n_swa
        self._n_batch, self._n_ubatch = int(n.llama_n_batch(handle)), int(n.llama_n_ubatch(handle))
        self._n_ctx_slot = int(n.llama_n_ctx_seq(handle))
        if unified and model.n_ctx_train > 0:
            self._n_ctx_slot = min(self._n_ctx_slot, model.n_ctx_train)
        self._max_output_rows = min(int(params.n_outputs_max), self._n_batch)
        self.unified, self.n_cells = unified, int(n.llama_n_ctx(handle))
        self._logprobs = LogprobReader(model.vocab)
        self._drawing = DrawPool(model.vocab.n_vocab)
        self._side_by_side = side_by_side(model.devices)
        self._n_rows = 0
        self._pending: set[int] = set()
        """Streams that a copy is made from or into with the next decode."""
        self._scratch: Any = None
        self._make_batch()
        self.can_rewind = not (model.is_recurrent or model.n_swa) or self._rewinds()
        """False: `truncate` can only keep everything or nothing."""

    def _make_batch(self) -> None:
        """One llama_batch whose arrays live as long as the context; each row's sequence list is one entry of `_slots`."""
        size = self._n_batch
        self._tokens = (ctypes.c_int32 * size)()
        self._positions = (ctypes.c_int32 * size)()
        self._slots = (ctypes.c_int32 * size)()
        self._outputs = (ctypes.c_int8 * size)()
        self._ones = (ctypes.c_int32 * size)(*[1] * size)
        address, pointer = ctypes.addressof(self._slots), ctypes.POINTER(ctypes.c_int32)
        entries = [ctypes.cast(address + 4 * index, pointer) for index in range(size)]
        self._slot_lists = (pointer * size)(*entries)
        cast = ctypes.cast
        self._batch = self._n.llama_batch(
            0,
            cast(self._tokens, pointer),
            None,
            cast(self._positions, pointer),
            cast(self._ones, pointer),
            cast(self._slot_lists, ctypes.POINTER(pointer)),
            cast(self._outputs, ctypes.POINTER(ctypes.c_int8)),
        )

    def close(self) -> None:
        """Free the cache. Samplers must be closed before or never used again."""
        if self.handle:
            self._drawing.close()
            self._logprobs.close()
            self._n.llama_free(self.handle)
            self.handle = 0

    # ---- sizes -----------------------------------------------------------------------------------------------------

    @property
    def n_slots(self) -> int:
        return self._n_slots

    @property
    def n_ctx_slot(self) -> int:
        """Cells one slot can hold."""
        return self._n_ctx_slot

    @property
    def n_batch(self) -> int:
        return self._n_batch

    @property
    def n_ubatch(self) -> int:
        return self._n_ubatch

    @property
    def max_output_rows(self) -> int:
        return self._max_output_rows

    @property
    def n_threads(self) -> int:
        return int(self._n.llama_n_threads(self.handle))

    @n_threads.setter
    def n_threads(self, count: int) -> None:
        """For the next decode on; costs microseconds."""
        self._n.llama_set_n_threads(self.handle, count, count)

    # ---- the forward pass ------------------------------------------------------------------------------------------

    def decode(self, rows: Sequence[Row]) -> None:
        """Run one forward pass. Rows come sorted by slot, then position; positions of a slot follow its cells without a gap.

        Raises:
            DecodeFault: the batch was not (wholly) processed. Unless it is `restored`, ask `n_tokens` what is left.
        """
        self._n_rows = 0
        count = len(rows)
        self._check(rows)
        self._tokens[:count] = [row.token for row in rows]
        self._positions[:count] = [row.pos for row in rows]
        self._slots[:count] = [row.slot for row in rows]
        self._outputs[:count] = [row.logits for row in rows]
        self._batch.n_tokens = count
        code: int = self._n.llama_decode(self.handle, self._batch)
        if code != -1:
            self._pending.clear()
        if code:
            raise DecodeFault(code, _FAULTS.get(code, f"the native decode failed with {code}"), restored=code in (1, -1))
        self._n_rows = count

    def _check(self, rows: Sequence[Row]) -> None:
        """What native code would answer by aborting the process, by a hole in the cache, or by refusing everybody for one bad row."""
        if not 0 < len(rows) <= self._n_batch:
            raise DecodeFault(-1, f"a batch of {len(rows)} rows; 1 to {self._n_batch} are possible", restored=True)
        outputs, slot, expected = 0, -1, 0
        for row in rows:
            if row.slot != slot:
                if not slot < row.slot < self._n_slots:
                    raise DecodeFault(-1, f"slot {row.slot} is out of range or out of order", restored=True)
                slot, expected = row.slot, self.n_tokens(row.slot)
            if row.pos != expected or not 0 <= row.token < self._n_vocab:
                message = f"token {row.token} at position {row.pos} of slot {slot}, where position {expected} comes next"
                raise DecodeFault(-1, message, restored=True)
            expected += 1
            outputs += row.logits
        if outputs > self._max_output_rows:
            raise DecodeFault(-1, f"{outputs} rows want logits; {self._max_output_rows} are possible", restored=True)

    def logits(self, row: int) -> Any:
        """A float pointer to the `n_vocab` logits of a row of the last decode; valid until the next one.

        Raises:
            ValueError: that row asked for no logits.
        """
        if not 0 <= row < self._n_rows or not self._outputs[row]:
            raise ValueError(f"row {row} of the last decode has no logits")
        return self._n.llama_get_logits_ith(self.handle, row)

    def truncate(self, slot: int, n_tokens: int) -> bool:
        """Keep the first `n_tokens` cells of a slot. False = the model cannot rewind there (the slot is then cleared)."""
        present = self.n_tokens(slot)
        if n_tokens >= present:
            return n_tokens == present
        if n_tokens > 0 and not self._lost(slot, n_tokens) and self._n.llama_memory_seq_rm(self._memory, slot, n_tokens, -1):
            return True
        self._n.llama_memory_seq_rm(self._memory, slot, -1, -1)
        return n_tokens <= 0

    def _lost(self, slot: int, n_tokens: int) -> bool:
        """Whether a sliding window has moved on, or was saved without what lies before it: a token at position `n_tokens` would look at
        cells that are gone. The library does not tell."""
        return self._n_swa > 0 and self._n.llama_memory_seq_pos_min(self._memory, slot) > max(0, n_tokens - self._n_swa + 1)

    def _rewinds(self) -> bool:
        """Try it: of two tokens one is taken back, and the other has to be left. Headers do not tell for every architecture."""
        try:
            for position in range(2):
                self.decode([Row(0, position, 0, False)])
        except DecodeFault:
            return False
        left = self.n_tokens(0) if self._n.llama_memory_seq_rm(self._memory, 0, 1, -1) else 0
        self._n.llama_memory_seq_rm(self._memory, 0, -1, -1)
        return left == 1

    def n_tokens(self, slot: int) -> int:
        """Cells the native cache holds for this slot; 0 = empty."""
        if not 0 <= slot < self._n_slots:
            raise ValueError(f"there is no slot {slot}")
        return int(self._n.llama_memory_seq_pos_max(self._memory, slot)) + 1

    # ---- copies and saved states ------------------------------------------------------------------------------------

    def copy(self, source: int, target: int, n_tokens: int) -> bool:
        """The first `n_tokens` cells of `source` become the whole content of `target`; what was there is dropped.

        In a pool they are shared, for nothing. Between streams they go through host memory, 7 ms per 1,024 tokens of a small model.
        The library's own copy takes the whole stream, used or not (17 ms more for 4,096 cells of the same model), and takes it in the
        next decode; it is used where the cells are too many for host memory, or where a saved state lacks what lies before a sliding
        window. False = not possible (a model that cannot rewind, asked for a part; a window that has moved on); `target` is then empty.
        """
        self.truncate(target, 0)
        present = self.n_tokens(source)
        if n_tokens <= 0:
            return True
        if n_tokens > present or (n_tokens < present and (not self.can_rewind or self._lost(source, n_tokens))):
            return False
        if self.unified:
            end = -1 if n_tokens == present else n_tokens
            self._n.llama_memory_seq_cp(self._memory, source, target, -1, end)
            return self.n_tokens(target) == n_tokens
        size = self.state_bytes(source)
        incomplete = self.can_rewind and 0 < self._n_swa < present
        if size > _COPY_BYTES or incomplete or not self._pending.isdisjoint((source, target)):
            self._n.llama_memory_seq_cp(self._memory, source, target, -1, -1)
            self._pending |= {source, target}
        else:
            if self._scratch is None:
                # Pages that are touched once stay: making them anew each time takes longer than the copy.
                self._scratch = (ctypes.c_uint8 * _COPY_BYTES).from_buffer(mmap.mmap(-1, _COPY_BYTES))
            if not self._read(target, self._scratch, self._write(source, self._scratch, size)):
                return False
        return self.truncate(target, n_tokens)

    def _settle(self, slot: int) -> bool:
        """Have copies made that wait for the next decode, if the slot has part in any: one more token, which is taken back, brings it
        about. False = it could not be."""
        if slot not in self._pending:
            return True
        present = self.n_tokens(slot)
        if present and not self.can_rewind:
            return False
        try:
            self.decode([Row(slot, present, 0, False)])
        except DecodeFault:
            return False
        return self.truncate(slot, present)

    def _write(self, slot: int, data: Any, size: int) -> int:
        return int(self._n.llama_state_seq_get_data(self.handle, data, size, slot))

    def _read(self, slot: int, data: Any, size: int) -> bool:
        """Fill an empty slot; False = it is still empty."""
        with messages.collect():  # that there is no room is no news
            read = int(self._n.llama_state_seq_set_data(self.handle, data, size, slot))
        if not read:
            self._n.llama_memory_seq_rm(self._memory, slot, -1, -1)
        return bool(read)

    def state_bytes(self, slot: int) -> int:
        """What `save` would take, bytes."""
        return int(self._n.llama_state_seq_get_size(self.handle, slot))

    def save(self, slot: int) -> SavedState | None:
        """The slot's cells as they are, in host memory; the slot keeps them. None = it cannot be saved."""
        if not self._settle(slot):
            return None
        size = self.state_bytes(slot)
        try:
            data = (ctypes.c_uint8 * size)()
        except MemoryError:
            return None
        written = self._write(slot, data, size)
        return SavedState(data, written) if written else None

    def restore(self, slot: int, state: State) -> bool:
        """The slot's whole content becomes what was saved, to the bit. False = no room, or not this model's; the slot is then empty."""
        self.truncate(slot, 0)
        return isinstance(state, SavedState) and self._settle(slot) and self._read(slot, state.data, state.n_bytes)

    def draw(self, draws: Sequence[Draw]) -> list[Drawn | Exception]:
        """Draw tokens from the logits of the last decode, for several sequences side by side. Result i belongs to draw i."""
        self._n.llama_get_logits(self.handle)  # waits and puts the rows in order, once for all threads
        return self._drawing.draw(draws, self.n_threads if self._side_by_side else 1)

    def sampler(self, params: SamplingParams, matcher: Matcher | None = None) -> ChainSampler:
        """Make a sampler chain; with a `matcher`, which becomes the sampler's, it draws what the constraint allows.

        Raises:
            ValueError: the parameters cannot be turned into a chain.
        """
        assert matcher is None or isinstance(matcher, GrammarMatcher)
        return ChainSampler(self, params, self._logprobs, matcher)
