"""A draft model changes the pace and never the text; it follows whatever texts become, in bounded steps, and fails nobody."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from server.engine.ports import DecodeFault, Draw, Row
from server.errors import OperatorError
from server.llama import draft as module
from server.llama.context import DETERMINISTIC_KV_TYPE
from server.llama.draft import CATCH_UP, Draft, load_draft, vocabulary_problem
from server.llama.model import Model, load_model
from server.protocol import RunnerSettings, SamplingParams
from tests import tiny
from tests.native import NEAR, TALE, context, greedy_distances

N_SLOTS, N_CTX = 4, 512


@pytest.fixture(scope="session")
def another(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights like those of the tiny llama, but others; the same vocabulary."""
    return tiny.write_attention(tmp_path_factory.mktemp("draft") / "another.gguf", n_layers=1, width=96)


def opened(path: Path, target: Model, n_slots: int = N_SLOTS) -> Draft:
    model = load_draft(RunnerSettings(path=target.path, draft_path=str(path)), target)
    assert model is not None
    return Draft(model, target.vocab, n_slots=n_slots, n_ctx_slot=N_CTX, n_threads=lambda: 2)


@pytest.fixture
def daring(lib: Any, tiny_models: dict[str, Model], another: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Draft]:
    """The other random model as draft; it guesses however unlikely it thinks that."""
    monkeypatch.setattr(module, "P_MIN", 1e-9)
    made = opened(another, tiny_models["llama"])
    yield made
    made.close()


