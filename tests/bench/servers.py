"""Starts the servers that are compared, with equal flags, on free loopback ports. Knows command lines and health routes only."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.bench.common import DIST, ROOT, Setup

START_SECONDS = 180.0
OURS, OURS_FROM_SOURCE = "capsule", "capsule (sources)"
LLAMA_SERVER, LLAMA_SERVER_STREAMS = "llama-server", "llama-server, streams"
PYTHON_SERVER = "llama_cpp.server"


@dataclass(frozen=True)
class Running:
    """A server that answers. `seconds` from exec to the first healthy answer."""

    name: str
    url: str
    pid: int
    seconds: float


def ours() -> str:
    """The file as it is delivered, or the sources where it has not been built."""
    return OURS if DIST.exists() else OURS_FROM_SOURCE


def command(side: str, setup: Setup, port: int) -> tuple[list[str], str]:
    """Command line and health route of one side. The same number of slots, cells, threads; batch sizes are everybody's 2048/512."""
    address = ["--host", "127.0.0.1", "--port", str(port)]
    model = ["-m", str(setup.model)]
    threads = ["-t", str(setup.threads)] if setup.threads else []
    slots = ["-np", str(setup.streams), "-c", str(setup.streams * setup.ctx_per_slot)]
    if side == OURS:
        return [str(DIST), "--no-browser", *address, *model, *threads, *slots], "/health"
    if side == OURS_FROM_SOURCE:
        return [sys.executable, str(ROOT / "launcher.py"), "--no-browser", *address, *model, *threads, *slots], "/health"
    if side in (LLAMA_SERVER, LLAMA_SERVER_STREAMS):
        cache = "--kv-unified" if side == LLAMA_SERVER else "--no-kv-unified"
        return [str(peer("llama-server")), cache, *address, *model, *threads, *slots], "/health"
    if side == PYTHON_SERVER:
        sizes = ["--n_ctx", str(setup.ctx_per_slot), "--n_threads", str(setup.threads), "--n_threads_batch", str(setup.threads)]
        script = Path(__file__).with_name("python_server.py")
        own = [str(python_peer()), str(script), str(cpu_library()), "--model", str(setup.model), "--interrupt_requests", "false"]
        return [*own, *sizes, *address], "/v1/models"
    raise ValueError(side)


@contextmanager
def serving(side: str, setup: Setup, extra: Sequence[str] = ()) -> Iterator[Running]:
    """One side, started afresh and healthy, with further flags of its own; ended, with everything it has started, on leaving."""
    port = free_port()
    argv, health = command(side, setup, port)
    argv += extra
    with start(side, argv, f"http://127.0.0.1:{port}", health) as running:
        yield running


@contextmanager
def start(name: str, argv: Sequence[str], url: str, health: str) -> Iterator[Running]:
    with tempfile.TemporaryFile() as log:
        began = time.perf_counter()
        environment = {**os.environ, "CI": "true"}
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            while not _healthy(url + health):
                if process.poll() is not None or time.perf_counter() - began > START_SECONDS:
                    log.seek(0)
                    raise SystemExit(f"{name} did not start:\n{log.read()[-4000:].decode('utf-8', 'replace')}")
                time.sleep(0.01)
            yield Running(name, url, process.pid, time.perf_counter() - began)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _healthy(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (URLError, ConnectionError, TimeoutError):
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ---- the peers ----


def peer(program: str) -> Path:
    """A program of `make peer`, built now if it is not there yet (about 13 minutes on two cores)."""
    from spec.peer import chosen_variant, programs

    return programs(chosen_variant()) / program


def cpu_library() -> Path:
    """The CPU library that the product chooses here, so that llama_cpp.server computes with the same one."""
    from models.cache import default_cache_dir
    from server.llama.cpu import choose_cpu

    path = choose_cpu(default_cache_dir(), None).path
    assert path is not None
    return Path(path)


def python_peer() -> Path:
    """The interpreter of a throw-away environment with our own native wheel and what its server wants, made once."""
    from models.cache import default_cache_dir
    from spec.native import wheel

    built = wheel()
    home = default_cache_dir() / "peer" / f"python-{built.parent.name}"
    python = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not (home / "complete").exists():
        print(f"  making an environment for {PYTHON_SERVER} in {home}", flush=True)
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", f"{built}[server]"], check=True)
        (home / "complete").touch()
    return python
