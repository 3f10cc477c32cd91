"""What can be wrong with keys, hosts and hardware names is said before the port is taken and before the runner is started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from server.commands import serve
from server.commands.early import check_access, check_hardware
from server.errors import OperatorError
from server.llama.backends import check_names
from server.settings import Settings


@pytest.mark.parametrize(
    ("check", "settings", "message"),
    [
        (check_access, {"api_key": ""}, "--api-key holds an empty key"),
        (check_access, {"api_key": "a,,b"}, "--api-key holds an empty key"),
        (check_access, {"api_key_file": "/nowhere/keys"}, "cannot be read"),
        (check_access, {"cors_origins": "example"}, "is not a web origin"),
        (check_access, {"allowed_hosts": "a b"}, "is not a host name"),
        (check_hardware, {"cpu_variant": "abacus"}, 'no CPU library "abacus"'),
    ],
)
def test_mistakes_are_told(check: Callable[[Settings], None], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        check(Settings(**settings))


def test_what_is_right_passes() -> None:
    check_access(Settings(api_key="a,b", allowed_hosts="box.example", cors_origins="https://example.org"))
    for device in ("auto", "none", "CPU"):
        check_hardware(Settings(device=device))


def test_serving_does_not_get_as_far_as_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    def listen(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the port was taken")

    class Begun:
        class options:
            settings = Settings(api_key="")

    monkeypatch.setattr(serve, "listen", listen)
    with pytest.raises(OperatorError, match="empty key"):
        serve._serve(Begun, None, None)  # type: ignore[arg-type]


def test_a_gpu_is_named_in_vain_only_where_no_library_could_bring_one(tmp_path: Path) -> None:
    for name in ("libggml.so", "libggml-base.so", "libggml-cpu-haswell.so", "libggml-cpu-x64.so"):
        (tmp_path / name).touch()
    check_names("haswell", "auto", tmp_path)
    with pytest.raises(OperatorError, match='no device "Vulkan0"'):
        check_names(None, "Vulkan0", tmp_path)
    with pytest.raises(OperatorError, match='no CPU library "zen9"') as refused:
        check_names("zen9", "none", tmp_path)
    assert refused.value.hint.endswith("haswell, x64")
    (tmp_path / "libggml-vulkan.so").touch()
    check_names(None, "Vulkan0", tmp_path)
