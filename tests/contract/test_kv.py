"""Contract: whatever is copied, cut, saved and restored in whatever order, a slot goes on as if it had computed all of it afresh."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from server.engine.ports import DecodeFault, Row, State
from server.llama import context as context_module
from server.llama.context import Context
from server.llama.model import Model
from tests.native import context, logits, rows

FAMILIES = ["llama", "gemma3", "mamba", "jamba"]
MODES = pytest.mark.parametrize("unified", [False, True], ids=["streams", "pool"])
BY_HOST_OR_LIBRARY = pytest.mark.parametrize("copy_bytes", [64 << 20, 0], ids=["host", "library"])
TEXT = [(i * 37) % 300 for i in range(800)]
CLOSE = 0.05
"""Largest difference of logits between two orders of summation; those of another text differ by more than 1."""


def fill(decoder: Context, slot: int, tokens: list[int], start: int = 0, chunk: int = 100) -> None:
    for at in range(0, len(tokens), chunk):
        decoder.decode(rows(slot, tokens[at : at + chunk], start + at))


def following(decoder: Context, slot: int, token: int = 42) -> list[float]:
    """Logits after one more token."""
    decoder.decode(rows(slot, [token], decoder.n_tokens(slot)))
    return logits(decoder, 0)


# ---- one by one ----------------------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("name", FAMILIES)
def test_the_probe_tells_who_can_rewind_and_leaves_nothing_behind(tiny_models: dict[str, Model], name: str, unified: bool) -> None:
    with context(tiny_models[name], unified=unified) as decoder:
        assert decoder.can_rewind == (name in ("llama", "gemma3"))
        assert decoder.n_tokens(0) == 0
        fill(decoder, 0, TEXT[:50])
        assert decoder.truncate(0, 30) == decoder.can_rewind


@MODES
@BY_HOST_OR_LIBRARY
@pytest.mark.parametrize("kind", ["f16", "q8_0"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_copied_part_goes_on_with_the_same_bits(
    tiny_models: dict[str, Model], monkeypatch: pytest.MonkeyPatch, name: str, kind: str, unified: bool, copy_bytes: int
) -> None:
    monkeypatch.setattr(context_module, "_COPY_BYTES", copy_bytes)
    with context(tiny_models[name], n_ctx=2048, type_k=kind, type_v=kind, unified=unified) as decoder:
        fill(decoder, 0, TEXT[:500])
        fill(decoder, 1, TEXT[500:600])
        assert decoder.copy(0, 1, 300) and (decoder.n_tokens(0), decoder.n_tokens(1)) == (500, 300)
        copied = following(decoder, 1)
        assert decoder.truncate(0, 300)
        if unified:
            decoder.truncate(1, 0)  # so that as many cells are looked through
        assert following(decoder, 0) == copied


def test_a_copy_of_a_copy_that_waits_for_the_next_decode(tiny_models: dict[str, Model]) -> None:
    """Too long for a window to be saved, the first goes the library's way; the second would fit through host memory."""
    with context(tiny_models["gemma3"], n_ctx=2048, n_slots=4) as decoder:
        fill(decoder, 0, TEXT[:500])
        assert decoder.copy(0, 1, 40) and decoder.copy(1, 2, 30)
        state = decoder.save(2)
        assert state is not None and decoder.restore(3, state)
        fill(decoder, 0, TEXT[500:510], 500)
        assert decoder.truncate(0, 30) and decoder.truncate(1, 30)
        assert following(decoder, 0) == following(decoder, 1) == following(decoder, 2) == following(decoder, 3)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_a_whole_copy_and_a_restored_state_go_on_with_the_same_bits(tiny_models: dict[str, Model], name: str, kind: str) -> None:
    with context(tiny_models[name], n_ctx=2048, n_slots=4, type_k=kind, type_v=kind) as decoder:
        fill(decoder, 0, TEXT[:500])
        state = decoder.save(0)
        assert state is not None and state.n_bytes == decoder.state_bytes(0)
        assert decoder.copy(0, 1, 500)
        original = following(decoder, 0)
        assert following(decoder, 1) == original
        fill(decoder, 2, TEXT[100:200])
        assert decoder.restore(2, state) and decoder.n_tokens(2) == 500
        assert following(decoder, 2) == original
        decoder.truncate(0, 0)
        assert decoder.restore(0, state) and following(decoder, 0) == original, "a state can be restored again"


