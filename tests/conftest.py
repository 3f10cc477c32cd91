"""Fixtures for all tests: the real weights, fetched once into the cache and checked, so that no test has a reason to skip."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.cache import default_cache_dir
from models.fetch import default_entry, fetch


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The catalog's default model as a plain GGUF file."""
    return fetch(default_entry().name, default_cache_dir())