def insist(draft: Draft, wanted: list[tuple[int, list[int], int]]) -> list[list[int]]:
    """Ask until there are guesses for all, as must be after a few calls in which texts are read."""
    for _ in range(2 + 2 * N_CTX // CATCH_UP):
        if all(guesses := draft.propose(wanted)):
            return guesses
    raise AssertionError(f"no guesses: {guesses}")


def generate(
    model: Model, draft: Draft | None, prompts: Sequence[list[int]], n_new: int, most: int, **options: Any
) -> tuple[list[list[int]], int, int]:
    """Greedy texts, all at once, with guesses verified; tokens guessed, and of them right."""
    texts, done = [list(prompt) for prompt in prompts], [0] * len(prompts)
    n_guessed = n_right = 0
    with context(model, n_ctx=len(prompts) * N_CTX, n_slots=len(prompts), **options) as decoder:
        samplers = [decoder.sampler(SamplingParams(temperature=0.0, ignore_eos=True)) for _ in prompts]
        while any(len(text) < len(prompt) + n_new for text, prompt in zip(texts, prompts, strict=True)):
            guesses = draft.propose([(slot, text, most) for slot, text in enumerate(texts)]) if draft else [[] for _ in texts]
            rows: list[Row] = []
            draws: list[Draw] = []
            for slot, (text, ahead) in enumerate(zip(texts, guesses, strict=True)):
                assert decoder.truncate(slot, done[slot]) and len(ahead) <= most
                feed = text[done[slot] :] + ahead
                first = len(feed) - 1 - len(ahead)
                draws.append(Draw(samplers[slot], range(len(rows) + first, len(rows) + len(feed)), ahead))
                rows += [Row(slot, done[slot] + i, token, i >= first) for i, token in enumerate(feed)]
            decoder.decode(rows)
            for slot, drawn in enumerate(decoder.draw(draws)):
                assert not isinstance(drawn, Exception)
                done[slot] = len(texts[slot]) + len(drawn) - 1
                texts[slot] += [token for token, _ in drawn]
                n_guessed += len(guesses[slot])
                n_right += len(drawn) - 1
    return [text[len(prompt) : len(prompt) + n_new] for text, prompt in zip(texts, prompts, strict=True)], n_guessed, n_right


def test_a_model_is_its_own_best_draft(model: Model, smollm2: Path) -> None:
    words = model.vocab.tokenize(TALE, add_special=True, parse_special=False)
    draft = opened(smollm2, model)
    prompts = [words[:8], words[:20], words[3:12]]
    texts, n_guessed, n_right = generate(model, draft, prompts, 24, 5)
    draft.close()
    assert n_guessed > 20 and n_right >= 0.95 * n_guessed
    for prompt, text in zip(prompts, texts, strict=True):
        assert max(greedy_distances(model, prompt, text)) < NEAR


def test_a_useless_draft_leaves_the_text_as_it_is(tiny_models: dict[str, Model], daring: Draft) -> None:
    model = tiny_models["llama"]
    prompts = [[5, 6, 7], [40, 50], [9] * 10, [100]]
    same_bits = {"type_k": DETERMINISTIC_KV_TYPE, "type_v": DETERMINISTIC_KV_TYPE}
    texts, n_guessed, n_right = generate(model, daring, prompts, 40, 4, **same_bits)
    assert n_guessed > 300 and n_right < 0.1 * n_guessed
    assert texts == generate(model, None, prompts, 40, 4, **same_bits)[0]


def test_it_follows_whatever_a_text_becomes(tiny_models: dict[str, Model], another: Path, daring: Draft) -> None:
    """Texts grow, are cut, change in the middle, move to another slot or are new: the guesses are those of a draft that starts afresh."""
    source = random.Random(5)
    fresh = opened(another, tiny_models["llama"], n_slots=1)
    texts = [[source.randrange(3, 320) for _ in range(9)] for _ in range(N_SLOTS)]
    for _ in range(25):
        index = source.randrange(N_SLOTS)
        at = source.randrange(1, 1 + len(texts[index]))
        tail = [source.randrange(3, 320) for _ in range(source.randrange(1, 6))]
        texts[index] = source.choice([texts[index] + tail, texts[index][:at], texts[index][:at] + tail, tail])
        source.shuffle(texts)
        asked = source.sample(range(N_SLOTS), source.randrange(1, N_SLOTS + 1))
        guesses = insist(daring, [(slot, texts[slot], 3) for slot in asked])
        assert guesses == [insist(fresh, [(0, texts[slot], 3)])[0] for slot in asked]
    fresh.close()


def test_nothing_is_guessed_that_is_unlikely(tiny_models: dict[str, Model], daring: Draft, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "P_MIN", 1.0)
    assert daring.propose([(0, [5, 6, 7], 4)]) == [[]]
    monkeypatch.setattr(module, "P_MIN", 1e-9)
    assert [len(guess) for guess in daring.propose([(0, [5, 6, 7], 4), (1, [8], 0), (2, [9], 1)])] == [4, 0, 1]


def test_a_long_text_is_caught_up_with_over_several_calls(daring: Draft, monkeypatch: pytest.MonkeyPatch) -> None:
    """In turns with those who have little to catch up with; no call does both."""
    sizes: list[int] = []
    decode = daring._context.decode

    def watched(rows: Sequence[Row]) -> None:
        sizes.append(len(rows))
        decode(rows)

    monkeypatch.setattr(daring._context, "decode", watched)
    long, short = [3 + i % 300 for i in range(3 * CATCH_UP)], [7, 8, 9]
    guesses = [daring.propose([(0, long, 2), (1, short, 2)]) for _ in range(8)]
    assert [len(guess) for guess, _ in guesses] == [0, 0, 0, 0, 0, 2, 2, 2]
    assert [len(guess) for _, guess in guesses] == [0, 2, 0, 2, 0, 2, 2, 2]
    assert max(sizes) <= CATCH_UP and sum(sizes) < len(long) + 30


def test_what_it_cannot_guess_for_gets_no_guess(daring: Draft) -> None:
    full, nearly = [3] * (N_CTX + 1), [3] * (N_CTX - 1)
    assert daring.propose([(0, full, 4), (1, [], 4), (2, [5, 6], 4)])[:2] == [[], []]
    guesses = insist(daring, [(0, nearly, 4), (2, [5, 6], 4)])
    assert [len(guess) for guess in guesses] == [2, 4], "no further than the slot reaches"
    assert daring.propose([(0, [5, 10_000], 4), (2, [5, 6], 4)]) == [[], guesses[1]], "a token that only the large model has"


def test_failures_are_nobodys_trouble(daring: Draft, monkeypatch: pytest.MonkeyPatch) -> None:
    before = daring.propose([(0, [5, 6, 7], 3), (1, [8, 9], 3)])
    decode, calls = daring._context.decode, 0

    def fail(rows: Sequence[Row]) -> None:
        nonlocal calls
        calls += 1
        raise DecodeFault(2, "broken", restored=False)

    monkeypatch.setattr(daring._context, "decode", fail)
    assert daring.propose([(0, [5, 6, 7], 3), (1, [8, 9], 3)]) == [[], []]
    monkeypatch.setattr(daring._context, "decode", decode)
    assert daring.propose([(0, [5, 6, 7], 3), (1, [8, 9], 3)]) == before, "it starts again"
    monkeypatch.setattr(daring._context, "decode", fail)
    for _ in range(9):
        assert daring.propose([(0, [5, 6, 7], 3)]) == [[]]
    assert calls == 1 + module.MAX_FAILURES, "where it fails again and again it costs nothing any more"


def _with(path: Path, old: bytes, new: bytes) -> Path:
    content = path.read_bytes()
    assert content.count(old) == 1 and len(old) == len(new)
    changed = path.with_name(f"changed-{new.hex()[:40]}.gguf")
    changed.write_bytes(content.replace(old, new))
    return changed


def test_vocabularies_are_compared_wholly(tiny_models: dict[str, Model], another: Path, model: Model, tmp_path: Path) -> None:
    target = tiny_models["llama"]
    eos = b"tokenizer.ggml.eos_token_id\x04\0\0\0"
    padded = tiny.write_attention(tmp_path / "padded.gguf", n_layers=1, n_vocab=400)
    for path, problem in (
        (another, ""),
        (padded, ""),
        (_with(another, "▁w60".encode(), "▁x60".encode()), "token 319 is '▁x60', the model's is '▁w60'"),
        (_with(another, eos + b"\2", eos + b"\1"), "end of a text is 1, the model's is 2"),
    ):
        other = load_model(str(path))
        found = vocabulary_problem(target.vocab, other.vocab)
        other.close()
        assert (problem in found) if problem else found == ""
    assert "49152" in vocabulary_problem(target.vocab, model.vocab)


def test_a_draft_that_does_not_fit_is_the_operators_mistake(
    tiny_models: dict[str, Model], tiny_files: dict[str, Path], smollm2: Path
) -> None:
    target = tiny_models["llama"]
    assert load_draft(RunnerSettings(path="x"), target) is None
    for path, words in ((smollm2, "does not fit"), (tiny_files["mamba"], "take back"), (Path("/nowhere.gguf"), "/nowhere.gguf")):
        with pytest.raises(OperatorError, match=words):
            load_draft(RunnerSettings(path="x", draft_path=str(path)), target)


def test_padded_vocabularies_work_both_ways(tiny_models: dict[str, Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A larger draft never proposes what the model has not."""
    monkeypatch.setattr(module, "P_MIN", 1e-9)
    padded = opened(tiny.write_attention(tmp_path / "padded.gguf", n_layers=1, n_vocab=400), tiny_models["llama"])
    guesses = [padded.propose([(0, [3 + at], 3)])[0] for at in range(40)]
    padded.close()
    assert any(guesses) and all(token < 320 for guess in guesses for token in guess)
