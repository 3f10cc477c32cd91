"""Third-party notices: from the list of what was frozen to one text with every licence once. Reads licence files, freezes nothing."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from models.fetch import default_entry
from spec import native
from spec.environment import ROOT, BuildError

# Libraries that come from the system the file is built on, by the start of their name: what they are and their licence (SPDX).
SYSTEM = {
    "libgomp": ("GCC OpenMP runtime", "GPL-3.0-or-later WITH GCC-exception-3.1"),
    "libgcc_s": ("GCC runtime", "GPL-3.0-or-later WITH GCC-exception-3.1"),
    "libstdc++": ("GNU C++ library", "GPL-3.0-or-later WITH GCC-exception-3.1"),
    "libssl": ("OpenSSL", "Apache-2.0"),
    "libcrypto": ("OpenSSL", "Apache-2.0"),
    "libz": ("zlib", "Zlib"),
    "libbz2": ("bzip2", "bzip2-1.0.6"),
    "liblzma": ("XZ Utils, liblzma", "0BSD"),
    "libzstd": ("Zstandard", "BSD-3-Clause"),
    "libffi": ("libffi", "MIT"),
    "libexpat": ("Expat", "MIT"),
    "libuuid": ("libuuid of util-linux", "BSD-3-Clause"),
    "libmpdec": ("libmpdec", "BSD-2-Clause"),
    "libncurses": ("ncurses", "MIT"),
    "libtinfo": ("ncurses", "MIT"),
    "libcrypt": ("libxcrypt", "LGPL-2.1-or-later"),
    "vcruntime": ("Microsoft C++ runtime", "Microsoft Visual C++ redistributable terms"),
    "msvcp": ("Microsoft C++ runtime", "Microsoft Visual C++ redistributable terms"),
    "vcomp": ("Microsoft OpenMP runtime", "Microsoft Visual C++ redistributable terms"),
    "ucrtbase": ("Microsoft C runtime", "Microsoft Visual C++ redistributable terms"),
    "api-ms-win": ("Microsoft C runtime", "Microsoft Visual C++ redistributable terms"),
    "libomp": ("LLVM OpenMP runtime", "Apache-2.0 WITH LLVM-exception"),
}


@dataclass(frozen=True)
class Frozen:
    """What was frozen: names of Python distributions, and paths of shared libraries that belong to none."""

    distributions: list[str]
    libraries: list[Path]


@dataclass(frozen=True)
class Notice:
    """One component; `text` holds its licence texts, one after the other."""

    title: str
    licence: str
    home: str
    text: str


def render(frozen: Frozen) -> str:
    """The whole text: a list of the components, then their licences; a text that several share stands there once."""
    notices = [_capsule(), _model(), *_llama(), _python(), _bootloader()]
    notices += [_distribution(name) for name in frozen.distributions if name not in ("llama_cpp_python", "llama-cpp-python")]
    notices += _libraries(frozen.libraries)
    width = max(len(notice.title) for notice in notices)
    parts = ["Capsule and what this file is made of\n"]
    parts += [f"  {notice.title:<{width}}  {notice.licence}" for notice in notices]
    seen: dict[str, str] = {}
    for notice in notices:
        parts += ["", "=" * 100, f"{notice.title}: {notice.licence}" + (f"\n{notice.home}" if notice.home else ""), ""]
        mark = hashlib.sha256(" ".join(notice.text.split()).encode()).hexdigest()
        parts.append(f"The text of its licence is the same as that of {seen[mark]} above." if mark in seen else notice.text.strip())
        seen.setdefault(mark, notice.title)
    return "\n".join(parts) + "\n"


def _capsule() -> Notice:
    return Notice("Capsule", "Apache-2.0", "", _read(ROOT / "LICENSE"))


def _model() -> Notice:
    entry = default_entry()
    return Notice(f"{entry.title} (the model), by {entry.author}", entry.licence, entry.homepage, _read(ROOT / "LICENSE"))


def _llama() -> list[Notice]:
    texts = {file.stem: _read(file) for file in sorted(native.licences().iterdir())}
    own = Notice(f"llama-cpp-python {native.VERSION}", "MIT", "https://github.com/abetlen/llama-cpp-python", texts.pop("license"))
    main = texts.pop("vendor-llama.cpp-license")
    parts = [main, *(f"Part of it, {name.removesuffix('-license')}:\n\n{text}" for name, text in texts.items())]
    return [Notice("llama.cpp and ggml", "MIT, with parts BSD-2-Clause", "https://github.com/ggml-org/llama.cpp", "\n\n".join(parts)), own]


def _python() -> Notice:
    version = sysconfig.get_python_version()
    places = [
        Path(sysconfig.get_path("stdlib")) / "LICENSE.txt",
        Path(sys.base_prefix) / "LICENSE.txt",
        Path(sys.base_prefix) / "LICENSE",
        Path(f"/usr/share/doc/python{version}/copyright"),
        Path(f"/usr/share/doc/libpython{version}-minimal/copyright"),
        *Path("/usr/share/licenses").glob("python3*/LICENSE"),
    ]
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        raise BuildError(f"the licence text of this Python was not found (looked for {places[0]})")
    return Notice(f"Python {sys.version.split()[0]}", "PSF-2.0", "https://www.python.org", _read(found))


def _bootloader() -> Notice:
    notice = _distribution("pyinstaller")
    return Notice(
        f"PyInstaller{notice.title.removeprefix('pyinstaller')} (bootloader)",
        "GPL-2.0-or-later WITH Bootloader-exception",
        notice.home,
        notice.text,
    )


def _distribution(name: str) -> Notice:
    distribution = importlib.metadata.distribution(name)
    # Fields are read by name with get_all: a missing one gives None.
    field = {key: (distribution.metadata.get_all(key) or [""])[0] for key in ("License-Expression", "License", "Home-page")}
    classifiers = [
        line.rpartition(" :: ")[2] for line in distribution.metadata.get_all("Classifier") or [] if line.startswith("License ::")
    ]
    licence = field["License-Expression"] or (classifiers[0] if classifiers else field["License"].partition("\n")[0])
    links = [line.partition(", ")[2] for line in distribution.metadata.get_all("Project-URL") or []]
    files = [file for file in distribution.files or [] if re.search(r"\.(dist|egg)-info/", str(file)) and _is_licence(file.name)]
    texts = [_read(Path(str(distribution.locate_file(file)))) for file in sorted(files)]
    if not licence or not texts:
        raise BuildError(f"the package {name} does not say its licence or carries no licence text; see to it in spec/notices.py")
    home = field["Home-page"] or next((link for link in links if "github.com" in link), links[0] if links else "")
    return Notice(f"{distribution.metadata['Name']} {distribution.version}", licence, home, "\n\n".join(texts))


def _is_licence(name: str) -> bool:
    return bool(re.match(r"(?i)(licen[cs]e|copying|notice|authors)", name))


def _libraries(paths: list[Path]) -> list[Notice]:
    found: dict[tuple[str, str], list[Path]] = {}
    for path in paths:
        if path.name.lower().startswith(("libpython", "python3")):
            continue  # Python's own
        key = next((SYSTEM[start] for start in sorted(SYSTEM, key=len, reverse=True) if path.name.lower().startswith(start)), None)
        if key is None:
            raise BuildError(f"{path} would be frozen, but spec/notices.py does not know its licence")
        found.setdefault(key, []).append(path)
    return [
        Notice(f"{title} ({', '.join(sorted(path.name for path in group))})", licence, "", _system_text(group[0]) or f"SPDX: {licence}")
        for (title, licence), group in sorted(found.items())
    ]


def _system_text(library: Path) -> str:
    """The copyright file of the system package a library is from; empty where the system keeps none."""
    if not shutil.which("dpkg"):
        return ""
    real = library.resolve()
    for path in (str(real), str(real).removeprefix("/usr"), "/usr" + str(real)):  # a merged /usr has two names for each file
        owner = subprocess.run(["dpkg", "-S", path], capture_output=True, text=True, check=False).stdout.partition(":")[0]
        text = Path("/usr/share/doc") / owner / "copyright"
        if owner and text.is_file():
            return _read(text)
    return ""


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
