"""Every setting and its default, once. Flags, environment, --help, /props and the docs are made from this table.

Reading the four sources and their precedence (flag > environment > embedded > default) is `options.py`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from server.protocol import SamplingParams

_S = SamplingParams()


def option(default: Any, *flags: str, help: str, group: str, embed: bool = False, secret: bool = False, metavar: str | None = None) -> Any:
    """One setting. `embed`: arguments stored inside a capsule file may set it; `secret`: shown as `set`, never by value."""
    meta = {"flags": flags, "help": help, "group": group, "embed": embed, "secret": secret, "metavar": metavar}
    return field(default=default, metadata=meta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One frozen record per start. None means: decided from the hardware, the model or the circumstances."""

    # model
    model: str | None = option(
        None,
        "-m",
        "--model",
        group="model",
        metavar="FILE",
        help="weights to use instead of those inside this file: a .gguf, another capsule file, or the first part of a split GGUF",
    )
    alias: str | None = option(None, "--alias", "-a", group="model", embed=True, metavar="NAME", help="model name shown to clients")
    chat_template: str | None = option(
        None, "--chat-template", group="model", embed=True, metavar="JINJA", help="chat template to use instead of the model's own"
    )
    chat_template_file: str | None = option(
        None, "--chat-template-file", group="model", metavar="FILE", help="file with the chat template to use instead of the model's own"
    )
    ctx_size: int = option(
        0,
        "-c",
        "--ctx-size",
        group="model",
        embed=True,
        metavar="N",
        help="KV cells in all, over all slots (0: chosen from the model and the free memory)",
    )
    parallel: int | None = option(
        None,
        "-np",
        "--parallel",
        group="model",
        embed=True,
        metavar="N",
        help="requests that run at the same time, each in its own slot (default: from free memory, at least 4)",
    )
    batch_size: int = option(2048, "-b", "--batch-size", group="model", embed=True, metavar="N", help="most tokens in one step")
    ubatch_size: int = option(
        512, "-ub", "--ubatch-size", group="model", embed=True, metavar="N", help="most tokens in one native micro-batch"
    )
    deterministic: bool = option(
        False, "--deterministic", group="model", embed=True, help="greedy text does not depend on who else is being served (q8_0 KV cache)"
    )
    cache_type_k: str = option("f16", "-ctk", "--cache-type-k", group="model", embed=True, metavar="TYPE", help="KV cache type for K")
    cache_type_v: str = option("f16", "-ctv", "--cache-type-v", group="model", embed=True, metavar="TYPE", help="KV cache type for V")
    kv: str = option(
        "auto",
        "--kv",
        group="model",
        metavar="MODE",
        help="KV cache: streams (cells of its own for each slot), unified (one pool), or auto",
    )

    # scheduling
    policy: str = option(
        "fair", "--policy", group="scheduling", metavar="NAME", help="fair, priority, or without classes: fcfs, shortest-prompt"
    )
    max_queue: int = option(1024, "--max-queue", group="scheduling", metavar="N", help="requests that may wait; over it the answer is 503")
    max_queue_tokens: int = option(
        0,
        "--max-queue-tokens",
        group="scheduling",
        metavar="N",
        help="prompt tokens that may wait; over it the answer is 503 (0: no limit)",
    )
    request_timeout: float = option(
        0.0, "--request-timeout", group="scheduling", metavar="S", help="seconds that a request may take, waiting included (0: no limit)"
    )
    itl_target: float = option(
        150.0,
        "--itl-target",
        group="scheduling",
        metavar="MS",
        help="pause between two tokens of a stream that other prompts may cause (twice that while more prompts than streams wait)",
    )
    batch_window: float = option(
        0.0, "--batch-window", group="scheduling", metavar="MS", help="time that an idle engine gathers requests before it starts on them"
    )
    max_preemptions: int = option(
        3, "--max-preemptions", group="scheduling", metavar="N", help="times that one request may be put aside for another (0: never)"
    )
    kv_reserve: float = option(
        0.25,
        "--kv-reserve",
        group="scheduling",
        metavar="X",
        help="unified KV cache: part of its possible length that is kept free for each request (1: none is ever put aside for room)",
    )
    cache_ram: int | None = option(
        None, "--cache-ram", group="scheduling", metavar="MIB", help="host memory for saved prefixes, MiB (default: from the free memory)"
    )
    cache_isolation: str = option(
        "auto",
        "--cache-isolation",
        group="scheduling",
        metavar="MODE",
        help="who may share a cached prefix: none (everybody), key (the same API key); auto: key as soon as there are two keys",
    )
    spec: str = option("auto", "--spec", group="scheduling", embed=True, metavar="MODE", help="guess ahead: ngram, draft, off or auto")
    spec_draft_max: int = option(
        8, "--spec-draft-max", group="scheduling", embed=True, metavar="N", help="most tokens guessed ahead for one sequence in one step"
    )
    model_draft: str | None = option(
        None, "-md", "--model-draft", group="scheduling", metavar="FILE", help="small model with the same vocabulary that guesses ahead"
    )

    # hardware
    threads: int | None = option(
        None, "-t", "--threads", group="hardware", metavar="N", help="threads for the forward pass (default: what this process may use)"
    )
    device: str = option("auto", "--device", group="hardware", metavar="NAME", help="none, auto, or the name of a GPU device")
    cpu_variant: str | None = option(
        None, "--cpu-variant", group="hardware", metavar="NAME", help="CPU library to use (default: the best one that proves itself)"
    )
    n_gpu_layers: int | None = option(
        None,
        "-ngl",
        "--n-gpu-layers",
        "--gpu-layers",
        group="hardware",
        metavar="N",
        help="layers to place on the GPU (default: as many as fit)",
    )

    # generation defaults (each may be overridden by a request)
    n_predict: int = option(
        -1,
        "-n",
        "--n-predict",
        "--predict",
        group="generation",
        embed=True,
        metavar="N",
        help="tokens to generate when a request does not say (-1: until the context is full)",
    )
    temperature: float = option(_S.temperature, "--temp", "--temperature", group="generation", embed=True, metavar="X", help="temperature")
    top_k: int = option(_S.top_k, "--top-k", group="generation", embed=True, metavar="N", help="top-k sampling (0: off)")
    top_p: float = option(_S.top_p, "--top-p", group="generation", embed=True, metavar="X", help="top-p sampling (1: off)")
    min_p: float = option(_S.min_p, "--min-p", group="generation", embed=True, metavar="X", help="min-p sampling (0: off)")
    typical_p: float = option(
        _S.typical_p, "--typical", "--typical-p", group="generation", embed=True, metavar="X", help="locally typical sampling (1: off)"
    )
    repeat_last_n: int = option(
        _S.repeat_last_n,
        "--repeat-last-n",
        group="generation",
        embed=True,
        metavar="N",
        help="tokens the penalties look back on (0: off, -1: context)",
    )
    repeat_penalty: float = option(
        _S.repeat_penalty, "--repeat-penalty", group="generation", embed=True, metavar="X", help="repetition penalty (1: off)"
    )
    presence_penalty: float = option(
        _S.presence_penalty, "--presence-penalty", group="generation", embed=True, metavar="X", help="presence penalty (0: off)"
    )
    frequency_penalty: float = option(
        _S.frequency_penalty, "--frequency-penalty", group="generation", embed=True, metavar="X", help="frequency penalty (0: off)"
    )
    seed: int = option(_S.seed, "-s", "--seed", group="generation", embed=True, metavar="N", help="random seed (-1: another one each time)")

    # server
    host: str | None = option(None, "--host", group="server", metavar="ADDR", help="address to listen on (default: 127.0.0.1 and ::1)")
    port: int = option(8080, "--port", group="server", metavar="N", help="port (default: 8080, or the next free one)")
    api_key: str | None = option(
        None, "--api-key", group="server", secret=True, metavar="KEY", help="key(s) that clients must send, comma-separated"
    )
    api_key_file: str | None = option(
        None,
        "--api-key-file",
        group="server",
        metavar="FILE",
        help="file with one key a line: key [name weight max-class admin] [running=N] [queued=N] [tpm=N] (weight: its share beside others;"
        " max-class: interactive, normal or batch; - for the default; then most requests that run or wait, tokens a minute);"
        " read again when it changes",
    )
    no_auth: bool = option(False, "--no-auth", group="server", help="allow a non-loopback --host without any key")
    share: bool = option(False, "--share", group="server", help="listen on the local network, make a key, print the addresses to hand out")
    allowed_hosts: str | None = option(
        None, "--allowed-hosts", group="server", metavar="LIST", help="further Host names to answer, comma-separated"
    )
    cors_origins: str | None = option(
        None, "--cors-origins", group="server", metavar="LIST", help="web origins that may call the API, comma-separated"
    )
    trusted_proxy: str | None = option(
        None,
        "--trusted-proxy",
        group="server",
        metavar="LIST",
        help="addresses or networks whose X-Forwarded-For is believed, comma-separated",
    )
    ssl_key_file: str | None = option(None, "--ssl-key-file", group="server", metavar="FILE", help="TLS private key (PEM)")
    ssl_cert_file: str | None = option(None, "--ssl-cert-file", group="server", metavar="FILE", help="TLS certificate (PEM)")
    metrics: bool = option(True, "--metrics", group="server", help="serve /metrics")
    slots: bool = option(True, "--slots", group="server", help="serve /slots and /queue")
    sse_ping_interval: float = option(
        15.0, "--sse-ping-interval", group="server", metavar="S", help="seconds of silence after which a stream gets a comment line"
    )
    drain_timeout: float = option(10.0, "--drain-timeout", group="server", metavar="S", help="seconds that running answers get at shutdown")
    max_body_mib: int = option(32, "--max-body-mib", group="server", metavar="N", help="largest request body, MiB")
    responses_store: int = option(
        256,
        "--responses-store",
        group="server",
        metavar="N",
        help="responses of /v1/responses kept in memory for previous_response_id (0: none)",
    )
    browser: bool = option(True, "--browser", group="server", help="open the chat page once the port listens")

    # log
    verbose: bool = option(False, "-v", "--verbose", group="log", help="log more, native messages included")
    log_file: str | None = option(None, "--log-file", group="log", metavar="FILE", help="write the log to this file too")
    log_prompts: bool = option(False, "--log-prompts", group="log", help="let prompts and answers enter the log")
