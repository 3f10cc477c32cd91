"""Fixtures of the contract tests: the real library with a real model, loaded once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.llama.model import Model, load_model
from tests import native, tiny


@pytest.fixture(scope="session")
def lib() -> Any:
    """The ctypes bindings with a CPU library loaded."""
    return native.loaded()


@pytest.fixture(scope="session")
def model(lib: Any, smollm2: Path) -> Iterator[Model]:
    """SmolLM2-135M."""
    loaded = load_model(str(smollm2))
    yield loaded
    loaded.close()


@pytest.fixture(scope="session")
def tiny_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Random models: llama, the same in parts, gemma3 (window of 64), mamba, jamba (mamba and attention in turns)."""
    directory = tmp_path_factory.mktemp("tiny")
    return {
        "llama": tiny.write_attention(directory / "llama.gguf"),
        "split": tiny.write_attention(directory / "split.gguf", split=8),
        "gemma3": tiny.write_attention(directory / "gemma3.gguf", "gemma3", window=64, n_layers=6),
        "mamba": tiny.write_recurrent(directory / "mamba.gguf"),
        "jamba": tiny.write_recurrent(directory / "jamba.gguf", "jamba"),
    }


@pytest.fixture(scope="session")
def tiny_models(lib: Any, tiny_files: dict[str, Path]) -> Iterator[dict[str, Model]]:
    models = {name: load_model(str(path)) for name, path in tiny_files.items()}
    yield models
    for loaded in models.values():
        loaded.close()
