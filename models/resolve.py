"""Which weights this start uses: those named, those inside the running file, those beside it, or the cached default model.

Reads headers only; loads nothing. Knows neither the server nor llama.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from models.cache import default_cache_dir
from models.fetch import cached, default_entry, fetch
from server.bundle_format import MAX_ARGS_BYTES, MAX_TEMPLATE_BYTES, Bundle, not_a_capsule
from server.errors import OperatorError
from server.files import shown
from server.gguf import GgufFacts, is_gguf, read_gguf, read_model
from server.options import parse_embedded

__all__ = ["Weights", "check_is_model", "default_cache_dir", "fetch", "from_file", "neighbour", "resolve"]


@dataclass(frozen=True, slots=True)
class Weights:
    """A GGUF found: `size` bytes of `path` from `offset` on (a split model: the first part; `facts.parts` has them all)."""

    path: Path
    offset: int
    size: int
    name: str
    """For people, where no alias is set."""
    bundle: Bundle | None
    """The capsule file that gave the weights or stands beside them."""
    chat_template: str | None
    """Template laid into the capsule to be used instead of the GGUF's own (`facts.chat_template`)."""
    args: list[str]
    """Arguments laid into the running file; they apply to its own weights only."""
    facts: GgufFacts


def resolve(model: str | None, *, executable: Path | None, cache_dir: Path) -> Weights:
    """Find the weights. `model` is what `-m` says; `executable` the running file if it is a frozen program, else None.

    Order: the file named; the running file's own payload; `<its name>.gguf`, then `model.gguf` beside it; run from source: the
    catalog's default model if it is in the cache.

    Raises:
        OperatorError: there are none (with the ways out), or what was found is damaged.
    """
    if model is not None:
        return from_file(Path(model).expanduser().absolute())
    if executable is None:
        entry = default_entry()
        path = cached(entry, cache_dir)
        if path is None:
            raise OperatorError(f"no weights are given and {entry.title} has not been fetched", hint="use make run, or -m FILE.gguf")
        return from_file(path)
    own = Bundle.open(executable)
    if own is not None and own.payload("model") is not None:
        return _inside(own, own_arguments(own))
    beside = neighbour(executable)
    if beside is not None:
        found = from_file(beside)
        if own is None:
            return found
        template = own.read_text("chat_template", MAX_TEMPLATE_BYTES)
        return replace(found, bundle=own, chat_template=template, args=own_arguments(own))
    raise OperatorError(
        f"there are no weights inside {shown(executable.name)} and no model.gguf beside it",
        hint=f"use -m FILE.gguf, put the weights beside it, or make a file that has them inside: "
        f"{shown(executable.name)} bundle FILE.gguf -o NEW.exe",
    )


def from_file(path: Path) -> Weights:
    """The weights in a file that somebody named: a GGUF, the first part of a split one, or a capsule (not its arguments).

    Raises:
        OperatorError: it is none of these, or damaged.
    """
    if is_gguf(path):
        facts = read_model(path)
        check_is_model(facts, path)
        return Weights(path, 0, path.stat().st_size, _name(facts, path.name), None, None, [], facts)
    bundle = Bundle.open(path)
    if bundle is None:
        raise not_a_capsule(path)
    if bundle.payload("model") is None:
        raise OperatorError(f"{shown(path)} is a capsule without weights", hint="name the .gguf file itself")
    return _inside(bundle, [])


def neighbour(executable: Path) -> Path | None:
    """Weights that lie beside a program without any inside: `<its name>.gguf`, then `model.gguf`; beside a link's target too."""
    for program in (executable, executable.resolve()):
        stem = program.name[:-4] if program.name.lower().endswith(".exe") else program.name
        for path in (program.with_name(f"{stem}.gguf"), program.with_name("model.gguf")):
            if path.is_file():
                return path
    return None


def own_arguments(bundle: Bundle) -> list[str]:
    """The arguments inside a capsule, checked.

    Raises:
        OperatorError: they are damaged, or set what a file may not set.
    """
    return parse_embedded(bundle.read_text("args", MAX_ARGS_BYTES) or "")


def check_is_model(facts: GgufFacts, path: Path) -> None:
    """Raises OperatorError if a GGUF is something else than a whole model: an adapter, a projector, a vocabulary alone."""
    if facts.kind not in ("model", "") or not facts.architecture:
        raise OperatorError(f"{shown(path)} is a GGUF file, but not a model ({shown(facts.kind)})")
    if facts.n_tensors == 0:
        raise OperatorError(f"{shown(path)} is a GGUF file without any weights")


def _inside(bundle: Bundle, arguments: list[str]) -> Weights:
    payload = bundle.payload("model")
    assert payload is not None
    facts = read_gguf(bundle.path, payload.offset, payload.size, what=f"the model inside {shown(bundle.path)}")
    check_is_model(facts, bundle.path)
    if facts.split_count > 1:
        raise OperatorError(f"{shown(bundle.path)} holds one part of a model split into {facts.split_count}")
    template = bundle.read_text("chat_template", MAX_TEMPLATE_BYTES)
    return Weights(bundle.path, payload.offset, payload.size, _name(facts, payload.name), bundle, template, arguments, facts)


def _name(facts: GgufFacts, file_name: str) -> str:
    name = " ".join(facts.name.split()) or file_name.removesuffix(".gguf")
    return shown(name)[:200]
