"""Fixtures of the unit tests around the native library: the real one, with SmolLM2 and a tiny random model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from server.llama.context import Context
from server.llama.model import Model, load_model
from tests import native, tiny


@pytest.fixture(scope="session")
def model(smollm2: Path) -> Iterator[Model]:
    """SmolLM2-135M."""
    native.loaded()
    loaded = load_model(str(smollm2))
    yield loaded
    loaded.close()


@pytest.fixture(scope="session")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_attention(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny_model(tiny_file: Path) -> Iterator[Model]:
    """A random llama with an SPM vocabulary of 320 tokens that begins with BOS."""
    native.loaded()
    loaded = load_model(str(tiny_file))
    yield loaded
    loaded.close()


@pytest.fixture(scope="session")
def decoder(model: Model) -> Iterator[Context]:
    """A context with the logits of the last row (19) of a 20-token prompt; tests only sample from it."""
    with native.context(model) as made:
        made.decode(native.rows(0, model.vocab.tokenize(native.TALE, add_special=True, parse_special=False)[:20]))
        yield made
