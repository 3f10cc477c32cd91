"""The lines a start prints: where it listens, and what model runs on what. Pure text; knows no process."""

from __future__ import annotations

from server import __version__
from server.checks import is_loopback
from server.commands.start import Start
from server.files import shown, shown_size
from server.lifecycle.listen import Listening, lan_addresses, url_host
from server.protocol import ModelInfo


def url_lines(start: Start, listening: Listening) -> list[str]:
    """What to print once the port listens."""
    s = start.options.settings
    scheme = "https" if s.ssl_cert_file else "http"
    url = f"{scheme}://{listening.host}:{listening.port}/"
    lines = [f"Capsule {__version__}"]
    if listening.moved:
        lines.append(f"  note       {listening.moved}, so this is port {listening.port}")
    open_to_others = s.host is not None and not is_loopback(s.host)
    if not open_to_others:
        return [*lines, _row("page", f"{url}  (this machine only; --share opens it to the local network)"), _row("API", f"{url}v1")]
    addresses = lan_addresses() if s.host in ("0.0.0.0", "::") else [str(s.host)]
    others = [f"{scheme}://{url_host(address)}:{listening.port}/" for address in addresses if s.host != "0.0.0.0" or ":" not in address]
    lines.append(_row("page", url))
    lines += [_row("" if i else "for others", other) for i, other in enumerate(others)]
    lines.append(_row("API", f"{(others or [url])[0]}v1"))
    if s.share and start.options.origins["api_key"] == "default" and s.api_key is not None:
        lines.append(_row("API key", f"{s.api_key}  (made for this start)"))
    elif s.no_auth and s.api_key is None and s.api_key_file is None:
        lines.append(_row("warning", "anybody who reaches this address may use it: there is no API key"))
    return lines


def model_lines(start: Start, info: ModelInfo) -> list[str]:
    """What to print once the model can serve."""
    name = shown(start.model_name)
    described = f"{shown(info.architecture)}, {_count(info.n_params)} parameters, {shown(info.ftype)}, {shown_size(info.size)}"
    kv = info.kv_type_k if info.kv_type_k == info.kv_type_v else f"{info.kv_type_k} keys, {info.kv_type_v} values"
    lines = [
        _row("model", f"{name} ({described})"),
        _row("slots", _slots(info)),
        _row("KV cache", f"{kv}, {shown_size(info.kv_bytes)}{', deterministic' if info.deterministic else ''}"),
        _row(
            "CPU",
            f"{shown(info.cpu_variant)}, {info.n_threads} thread{'s' if info.n_threads != 1 else ''} ({shown(info.cpu_variant_reason)})",
        ),
        _row("devices", _placement(info)),
        *([_row("guesses", "by the draft model")] if info.spec == "draft" else []),
    ]
    if info.n_ctx_train and info.n_ctx_slot > info.n_ctx_train:
        lines.append(_row("warning", f"the model was trained for {info.n_ctx_train:,} tokens of context; beyond that its answers degrade"))
    return [*lines, f"Ready after {info.load_seconds:.1f} s of loading. Ctrl-C ends the program."]


def _slots(info: ModelInfo) -> str:
    if info.kv_unified:
        return f"{info.n_slots} that share a pool of {info.n_ctx:,} tokens, {info.n_ctx_slot:,} for one at most"
    return f"{info.n_slots}, each with {info.n_ctx_slot:,} tokens of context ({info.n_ctx:,} in all)"


def _placement(info: ModelInfo) -> str:
    if not info.devices or info.n_gpu_layers == 0:
        return "CPU only"
    return f"{', '.join(map(shown, info.devices))}: {min(info.n_gpu_layers, info.n_layers)} of {info.n_layers} layers"


def _count(n: int) -> str:
    for unit, size in (("B", 1e9), ("M", 1e6)):
        if n >= size:
            return f"{n / size:.1f}{unit}"
    return f"{n:,}"


def _row(name: str, value: str) -> str:
    return f"  {name:<10} {value}"
