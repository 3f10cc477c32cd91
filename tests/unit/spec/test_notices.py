"""The notices name every component that is frozen and hold each licence text once; an unknown licence stops the build."""

from __future__ import annotations

from pathlib import Path

import pytest

from spec.environment import BuildError
from spec.frozen import BINDINGS, excluded, hidden_imports, libraries, python_modules
from spec.notices import Frozen, render

PURE = Path("/opt/python/json/__init__.py")


def test_every_component_is_named_and_texts_stand_once() -> None:
    text = render(Frozen(distributions=["aiohttp", "multidict", "Jinja2"], libraries=[Path("/lib/libgomp.so.1")]))
    head, _, bodies = text.partition("=" * 100)
    for name in (
        "Capsule",
        "SmolLM2",
        "llama.cpp",
        "llama-cpp-python",
        "Python 3",
        "PyInstaller",
        "aiohttp",
        "multidict",
        "Jinja2",
        "libgomp.so.1",
    ):
        assert name in head and name in bodies, name
    for words in ("The ggml authors", "Mozilla Foundation", "Yann Collet", "PYTHON SOFTWARE FOUNDATION LICENSE", "Bootloader Exception"):
        assert words in bodies, words
    assert text.count("Apache License\n                           Version 2.0") < 5, "the same text stands there several times"
    assert "is the same as that of" in bodies


def test_a_library_of_unknown_licence_stops_the_build() -> None:
    with pytest.raises(BuildError, match="libmystery"):
        render(Frozen(distributions=[], libraries=[Path("/lib/libmystery.so.3")]))


def test_a_library_is_frozen_in_one_place(tmp_path: Path) -> None:
    place = "llama_cpp/lib/libggml.so"
    table = [(place, "/bin/sh", "BINARY"), ("libggml.so", place, "SYMLINK"), ("libz.so.1", "/bin/sh", "BINARY")]
    assert [entry[0] for entry in libraries(table, tmp_path)] == [place, "libz.so.1"]
    with pytest.raises(BuildError, match="libz.so.1"):
        libraries([*table, ("deeper/libz.so.1", "/bin/sh", "BINARY")], tmp_path)
    with pytest.raises(BuildError, match="GPL"):
        libraries([("libreadline.so.8", "/bin/sh", "BINARY")], tmp_path)


def test_only_locked_packages_are_frozen(tmp_path: Path) -> None:
    import aiohttp
    import hypothesis

    good = ("aiohttp", aiohttp.__file__, "PYMODULE")
    assert python_modules([good, ("json", str(PURE), "PYMODULE")]) == [good, ("json", str(PURE), "PYMODULE")]
    with pytest.raises(BuildError, match="hypothesis"):
        python_modules([("hypothesis", hypothesis.__file__, "PYMODULE")])
    assert {"hypothesis", "numpy", "pytest", "huggingface_hub", "readline"} <= set(excluded())
    assert not {"aiohttp", "jinja2", "msgspec", "llama_cpp", "typing_extensions"} & set(excluded())


def test_of_the_bindings_only_what_is_used() -> None:
    table = [(f"llama_cpp{name}", "/x.py", "PYMODULE") for name in ("", ".llama_cpp", ".llama", ".server.app", "._ggml")]
    assert {entry[0] for entry in python_modules(table)} == {"llama_cpp", "llama_cpp.llama_cpp", "llama_cpp._ggml"}


def test_commands_that_are_imported_by_name_are_frozen() -> None:
    assert {"server.commands.serve", "server.commands.runner", "server.engine.process", "models.fetch", *BINDINGS - {"llama_cpp"}} <= set(
        hidden_imports()
    )
