"""The one file: alone in an empty directory, with nothing in the environment, it does everything it promises."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import openai
import pytest

from tests.e2e.harness import EXECUTABLE, Server, wait_gone

BARE: dict[str, str] = {"CI": "true"}


def _run(*argv: str | Path, env: dict[str, str] | None = None, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(a) for a in argv], capture_output=True, text=True, timeout=timeout, env=env, stdin=subprocess.DEVNULL, check=False
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the executable, alone in a directory with a non-ASCII name."""
    directory = tmp_path_factory.mktemp("größe 模型 👾")
    target = directory / "model.exe"
    shutil.copy(EXECUTABLE, target)
    return target


def _temp_env(tmp_path: Path) -> dict[str, str]:
    return {**BARE, "TMPDIR": str(tmp_path)}


def test_bare_environment_streaming_chat_through_openai(alone: Path) -> None:
    with Server(argv=[str(alone)], env=BARE, cwd=Path("/")) as server:

        async def chat() -> str:
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as api:
                stream = await api.chat.completions.create(
                    model="SmolLM2", messages=[{"role": "user", "content": "Say hello."}], stream=True, max_tokens=16
                )
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

        assert asyncio.run(chat())
        status, page = server.get("/")
        assert status == 200 and b"<html" in page


def test_weights_are_mapped_in_place(alone: Path) -> None:
    with Server("-np", "4", "-c", "4096", argv=[str(alone)], env=BARE) as server:
        server.post("/completion", {"prompt": "Once upon a time", "n_predict": 4})
        runner = server.find("runner")
        maps = Path(f"/proc/{runner.pid}/smaps").read_text()
        mapped = resident = anonymous = 0
        inside = False
        for line in maps.splitlines():
            first = line.split()[0]
            if "-" in first and not first.endswith(":"):
                inside = line.endswith(str(alone))
            elif inside and first == "Size:":
                mapped += int(line.split()[1])
            elif inside and first == "Rss:":
                resident += int(line.split()[1])
            elif inside and first == "Anonymous:":
                anonymous += int(line.split()[1])
        assert mapped > 90 * 1024 and resident > 40 * 1024, (mapped, resident)
        assert anonymous < 1024, "the weights were copied"


@pytest.mark.parametrize("victim", ["first", "front", "runner"])
def test_killed_trees_leave_no_process_and_no_stale_directory(alone: Path, tmp_path: Path, victim: str) -> None:
    env = _temp_env(tmp_path)
    with Server("-np", "4", "-c", "4096", argv=[str(alone)], env=env) as server:
        family = server.tree()
        if victim == "first":
            server.process.kill()
        elif victim == "front":
            server.front().kill()
        else:
            server.find("runner").kill()
            server.wait_ready()
            server.terminate()
        wait_gone(family)
    with Server("-np", "4", "-c", "4096", argv=[str(alone)], env=env) as server:
        deadline = time.monotonic() + 10
        while len(list(tmp_path.glob("_MEI*"))) > 1 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(list(tmp_path.glob("_MEI*"))) == 1
        assert server.terminate() == 0
    assert not list(tmp_path.glob("_MEI*"))


