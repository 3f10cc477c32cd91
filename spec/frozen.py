"""What goes into the runtime and what stays out; the notices are made from the same list. Used by model.spec, knows no payloads.

PyInstaller's tables are lists of (name in the file, path on disk, kind).
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spec.environment import LOCKS, ROOT, BuildError
from spec.notices import Frozen, render

Table = list[tuple[str, str, str]]

OURS = ("server", "models")
# The ctypes bindings alone. server/llama/ puts a bare package in place of `__init__`, which would import the rest and numpy.
BINDINGS = {"llama_cpp", "llama_cpp.llama_cpp", "llama_cpp._ctypes_extensions", "llama_cpp._ggml"}
# Parts of the standard library and of llama_cpp that the program does not use.
UNUSED = (
    "llama_cpp.llama llama_cpp.llama_chat_format llama_cpp.server tkinter unittest doctest pydoc test lib2to3 distutils ensurepip "
    "sqlite3 curses pdb xmlrpc idlelib turtle"
).split()
GPL = ["readline"]  # libreadline
_OWN = re.compile(r"(lib)?(llama|ggml[\w.-]*)\.(so|dylib|dll)$")


def hidden_imports() -> list[str]:
    """Every module of ours, since commands are imported by name, and the bindings, which are imported without their package."""
    files = [file for room in OURS for file in sorted((ROOT / room).rglob("*.py"))]
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in files]
    return [*modules, *sorted(BINDINGS - {"llama_cpp"})]


def data_files() -> list[tuple[str, str]]:
    """(path on disk, directory in the file) of what lies beside our modules: the page, the catalog."""
    files = [file for room in OURS for file in sorted((ROOT / room).rglob("*")) if file.is_file()]
    wanted = [file for file in files if file.suffix not in (".py", ".pyc", ".pyi", ".map") and file.name != "NOTICES.txt"]
    return [(str(file), str(file.parent.relative_to(ROOT))) for file in wanted]


def native_libraries() -> list[tuple[str, str]]:
    """(path on disk, directory in the file) of libllama, libggml and the backend libraries."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or not spec.submodule_search_locations:
        raise BuildError("llama-cpp-python is not installed in the build's environment; run: make build")
    directory = Path(spec.submodule_search_locations[0]) / "lib"
    return [(str(file), "llama_cpp/lib") for file in sorted(directory.iterdir()) if _OWN.match(file.name)]


def excluded() -> list[str]:
    """Modules to leave out: what is unused, and every package of this environment that spec/lock/runtime.txt does not name.

    So the same is frozen whether or not the environment holds the packages for tests, which optional imports would pull in.
    """
    installed = importlib.metadata.packages_distributions()
    return [*UNUSED, *GPL, *sorted(name for name, owners in installed.items() if not any(map(_is_locked, owners)))]


def python_modules(table: Table) -> Table:
    """Of llama_cpp the bindings alone.

    Raises:
        BuildError: a module is frozen whose distribution is not in spec/lock/runtime.txt.
    """
    kept = [entry for entry in table if entry[0].partition(".")[0] != "llama_cpp" or entry[0] in BINDINGS]
    if strangers := sorted(name for name in _distributions(kept) if not _is_locked(name)):
        raise BuildError(f"these would be frozen but are not in spec/lock/runtime.txt: {', '.join(strangers)}")
    return kept


def libraries(table: Table, directory: Path) -> Table:
    """Each library once, without debug information (copies go under `directory`).

    Ours are in llama_cpp/lib only, not again at the top, where the analysis of dependencies puts them.
    """
    kept = [entry for entry in table if not _OWN.match(Path(entry[0]).name) or Path(entry[0]).parent.as_posix() == "llama_cpp/lib"]
    names = [Path(entry[0]).name for entry in kept]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise BuildError(f"libraries are frozen more than once: {', '.join(twice)}")
    if readline := [name for name in names if "readline" in name]:
        raise BuildError(f"{readline[0]} is under the GPL and must not be frozen")
    if not sys.platform.startswith("linux"):
        return kept
    return [(name, _without_debug(Path(path), directory), kind) if kind != "SYMLINK" else (name, path, kind) for name, path, kind in kept]


def _without_debug(library: Path, directory: Path) -> str:
    """Path of the library without debug sections: libpython may have 16 MiB of them, unpacked at every start.

    Only those go. A full strip breaks libraries whose sections a packaging tool has moved.
    """
    sections = subprocess.run(["readelf", "-SW", library], capture_output=True, text=True, check=True).stdout
    if ".debug_info" not in sections:
        return str(library)
    directory.mkdir(parents=True, exist_ok=True)
    slim = directory / f"{len(list(directory.iterdir()))}-{library.name}"
    subprocess.run(["objcopy", "--strip-debug", library, slim], check=True)
    return str(slim)


def data(table: Table) -> Table:
    """Without what packages bring along for people who develop with them."""
    return [entry for entry in table if not entry[0].startswith("llama_cpp") and not re.search(r"\.(pyi|pxd|pyx|c|h)$", entry[0])]


def write_notices(analysis: Any, directory: Path) -> Path:
    """Write the third-party notices of what `analysis` collected."""
    tables: Table = [*analysis.pure, *analysis.binaries, *analysis.datas]
    system = [entry for entry in analysis.binaries if entry[2] == "BINARY" and not _OWN.match(Path(entry[0]).name)]
    frozen = Frozen(
        distributions=sorted(_distributions(tables), key=str.lower),
        libraries=sorted({Path(path) for _, path, _ in system if not _in_distribution(Path(path))}),
    )
    target = directory / "NOTICES.txt"
    target.write_text(render(frozen), encoding="utf-8")
    return target


def _distributions(table: Iterable[tuple[str, str, str]]) -> set[str]:
    """Names of the distributions that files in site-packages belong to."""
    owners = importlib.metadata.packages_distributions()
    found: set[str] = set()
    for name, path, _ in table:
        if _in_distribution(Path(path)) and ".dist-info" not in path:
            top = re.split(r"[./]", name)[0]
            found.update(owners.get(top, [top])[:1])
    return found


def _is_locked(distribution: str) -> bool:
    return _canonical(distribution) in _locked()


@functools.cache
def _locked() -> frozenset[str]:
    names = re.findall(r"^([\w.-]+)==", (LOCKS / "runtime.txt").read_text(), re.MULTILINE)
    return frozenset({"llama-cpp-python", *map(_canonical, names)})


def _in_distribution(path: Path) -> bool:
    return any(path.is_relative_to(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")) and "PyInstaller" not in path.parts


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
