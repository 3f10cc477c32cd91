"""Contract: the engine's account of cells is the native cache's, whatever happens in whatever order, and nobody's text is touched.

CAPSULE_FUZZ_SECONDS: how long in all (60 by default; `make soak` takes 600). CAPSULE_FUZZ_SEED: another run of chance.
"""

from __future__ import annotations

import os
import random

import pytest

from server.llama.model import Model
from tests.contract.fuzz import Fuzz, Said, solo
from tests.native import NEAR, context, greedy_distances

SECONDS = float(os.environ.get("CAPSULE_FUZZ_SECONDS", "60"))
SEED = int(os.environ.get("CAPSULE_FUZZ_SEED", "1"))
PARTS = {"streams": 0.2, "pool": 0.2, "recurrent": 0.06, "hybrid": 0.06, "window": 0.08, "smollm2 streams": 0.2, "smollm2 pool": 0.2}
pytestmark = pytest.mark.timeout(max(300, int(10 * SECONDS)))


def run(fuzz: Fuzz, part: str) -> Fuzz:
    fuzz.run(SECONDS * PARTS[part])
    fuzz.finish()
    fuzz.check_ends()
    return fuzz


def sample(fuzz: Fuzz, n: int) -> list[Said]:
    """Some of those that ended by themselves; the longest texts tell most."""
    whole = sorted(fuzz.whole, key=lambda said: -len(said.tokens))
    return whole[: n // 2] + random.Random(SEED).sample(whole[n // 2 :], max(0, min(n - n // 2, len(whole) - n // 2)))


def test_streams_with_a_deterministic_cache_say_what_they_say_alone(tiny_models: dict[str, Model]) -> None:
    """Random weights have flat logits: one wrong bit anywhere shows in the text."""
    model = tiny_models["llama"]
    with context(model, n_ctx=6 * 512, n_slots=6, type_k="q8_0", type_v="q8_0") as decoder:
        fuzz = run(Fuzz(decoder, SEED, n_running=6, spec="ngram"), "streams")
        assert fuzz.engine.stats.n_preemptions > 0 and fuzz.engine.stats.n_shared_tokens > 0
    for said in sample(fuzz, 60):
        assert solo(model, said, "q8_0") == said.tokens


def test_a_pool_that_is_too_small_for_all(tiny_models: dict[str, Model]) -> None:
    model = tiny_models["llama"]
    with context(model, n_ctx=1024, n_slots=24, unified=True) as decoder:
        fuzz = run(Fuzz(decoder, SEED + 1, n_running=8, kv_reserve=0.0, cache_ram=1 << 18), "pool")
        assert fuzz.engine.stats.n_preemptions > 0 and fuzz.engine.stats.n_shared_tokens > 0
    for said in sample(fuzz, 30):
        assert max(greedy_distances(model, said.prompt, said.tokens)) <= NEAR


@pytest.mark.parametrize(("name", "part"), [("mamba", "recurrent"), ("jamba", "hybrid"), ("gemma3", "window")])
def test_models_that_cannot_rewind_freely(tiny_models: dict[str, Model], name: str, part: str) -> None:
    model = tiny_models[name]
    with context(model, n_ctx=4 * 512, n_slots=4) as decoder:
        fuzz = run(Fuzz(decoder, SEED + 2, n_running=4), part)
    for said in sample(fuzz, 30):
        assert max(greedy_distances(model, said.prompt, said.tokens)) <= NEAR


@pytest.mark.parametrize("unified", [False, True], ids=["streams", "pool"])
def test_a_real_model_stays_near_greedy_and_speaks_for_nobody_else(model: Model, unified: bool) -> None:
    sizes = {"n_ctx": 1536, "n_slots": 24, "unified": True} if unified else {"n_ctx": 6 * 512, "n_slots": 6}
    with context(model, **sizes) as decoder:
        options = {"kv_reserve": 0.0} if unified else {"spec": "ngram"}
        fuzz = run(Fuzz(decoder, SEED + 3, n_running=6, **options), "smollm2 pool" if unified else "smollm2 streams")
    chosen = sample(fuzz, 8)
    for said in chosen:
        assert max(greedy_distances(model, said.prompt, said.tokens)) <= NEAR
    # The check would notice another request's words.
    first = chosen[0]
    second = next(said for said in fuzz.whole if len(said.tokens) >= 5 and said.prompt[:30] != first.prompt[:30])
    assert max(greedy_distances(model, first.prompt, second.tokens)) > NEAR
