"""The file starts on every Linux whose glibc is at least the one that README states: no library inside asks for a later symbol."""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

from PyInstaller.archive.readers import CArchiveReader

from server.bundle_format import Bundle
from tests.e2e.harness import EXECUTABLE, ROOT

Version = tuple[int, ...]


def _version(text: str) -> Version:
    return tuple(int(part) for part in text.split("."))


def _needed(library: Path) -> Version:
    """The highest GLIBC_ symbol version that an ELF file asks for."""
    symbols = subprocess.run(["objdump", "-T", str(library)], capture_output=True, text=True, check=True).stdout
    return max((_version(found) for found in re.findall(r"\(?GLIBC_([0-9.]+)\)?", symbols)), default=(0,))


def _parts(directory: Path) -> list[Path]:
    """The bootloader and every shared library of the file, unpacked."""
    bundle = Bundle.open(EXECUTABLE)
    assert bundle is not None
    head = directory / "bootloader"
    head.write_bytes(EXECUTABLE.read_bytes()[: bundle.head_size])
    found = [head]
    archive = CArchiveReader(str(EXECUTABLE))
    for name, entry in archive.toc.items():
        if entry[4] == "b":
            target = directory / name.replace("/", "--")
            target.write_bytes(archive.extract(name))
            found.append(target)
    return found


def test_no_library_needs_a_later_glibc_than_readme_states(tmp_path: Path) -> None:
    needed = {part.name: _needed(part) for part in _parts(tmp_path)}
    assert len(needed) > 30 and "bootloader" in needed, sorted(needed)
    highest = max(needed.values())
    stated = re.search(r"glibc (\d+\.\d+) or later", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert stated, "README does not state the lowest glibc"
    worst = sorted(name for name, version in needed.items() if version == highest)
    assert highest <= _version(platform.libc_ver()[1]), f"glibc {highest} is needed by {', '.join(worst)}"
    system = platform.freedesktop_os_release()
    if (system["ID"], system.get("VERSION_ID")) == ("debian", "12"):  # the system that README speaks of
        assert highest == _version(stated[1]), f"glibc {highest} is needed by {', '.join(worst)}, and README states {stated[1]}"
    assert highest >= (2, 17), "nothing was measured"


def test_each_library_is_in_the_file_once(tmp_path: Path) -> None:
    names = [part.name.rpartition("--")[2] for part in _parts(tmp_path)]
    assert sorted(set(names)) == sorted(names)
    assert sum(name.startswith("libggml-cpu") for name in names) > 1
    assert not [name for name in names if "readline" in name or "common" in name]
