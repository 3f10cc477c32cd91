"""What serve and chat have in common before anything runs: settings from all sources, the weights, what the runner is told.

Imports neither asyncio nor aiohttp: the runner is to be loading before those are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from models.cache import default_cache_dir
from models.resolve import Weights, from_file, resolve
from server.bundle_format import MAX_TEMPLATE_BYTES
from server.checks import checked
from server.commands.early import check_hardware
from server.errors import OperatorError
from server.files import FileRange, open_input, reason, shown
from server.lifecycle import extraction
from server.options import Options, load
from server.protocol import RunnerSettings
from server.settings import Settings
from server.spawn import is_frozen, program

__all__ = ["Start", "Weights", "executable", "own_file", "prepare", "read_options", "watched_parent"]


@dataclass(frozen=True, slots=True)
class Start:
    """`template`: the chat template to use instead of the model's own, None if there is none."""

    options: Options
    weights: Weights
    template: str | None
    runner: RunnerSettings

    @property
    def model_name(self) -> str:
        return self.options.settings.alias or self.weights.name


def executable() -> Path | None:
    """The running file, None when run from source."""
    return Path(sys.executable) if is_frozen() else None


def own_file() -> Path:
    """The file that a person started."""
    return Path(program()[-1])


def read_options(argv: Sequence[str], environment: Mapping[str, str]) -> Options:
    """Flags and environment alone, so that mistakes in them are told before anything is looked for.

    Raises:
        OperatorError: see `options.load` and `checks.checked`.
    """
    return checked(load(argv, environment))


def prepare(options: Options, argv: Sequence[str], environment: Mapping[str, str]) -> Start:
    """Find the weights and merge in the arguments stored with them. `options` are those of `read_options`.

    Raises:
        OperatorError: there are no usable weights, something stored with them cannot be used, or this build lacks the hardware asked for.
    """
    cache_dir = default_cache_dir()
    weights = resolve(options.settings.model, executable=executable(), cache_dir=cache_dir)
    if weights.args:
        options = checked(load(argv, environment, weights.args))
    check_hardware(options.settings)
    return Start(
        options,
        weights,
        _template(options, weights),
        _runner_settings(options.settings, weights, _draft(options.settings, weights), cache_dir),
    )


def watched_parent() -> bool:
    """Whether the process that started us is the one-file bootloader, without which we must not go on."""
    return extraction.own_directory() is not None


def _draft(s: Settings, weights: Weights) -> FileRange | None:
    """Where the draft model lies: in the file named, else beside the weights in their capsule."""
    if s.spec not in ("auto", "draft"):
        return None
    if s.model_draft is not None:
        named = from_file(Path(s.model_draft).expanduser().absolute())
        return FileRange(named.path, named.offset, named.size)
    payload = weights.bundle.payload("draft") if weights.bundle is not None else None
    if weights.bundle is not None and payload is not None:
        return weights.bundle.range(payload)
    if s.spec == "draft":
        raise OperatorError("--spec draft needs a draft model", hint="name one with --model-draft FILE, or use --spec ngram")
    return None


def _template(options: Options, weights: Weights) -> str | None:
    """Flag or variable, else what the file's arguments say, else what was laid into the file."""
    s = options.settings
    if s.chat_template_file is not None:
        return _usable(_read_template(Path(s.chat_template_file)), f"--chat-template-file {shown(s.chat_template_file)}")
    if s.chat_template is not None:
        return _usable(s.chat_template, "--chat-template")
    return weights.chat_template


def _usable(source: str, flag: str) -> str:
    """A template that would fail, or forget the messages, at every request is said at the start."""
    from server.chat.template import ChatTemplate, TemplateBroken  # jinja2 is loaded only where somebody brings a template

    if "messages" not in source:
        raise OperatorError(
            f"{flag}: this is no chat template, it never uses `messages`",
            hint="give Jinja source, or leave the flag out: the model's own template is used then",
        )
    try:
        ChatTemplate(source)
    except TemplateBroken as error:
        raise OperatorError(f"{flag}: the template is broken: {error}") from None
    return source


def _read_template(path: Path) -> str:
    try:
        with open_input(path) as file:
            data = file.read(MAX_TEMPLATE_BYTES + 1)
        if len(data) > MAX_TEMPLATE_BYTES:
            raise OperatorError(f"--chat-template-file: {shown(path)} is longer than the {MAX_TEMPLATE_BYTES} bytes a template may have")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise OperatorError(f"--chat-template-file: {shown(path)} cannot be read: {reason(error)}") from None
    except UnicodeDecodeError:
        raise OperatorError(f"--chat-template-file: {shown(path)} is not UTF-8 text") from None


def _runner_settings(s: Settings, weights: Weights, draft: FileRange | None, cache_dir: Path) -> RunnerSettings:
    return RunnerSettings(
        path=os.fspath(weights.path),
        offset=weights.offset,
        size=weights.size,
        ctx_size=s.ctx_size,
        parallel=s.parallel,
        batch_size=s.batch_size,
        ubatch_size=min(s.ubatch_size, s.batch_size),
        threads=s.threads,
        n_gpu_layers=s.n_gpu_layers,
        device=s.device,
        cpu_variant=s.cpu_variant,
        deterministic=s.deterministic,
        cache_type_k="q8_0" if s.deterministic else s.cache_type_k,
        cache_type_v="q8_0" if s.deterministic else s.cache_type_v,
        kv=s.kv,
        kv_reserve=s.kv_reserve,
        cache_ram=None if s.cache_ram is None else s.cache_ram << 20,
        policy=s.policy,
        max_queue=s.max_queue,
        max_queue_tokens=s.max_queue_tokens,
        max_preemptions=s.max_preemptions,
        itl_target=s.itl_target / 1e3,
        batch_window=s.batch_window / 1e3,
        spec=s.spec,
        spec_draft_max=s.spec_draft_max,
        draft_path=None if draft is None else os.fspath(draft.path),
        draft_offset=0 if draft is None else draft.offset,
        draft_size=0 if draft is None else draft.size,
        cache_dir=os.fspath(cache_dir),
        verbose=s.verbose,
    )
