"""A start that cannot work, or that would expose the machine, is refused with a sentence that names the setting as it was given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from server.checks import checked, is_loopback
from server.errors import OperatorError
from server.options import load
from server.protocol import RANDOM_SEED


def _refused(argv: list[str], environment: dict[str, str] | None = None, embedded: Sequence[str] = ()) -> str:
    with pytest.raises(OperatorError) as caught:
        checked(load(argv, environment or {}, embedded))
    return caught.value.message + " " + caught.value.hint


@pytest.mark.parametrize(
    "argv",
    [
        ["--port", "-1"],
        ["--port", "65536"],
        ["--parallel", "0"],
        ["--parallel", "257"],
        ["--ctx-size", "-1"],
        ["--batch-size", "0"],
        ["--threads", "0"],
        ["--temp", "-0.1"],
        ["--top-p", "1.1"],
        ["--min-p", "-1"],
        ["--seed", "-2"],
        ["--seed", str(2**32)],
        ["--repeat-penalty", "0"],
        ["--cache-type-k", "f8"],
        ["--policy", "luck"],
        ["--drain-timeout", "-1"],
        ["--n-predict", "-2"],
        ["--trusted-proxy", "proxy.local"],
    ],
)
def test_values_out_of_range(argv: list[str]) -> None:
    message = _refused(argv)
    assert argv[0] in message and argv[1] in message


def test_the_source_of_a_wrong_value_is_named() -> None:
    assert "CAPSULE_PORT" in _refused([], {"CAPSULE_PORT": "99999"})
    assert "CAPSULE_TRUSTED_PROXY" in _refused([], {"CAPSULE_TRUSTED_PROXY": "10.0.0.0/40"})
    assert "inside the file: --temp" in _refused([], embedded=["--temp", "-1"])


def test_the_defaults_are_fine_and_a_seed_of_minus_one_is_random() -> None:
    assert checked(load([], {})).settings == load([], {}).settings
    assert checked(load(["--seed", "-1"], {})).settings.seed == RANDOM_SEED
    assert checked(load(["--seed", "7"], {})).settings.seed == 7


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.2", False),
        ("::ffff:192.168.1.2", False),
        ("myhost", False),
        ("localhost.example.com", False),
        ("", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_an_open_network_needs_a_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# none yet\n\n")
    assert "--api-key" in _refused(["--host", "0.0.0.0"])
    assert "--api-key" in _refused(["--host", "0.0.0.0", "--api-key", " , "])
    assert "--api-key" in _refused(["--host", "0.0.0.0", "--api-key-file", str(keys)])
    assert "CAPSULE_HOST" in _refused([], {"CAPSULE_HOST": "192.168.1.2"})
    keys.write_text("# mine\nsk-abc someone 2\n")
    for more in (["--api-key", "k"], ["--api-key-file", str(keys)], ["--no-auth"]):
        assert checked(load(["--host", "0.0.0.0", *more], {})).settings.host == "0.0.0.0"
    assert checked(load(["--host", "127.0.0.1"], {})).settings.host == "127.0.0.1"


def test_share_makes_a_key_of_its_own_and_opens_the_network() -> None:
    one, two = (checked(load(["--share"], {})).settings for _ in range(2))
    assert one.host == "0.0.0.0" and one.api_key and len(one.api_key) > 20
    assert one.api_key != two.api_key
    assert checked(load(["--share", "--api-key", "k"], {})).settings.api_key == "k"
    assert checked(load(["--share", "--no-auth"], {})).settings.api_key is None
    assert checked(load(["--share", "--host", "10.0.0.7"], {})).settings.host == "10.0.0.7"
    assert "--share" in _refused(["--share", "--host", "127.0.0.1"])


def test_files_must_be_there_and_tls_takes_two(tmp_path: Path) -> None:
    missing, there = tmp_path / "nowhere", tmp_path / "there"
    there.write_text("x")
    for flag in ("--chat-template-file", "--api-key-file", "--ssl-key-file", "--ssl-cert-file"):
        message = _refused([flag, str(missing)])
        assert flag in message and str(missing) in message
    assert "--ssl-cert-file" in _refused(["--ssl-key-file", str(there)])
    assert "--ssl-key-file" in _refused(["--ssl-cert-file", str(there)])
    assert checked(load(["--ssl-key-file", str(there), "--ssl-cert-file", str(there)], {}))


def test_settings_that_exclude_each_other(tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("x")
    assert "--chat-template-file" in _refused(["--chat-template", "x", "--chat-template-file", str(template)])
    assert checked(load(["--chat-template-file", str(template)], {}, ["--chat-template", "x"]))
    assert "--deterministic" in _refused(["--deterministic", "-ctk", "f16"])
    assert checked(load(["--deterministic", "-ctk", "q8_0"], {}))
    assert "--kv asks for one pool" in _refused(["--deterministic", "--kv", "unified"])
    assert "--ubatch-size" in _refused(["--batch-size", "64", "--ubatch-size", "128"])
    for spec in ("off", "ngram"):
        message = _refused(["--spec", spec], {"CAPSULE_MODEL_DRAFT": "d.gguf"})
        assert "CAPSULE_MODEL_DRAFT" in message and f"--spec is {spec}" in message
    assert checked(load(["--spec", "draft", "-md", "d.gguf"], {})) and checked(load(["-md", "d.gguf"], {}))
    assert checked(load(["--batch-size", "64"], {}))