@pytest.mark.parametrize("name", ["mamba", "jamba"])
@MODES
def test_what_cannot_rewind_is_copied_whole_or_not_at_all(tiny_models: dict[str, Model], name: str, unified: bool) -> None:
    with context(tiny_models[name], n_ctx=1024, unified=unified) as decoder:
        fill(decoder, 0, TEXT[:200])
        fill(decoder, 1, TEXT[:50])
        assert not decoder.copy(0, 1, 150) and decoder.n_tokens(1) == 0
        assert decoder.copy(0, 1, 200) and decoder.n_tokens(1) == 200
        assert following(decoder, 1) == pytest.approx(following(decoder, 0), abs=CLOSE)


@MODES
def test_a_window_that_was_saved_is_not_rewound_behind_itself(tiny_models: dict[str, Model], unified: bool) -> None:
    """A saved state holds the window alone, also where the cache holds everything; seq_rm and seq_cp do not mind."""
    model = tiny_models["gemma3"]
    with context(model, n_ctx=2048, n_slots=2, unified=unified) as decoder:
        fill(decoder, 0, TEXT[:500])
        state = decoder.save(0)
        assert state is not None
        assert decoder.restore(0, state) and decoder.copy(0, 1, 499), "the last token may be evaluated again"
        assert not decoder.copy(0, 1, 480) and decoder.n_tokens(1) == 0
        assert decoder.truncate(0, 499) and not decoder.truncate(0, 480) and decoder.n_tokens(0) == 0


def test_a_small_window_copies_only_what_it_still_has(tiny_models: dict[str, Model]) -> None:
    with context(tiny_models["gemma3"], n_ctx=2048, n_batch=128, n_ubatch=128, swa_full=False) as decoder:
        fill(decoder, 0, TEXT)
        assert not decoder.copy(0, 1, 300) and decoder.n_tokens(1) == 0
        assert decoder.copy(0, 1, 790)
        copied = following(decoder, 1)
        assert decoder.truncate(0, 790) and following(decoder, 0) == copied


# ---- the pool ------------------------------------------------------------------------------------------------------


def test_copies_in_a_pool_share_cells_and_a_full_pool_says_so(tiny_models: dict[str, Model]) -> None:
    with context(tiny_models["llama"], n_ctx=1024, n_slots=40, n_running=4, unified=True) as decoder:
        fill(decoder, 0, TEXT[:600])
        for slot in range(1, 40):
            assert decoder.copy(0, slot, 600)
        fill(decoder, 1, TEXT[:400], 600)
        with pytest.raises(DecodeFault) as caught:
            fill(decoder, 2, TEXT[:100], 600)
        assert (caught.value.code, caught.value.restored) == (1, True)
        assert [decoder.n_tokens(slot) for slot in (0, 1, 2, 39)] == [600, 1000, 600, 600]
        state = decoder.save(1)
        assert state is not None and not decoder.restore(2, state) and decoder.n_tokens(2) == 0
        assert decoder.truncate(1, 0) and decoder.restore(2, state) is False, "600 are still held by others"
        for slot in range(40):
            decoder.truncate(slot, 0)
        assert decoder.restore(2, state) and decoder.n_tokens(2) == 1000


def test_a_request_in_a_pool_may_be_as_long_as_the_model_was_trained_for(tiny_models: dict[str, Model]) -> None:
    for n_ctx, expected in ((8192, 4096), (1024, 1024)):
        with context(tiny_models["llama"], n_ctx=n_ctx, unified=True) as decoder:
            assert (decoder.n_cells, decoder.n_ctx_slot) == (n_ctx, expected)


@pytest.mark.parametrize(("n_slots", "n_running", "least"), [(200, 4, 64), (256, 64, 256), (48, 16, 64), (33, 1, 64)])
def test_every_slot_of_a_pool_can_be_decoded_with_logits(tiny_models: dict[str, Model], n_slots: int, n_running: int, least: int) -> None:
    """The library aborts where it has more sequences than rows for outputs."""
    with context(tiny_models["llama"], n_ctx=1024, n_slots=n_slots, n_running=n_running, unified=True) as decoder:
        assert decoder.max_output_rows >= max(least, n_slots)
        decoder.decode([Row(slot, 0, 7, True) for slot in range(n_slots)])
        assert decoder.truncate(0, 0)
        decoder.decode([Row(0, position, 7, True) for position in range(decoder.max_output_rows)])
        assert len(logits(decoder, decoder.max_output_rows - 1)) == 320