def test_a_foreign_extraction_directory_is_left_alone(alone: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "_MEIforeign"
    foreign.mkdir()
    (foreign / "data").write_text("mine")
    with Server("-np", "4", "-c", "4096", argv=[str(alone)], env=_temp_env(tmp_path)):
        time.sleep(1)
    assert (foreign / "data").read_text() == "mine"


def test_read_only_current_directory_and_no_home(alone: Path, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    with Server("-np", "4", "-c", "4096", argv=[str(alone)], env=BARE, cwd=locked) as server:
        status, _ = server.post("/completion", {"prompt": "x", "n_predict": 1})
        assert status == 200


def test_version_help_licenses_answer_quickly_and_plainly(alone: Path) -> None:
    version = _run(alone, "--version", env=BARE)
    assert version.returncode == 0 and "capsule" in version.stdout.lower()
    help_text = _run(alone, "--help", env=BARE)
    assert help_text.returncode == 0
    for flag in ("--model", "--port", "--ctx-size", "--parallel", "--cpu-variant", "--device", "--api-key", "--drain-timeout"):
        assert flag in help_text.stdout
    licences = _run(alone, "--licenses", env=BARE)
    assert licences.returncode == 0
    for name in ("llama.cpp", "aiohttp", "PyInstaller", "SmolLM2", "Apache"):
        assert name in licences.stdout


def test_inspect_and_verify(alone: Path) -> None:
    facts = json.loads(_run(alone, "inspect", "--json", env=BARE).stdout)
    text = json.dumps(facts)
    assert "llama" in text and "sha256" in text
    verified = _run(alone, "inspect", "--verify", env=BARE)
    assert verified.returncode == 0, verified


def test_bundle_makes_a_working_file_with_arguments_inside(alone: Path, smollm2: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.exe"
    made = _run(alone, "bundle", smollm2, "-o", other, "--args", "--alias parrot --ctx-size 4096 --parallel 4", env=BARE)
    assert made.returncode == 0, made.stderr
    assert os.access(other, os.X_OK)
    assert _run(other, "inspect", "--verify", env=BARE).returncode == 0
    with Server(argv=[str(other)], env=BARE) as server:
        status, content = server.get("/v1/models")
        assert json.loads(content)["data"][0]["id"] == "parrot"
        status, content = server.get("/props")
        props = json.loads(content)
        assert props["total_slots"] == 4
        assert "embedded" in json.dumps(props)
    refused = _run(alone, "bundle", smollm2, "-o", tmp_path / "bad.exe", "--args", "--host 0.0.0.0", env=BARE)
    assert refused.returncode == 2 and "--host" in refused.stderr and not (tmp_path / "bad.exe").exists()


def test_external_weights_and_other_capsule_files(alone: Path, smollm2: Path) -> None:
    for source in (smollm2, alone):
        with Server("-m", str(source), "-np", "4", "-c", "4096", argv=[str(alone)], env=BARE) as server:
            status, _ = server.post("/completion", {"prompt": "x", "n_predict": 1})
            assert status == 200


@pytest.mark.parametrize("damage", ["truncated", "foreign", "empty", "garbage", "missing", "directory"])
def test_bad_weights_are_one_plain_sentence(alone: Path, smollm2: Path, tmp_path: Path, damage: str) -> None:
    bad = tmp_path / "bad.gguf"
    content = smollm2.read_bytes()
    if damage == "truncated":
        bad.write_bytes(content[: len(content) // 2])
    elif damage == "foreign":
        bad.write_bytes(Path("/bin/ls").read_bytes())
    elif damage == "empty":
        bad.write_bytes(b"")
    elif damage == "garbage":
        bad.write_bytes(b"GGUF" + hashlib.sha256(b"x").digest() * 1000)
    elif damage == "directory":
        bad.mkdir()
    result = _run(alone, "-m", bad, "--no-browser", "--port", "0", env=BARE)
    assert result.returncode == 2, result
    assert "Traceback" not in result.stdout + result.stderr
    assert "bad.gguf" in result.stdout + result.stderr


def test_a_truncated_capsule_is_one_plain_sentence(alone: Path, tmp_path: Path) -> None:
    whole = alone.read_bytes()
    middle = tmp_path / "damaged.exe"
    damaged = bytearray(whole)
    footer = whole.rfind(b"CAPSULE")
    assert footer > 0
    damaged[footer : footer + 4] = b"\0\0\0\0"
    middle.write_bytes(damaged)
    middle.chmod(0o755)
    result = _run(middle, "--no-browser", "--port", "0", env=BARE)
    assert result.returncode == 2 and "Traceback" not in result.stderr + result.stdout
    verify = _run(alone, "inspect", "--verify", middle, env=BARE)
    assert verify.returncode == 2


def test_a_taken_port(alone: Path) -> None:
    with Server("-np", "4", "-c", "4096", argv=[str(alone)], env=BARE) as server:
        result = _run(alone, "--port", str(server.port), "--no-browser", "-np", "4", "-c", "4096", env=BARE)
        assert result.returncode == 2
        assert str(server.port) in result.stderr + result.stdout and "Traceback" not in result.stderr


def test_full_temp_directory_is_told_and_tmpdir_helps(alone: Path, tmp_path: Path) -> None:
    """The bootloader's own message; README explains it."""
    result = _run(alone, "--version", env={**BARE, "TMPDIR": str(tmp_path / "nowhere")})
    if result.returncode != 0:
        assert result.stderr
    assert _run(alone, "--version", env={**BARE, "TMPDIR": str(tmp_path)}).returncode == 0
    assert not list(tmp_path.iterdir())
