"""What `--licenses` prints and `/licenses` serves: the notices written when the file was frozen, from what was frozen."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent


def licenses() -> str:
    """Run from source, where nothing has been frozen: our own licence, and how to get the rest."""
    try:
        return (_HERE / "web" / "NOTICES.txt").read_text(encoding="utf-8")
    except FileNotFoundError:
        own = (_HERE.parent / "LICENSE").read_text(encoding="utf-8")
        return own + "\nRun from source: the licences of everything else are written into the file when it is built (make build).\n"
