"""Servers shared by the end-to-end tests: one ordinary, one deterministic, each started once a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.harness import Server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """16 slots of 2,048 tokens."""
    with Server("--parallel", "16", "--ctx-size", str(16 * 2048)) as running:
        yield running


@pytest.fixture(scope="session")
def deterministic_server() -> Iterator[Server]:
    with Server("--parallel", "16", "--ctx-size", str(16 * 2048), "--deterministic") as running:
        yield running
