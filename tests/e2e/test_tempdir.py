"""A temporary directory that is full or mounted noexec: the bootloader says what README explains, and TMPDIR helps."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.e2e.harness import EXECUTABLE, ROOT

# In a mount namespace of its own: no other process sees the file system, and it is gone with the shell.
INSIDE = 'mount -t tmpfs -o "$1" none "$2" && shift 2 && exec "$@"'


def _version_with(options: str, broken: Path, temporary: Path) -> subprocess.CompletedProcess[str]:
    """`model.exe --version` where `broken` is a file system mounted with `options`."""
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", INSIDE, "sh", options, str(broken)]
    command += ["env", "-i", f"TMPDIR={temporary}", str(EXECUTABLE), "--version"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("size=8m", ["Failed to extract", "No space left on device"]),
        ("size=300m,noexec", ["error while loading shared libraries", "failed to map segment"]),
    ],
)
def test_the_message_is_the_one_readme_explains_and_another_place_helps(tmp_path: Path, options: str, words: list[str]) -> None:
    broken, good = tmp_path / "broken", tmp_path / "good"
    broken.mkdir()
    good.mkdir()
    failed = _version_with(options, broken, broken)
    assert failed.returncode != 0
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for word in words:
        assert word in failed.stderr, failed.stderr
        assert word in readme, f"README does not explain {word!r}"
    helped = _version_with(options, broken, good)
    assert helped.returncode == 0 and "capsule" in helped.stdout, helped.stderr
    assert not list(good.iterdir()), "what was unpacked stays behind"