# ---- in any order --------------------------------------------------------------------------------------------------


@dataclass
class Shuffle:
    """Random calls, and what every slot and saved state ought to hold after them."""

    decoder: Context
    random: random.Random
    texts: list[list[int]]
    saved: list[tuple[State, list[int]]] = field(default_factory=list)
    n_done: dict[str, int] = field(default_factory=dict)

    def step(self) -> None:
        choice = self.random.choice(["extend", "extend", "copy", "copy", "truncate", "save", "restore"])
        slot, other = self.random.sample(range(len(self.texts)), 2)
        if getattr(self, choice)(slot, other):
            self.n_done[choice] = self.n_done.get(choice, 0) + 1
        assert [self.decoder.n_tokens(index) for index in range(len(self.texts))] == [len(text) for text in self.texts]

    def extend(self, slot: int, other: int) -> bool:
        """Two slots in one batch."""
        news = {}
        for index in sorted((slot, other)):
            room = self.decoder.n_ctx_slot - 1 - len(self.texts[index])
            news[index] = [self.random.randrange(3, 300) for _ in range(min(room, self.random.randrange(60)))]
        batch = [row for index, new in news.items() for row in rows(index, new, len(self.texts[index]))]
        if batch:
            try:
                self.decoder.decode(batch)
            except DecodeFault as fault:
                assert fault.restored and self.decoder.unified
                return False
            for index, new in news.items():
                self.texts[index] += new
        return True

    def copy(self, slot: int, other: int) -> bool:
        length = self.random.randint(0, len(self.texts[slot]))
        if self.random.random() < 0.5:
            length = len(self.texts[slot])
        done = self.decoder.copy(slot, other, length)
        self.texts[other] = self.texts[slot][:length] if done else []
        assert done or 0 < length < len(self.texts[slot])
        return done

    def truncate(self, slot: int, other: int) -> bool:
        length = self.random.randint(0, len(self.texts[slot]))
        done = self.decoder.truncate(slot, length)
        self.texts[slot] = self.texts[slot][:length] if done else []
        return done

    def save(self, slot: int, other: int) -> bool:
        state = self.decoder.save(slot) if self.texts[slot] else None
        if state is not None:
            self.saved = [*self.saved[-3:], (state, list(self.texts[slot]))]
        return state is not None

    def restore(self, slot: int, other: int) -> bool:
        if not self.saved:
            return False
        state, text = self.random.choice(self.saved)
        done = self.decoder.restore(slot, state)
        assert done or self.decoder.unified
        self.texts[slot] = list(text) if done else []
        return done


@MODES
@BY_HOST_OR_LIBRARY
@pytest.mark.parametrize("name", FAMILIES)
def test_in_any_order_every_slot_goes_on_like_a_fresh_run(
    tiny_models: dict[str, Model], monkeypatch: pytest.MonkeyPatch, name: str, unified: bool, copy_bytes: int
) -> None:
    monkeypatch.setattr(context_module, "_COPY_BYTES", copy_bytes)
    model = tiny_models[name]
    with context(model, n_ctx=4 * 512, n_slots=4, unified=unified) as decoder:
        shuffle = Shuffle(decoder, random.Random(name + str(unified)), [[] for _ in range(4)])
        for _ in range(12):
            for _ in range(15):
                shuffle.step()
            for slot, text in enumerate(shuffle.texts):
                if not text or len(text) >= decoder.n_ctx_slot:
                    continue
                try:
                    found = following(decoder, slot)
                except DecodeFault:
                    assert unified
                    continue
                text.append(42)
                with context(model, n_ctx=len(text), n_slots=1) as alone:
                    fill(alone, 0, text, chunk=512)
                    assert found == pytest.approx(logits(alone, (len(text) - 1) % 512), abs=CLOSE)
    assert all(shuffle.n_done.get(choice, 0) > 3 for choice in ("extend", "copy", "truncate", "save", "restore")), shuffle.n_done
