"""Which values and which combinations of settings make sense, said before anything is loaded. Knows no sockets and no model."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from server.errors import OperatorError
from server.options import Options, table
from server.protocol import RANDOM_SEED

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
POLICIES = ("fair", "fcfs", "priority", "shortest-prompt")
KV_MODES = ("auto", "streams", "unified")
SPECULATION = ("auto", "ngram", "draft", "off")
CACHE_ISOLATION = ("auto", "key", "none")
MAX_SLOTS = 256
"""llama.cpp's LLAMA_MAX_SEQ."""

_Rule = tuple[Callable[[Any], bool], str]


def _between(low: float, high: float) -> _Rule:
    return (lambda value: low <= value <= high), f"from {low} to {high}"


def _at_least(low: float) -> _Rule:
    return (lambda value: value >= low), f"{low} or more"


def _one_of(*names: str) -> _Rule:
    return (lambda value: value in names), "one of " + ", ".join(names)


_RULES: dict[str, _Rule] = {
    "ctx_size": _at_least(0),
    "parallel": _between(1, MAX_SLOTS),
    "batch_size": _between(1, 1 << 20),
    "ubatch_size": _between(1, 1 << 20),
    "cache_type_k": _one_of(*CACHE_TYPES),
    "cache_type_v": _one_of(*CACHE_TYPES),
    "policy": _one_of(*POLICIES),
    "max_queue": _between(0, 1 << 20),
    "max_queue_tokens": _at_least(0),
    "max_preemptions": _at_least(0),
    "kv": _one_of(*KV_MODES),
    "kv_reserve": _between(0, 1),
    "cache_ram": _at_least(0),
    "cache_isolation": _one_of(*CACHE_ISOLATION),
    "itl_target": _between(1, 60_000),
    "batch_window": _between(0, 10_000),
    "spec": _one_of(*SPECULATION),
    "spec_draft_max": _between(1, 64),
    "request_timeout": _at_least(0),
    "threads": _between(1, 1024),
    "n_gpu_layers": _between(0, 1 << 20),
    "n_predict": _at_least(-1),
    "temperature": _at_least(0),
    "top_k": _at_least(-1),
    "top_p": _between(0, 1),
    "min_p": _between(0, 1),
    "typical_p": _between(0, 1),
    "repeat_last_n": _at_least(-1),
    "repeat_penalty": ((lambda value: value > 0), "more than 0"),
    "seed": _between(-1, RANDOM_SEED),
    "port": _between(0, 65535),
    "sse_ping_interval": _at_least(0),
    "drain_timeout": _at_least(0),
    "max_body_mib": _between(1, 1 << 20),
    "responses_store": _between(0, 1 << 20),
}


def checked(options: Options) -> Options:
    """The same options, with a -1 seed and `--share` written out (a host and, where none is given, a key).

    Raises:
        OperatorError: a value out of range, a file that is not there, or settings that exclude each other.
    """
    for option in table():
        value = getattr(options.settings, option.name)
        if value is None or option.name not in _RULES:
            continue
        allowed, words = _RULES[option.name]
        if not allowed(value):
            raise OperatorError(f"{_name(options, option.name)}: {value} is not allowed; it must be {words}")
    _check_model(options)
    _check_files(options)
    _check_proxies(options)
    options = _with_share(options)
    _check_exposure(options)
    if options.settings.seed == -1:
        options = options.replace(seed=RANDOM_SEED)
    return options


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only; a name other than localhost is taken for one that cannot."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    import ipaddress

    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _name(options: Options, setting: str) -> str:
    """The setting as whoever set it wrote it."""
    option = next(option for option in table() if option.name == setting)
    origin = options.origins[setting]
    if origin == "environment":
        return f"{option.variable} ({option.flag})"
    return f"the arguments inside the file: {option.flag}" if origin == "embedded" else option.flag


def _check_model(options: Options) -> None:
    s = options.settings
    if s.ubatch_size > s.batch_size and options.origins["ubatch_size"] != "default":
        raise OperatorError(f"{_name(options, 'ubatch_size')}: {s.ubatch_size} is more than --batch-size {s.batch_size}")
    if s.deterministic:
        for setting in ("cache_type_k", "cache_type_v"):
            if options.origins[setting] != "default" and getattr(s, setting) != "q8_0":
                raise OperatorError(
                    f"--deterministic needs a q8_0 KV cache, but {_name(options, setting)} asks for {getattr(s, setting)}",
                    hint="leave one of the two out",
                )
        if s.kv == "unified":
            raise OperatorError(
                f"--deterministic needs cells of its own for each slot, but {_name(options, 'kv')} asks for one pool",
                hint="leave one of the two out",
            )
    if s.model_draft is not None and s.spec in ("off", "ngram"):
        raise OperatorError(
            f"{_name(options, 'model_draft')} names a draft model, but {_name(options, 'spec')} is {s.spec}, which uses none",
            hint="leave one of the two out, or use --spec draft",
        )
    if options.given("chat_template") and options.given("chat_template_file"):
        raise OperatorError("--chat-template and --chat-template-file exclude each other", hint="leave one of the two out")


def _check_files(options: Options) -> None:
    for setting in ("chat_template_file", "api_key_file", "ssl_key_file", "ssl_cert_file"):
        path = getattr(options.settings, setting)
        if path is None:
            continue
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise OperatorError(f"{_name(options, setting)}: {os.fspath(path)!r} cannot be read: {reason}") from None
    s = options.settings
    if (s.ssl_key_file is None) != (s.ssl_cert_file is None):
        there, missing = ("ssl_key_file", "--ssl-cert-file") if s.ssl_key_file else ("ssl_cert_file", "--ssl-key-file")
        raise OperatorError(f"{_name(options, there)} needs {missing} too", hint="TLS takes a key and a certificate")


def _check_proxies(options: Options) -> None:
    if options.settings.trusted_proxy is not None:
        from server.addresses import Proxies

        Proxies.parse(options.settings.trusted_proxy, _name(options, "trusted_proxy"))


def _with_share(options: Options) -> Options:
    s = options.settings
    if not s.share:
        return options
    if s.host is not None and is_loopback(s.host):
        raise OperatorError(f"--share and --host {s.host} exclude each other: that address is reachable from this machine only")
    if not _has_key(options) and not s.no_auth:
        import secrets

        options = options.replace(api_key="sk-" + secrets.token_urlsafe(24))
    return options.replace(host=s.host or "0.0.0.0")


def _check_exposure(options: Options) -> None:
    s = options.settings
    if s.host is None or is_loopback(s.host) or s.no_auth or _has_key(options):
        return
    raise OperatorError(
        f"{_name(options, 'host')}: {s.host} can be reached from other machines, and no API key is set",
        hint="add --api-key KEY, or --share (makes a key), or --no-auth if anybody may use it",
    )


def _has_key(options: Options) -> bool:
    """Whether clients will have to show a key. An empty key file protects nothing."""
    s = options.settings
    if s.api_key is not None and any(key.strip() for key in s.api_key.split(",")):
        return True
    if s.api_key_file is None:
        return False
    with open(s.api_key_file, encoding="utf-8", errors="replace") as file:
        return any(line.strip() and not line.lstrip().startswith("#") for line in file)
