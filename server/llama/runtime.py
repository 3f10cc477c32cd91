"""A loaded model, ready to decode: CPU library, devices, weights, slots and context put together. The runner's one door to here."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack

import msgspec

from server.llama import backends, hardware, probe
from server.llama.backends import Device
from server.llama.constraint import GrammarConstraints
from server.llama.context import DETERMINISTIC_KV_TYPE, KV_TYPES, Context, kv_type, output_rows
from server.llama.cpu import CpuChoice, choose_cpu
from server.llama.draft import KV_TYPE, Draft, load_draft, together
from server.llama.fit import WANTED_SLOTS, Fit, Needs, cache_ram, fit, layer_cells, n_ids, shown
from server.llama.library import library_directory, native
from server.llama.model import Model, load_model
from server.llama.vocab import Vocabulary
from server.protocol import ModelInfo, RunnerSettings

log = logging.getLogger(__name__)

Progress = Callable[[str, float], None]


class Runtime:
    """What `open_runtime` returns; `close` gives everything back."""

    def __init__(self, model: Model, decoder: Context, draft: Draft | None, info: ModelInfo) -> None:
        self._model = model
        self.decoder = decoder
        self.draft = draft
        self.info = info
        self.constraints = GrammarConstraints(model.vocab)

    @property
    def vocab(self) -> Vocabulary:
        return self._model.vocab

    def close(self) -> None:
        self.constraints.close()
        if self.draft is not None:
            self.draft.close()
        self.decoder.close()
        self._model.close()


def open_runtime(settings: RunnerSettings, on_progress: Progress) -> Runtime:
    """Load everything that `settings` ask for. `on_progress` gets (stage, 0 to 1) on the calling thread.

    Raises:
        OperatorError: one sentence on what is wrong and the way out.
    """
    started = time.monotonic()
    type_k, type_v = _kv_types(settings)
    on_progress("hardware", 0.0)
    native()
    choice = choose_cpu(settings.cache_dir, settings.cpu_variant)
    if choice.path is not None:
        backends.load(choice.path)
    gpus = _gpus(settings.device)
    on_progress("hardware", 1.0)
    private = hardware.private_memory()
    model = load_model(
        settings.path,
        settings.offset,
        settings.size,
        devices=gpus,
        n_gpu_layers=settings.n_gpu_layers,
        on_progress=lambda fraction: on_progress("weights", fraction),
    )
    with ExitStack() as undo:
        undo.callback(model.close)
        packed = max(0, hardware.private_memory() - private)
        needs = _needs(model, type_k, type_v, packed, settings)
        if (draft_model := load_draft(settings, model, gpus)) is not None:
            undo.callback(draft_model.close)
            needs = together(needs, _needs(draft_model, KV_TYPE, KV_TYPE, 0, settings))
        on_progress("context", 0.0)
        kv = "streams" if settings.deterministic else settings.kv
        free = hardware.free_memory()
        found = fit(needs, free, ctx_size=settings.ctx_size, parallel=settings.parallel, kv=kv)
        n_threads = settings.threads or hardware.usable_cpus()
        decoder = Context(
            model,
            n_ctx=found.n_ctx,
            n_slots=n_ids(needs, found.n_slots) if found.unified else found.n_slots,
            n_batch=settings.batch_size,
            n_ubatch=settings.ubatch_size,
            n_threads=n_threads,
            type_k=type_k,
            type_v=type_v,
            unified=found.unified,
            n_running=found.n_slots,
        )
        undo.callback(decoder.close)
        draft = None
        if draft_model is not None and decoder.can_rewind:
            cells = {"n_slots": found.n_slots, "n_ctx_slot": min(found.n_ctx // found.n_slots, draft_model.n_ctx_train)}
            draft = Draft(draft_model, model.vocab, **cells, n_threads=lambda: decoder.n_threads)
        elif draft_model is not None:
            log.warning("%s is not used: the model cannot take back guesses that were wrong", draft_model.name)
            draft_model.close()
        undo.pop_all()
    on_progress("context", 1.0)
    log.info("%s; KV cache %s/%s takes %s; %d threads", found.why, type_k, type_v, shown(found.cache_bytes), n_threads)
    info = _info(settings, model, decoder, choice, gpus, found, (type_k, type_v))
    info = msgspec.structs.replace(
        info,
        cache_ram=cache_ram(free - needs.weight_bytes - found.cache_bytes - needs.fixed_bytes, settings.cache_ram),
        spec=_speculation(settings, decoder, draft),
        load_seconds=round(time.monotonic() - started, 3),
    )
    return Runtime(model, decoder, draft, info)


def _kv_types(settings: RunnerSettings) -> tuple[str, str]:
    if settings.deterministic:
        return DETERMINISTIC_KV_TYPE, DETERMINISTIC_KV_TYPE
    return kv_type(settings.cache_type_k), kv_type(settings.cache_type_v)


def _speculation(settings: RunnerSettings, decoder: Context, draft: Draft | None) -> str:
    """What guesses ahead. A model that cannot take a wrong guess back is not guessed for."""
    if settings.spec == "off" or not decoder.can_rewind:
        return "off"
    return "ngram" if draft is None else "draft"


def _gpus(requested: str) -> list[Device]:
    """The GPU devices to use. A GPU library is loaded only after a child process has computed with it and survived."""
    if not backends.wants_gpu(requested):
        return []
    directory = library_directory()
    paths = [library.path for library in backends.libraries(directory) if not library.is_cpu]
    if paths:
        findings = probe.survey(directory, paths, find_best=False)
        for path in paths:
            verdict = findings.verdicts.get(str(path), "it could not be tried")
            if verdict == "":
                backends.load(path)
            else:
                log.info("%s is not used: %s", path.name, verdict)
    return backends.select(requested, backends.devices())


def _needs(model: Model, type_k: str, type_v: str, packed_bytes: int, settings: RunnerSettings) -> Needs:
    """The model's appetite from its header. Where an architecture keeps less than a cell per token and layer, this errs upward."""
    n_heads = model.number("attention.head_count", 1)
    heads = model.numbers("attention.head_count_kv") or [n_heads]
    per_layer = heads if len(heads) > 1 else heads * model.n_layers
    if interval := model.number("full_attention_interval"):  # the layers between keep a running state
        per_layer = per_layer[interval - 1 :: interval]
    head_size = model.n_embd // max(1, n_heads)
    key_length = model.number("attention.key_length", head_size)
    # Latent attention derives V from K.
    value_length = 0 if model.number("attention.key_length_mla") else model.number("attention.value_length", head_size)
    cell = layer_cells(per_layer, key_length, value_length, KV_TYPES[type_k][1], KV_TYPES[type_v][1])
    n_vocab = model.vocab.n_vocab
    n_outputs = 2 * output_rows(settings.parallel or WANTED_SLOTS)  # where they are computed, and where they are read
    activations = settings.ubatch_size * (6 * model.n_embd + 3 * model.number("feed_forward_length"))
    return Needs(
        n_ctx_train=model.n_ctx_train,
        cell_bytes=0 if native().llama_model_is_recurrent(model.handle) else cell,
        slot_bytes=4 * n_vocab + _state_bytes(model),
        fixed_bytes=4 * (n_outputs * n_vocab + activations) + (64 << 20),
        weight_bytes=max(0, model.size - packed_bytes),
        total_weight_bytes=model.size,
        max_slots=int(native().llama_max_parallel_sequences()),
    )


def _state_bytes(model: Model) -> int:
    """Float32 state of recurrent layers for one sequence, as if every layer had it."""
    if not model.is_recurrent:
        return 0
    inner, state = model.number("ssm.inner_size"), model.number("ssm.state_size")
    convolution = max(0, model.number("ssm.conv_kernel") - 1) * (inner + 2 * model.number("ssm.group_count") * state)
    wkv = model.number("wkv.head_size")
    rwkv = model.n_embd * (wkv + model.number("token_shift_count", 2)) if wkv else 0
    short = model.n_embd * max(0, model.number("shortconv.l_cache") - 1)
    return 4 * model.n_layers * (inner * state + convolution + rwkv + short)


def _info(
    settings: RunnerSettings,
    model: Model,
    decoder: Context,
    choice: CpuChoice,
    gpus: list[Device],
    found: Fit,
    kv_types: tuple[str, str],
) -> ModelInfo:
    all_layers = model.n_layers + 1  # the output layer counts
    n_gpu_layers = 0 if not gpus else all_layers if settings.n_gpu_layers is None else min(all_layers, settings.n_gpu_layers)
    used = gpus or [device for device in backends.devices() if device.kind == "cpu"]
    return ModelInfo(
        name=model.name,
        architecture=model.architecture,
        description=model.description,
        n_params=model.n_params,
        size=model.size,
        ftype=model.ftype,
        n_vocab=model.vocab.n_vocab,
        vocab_type=model.vocab.kind,
        n_embd=model.n_embd,
        n_ctx_train=model.n_ctx_train,
        n_ctx=decoder.n_cells,
        n_ctx_slot=decoder.n_ctx_slot,
        n_slots=found.n_slots,
        chat_template=model.chat_template,
        bos_token=model.vocab.bos_text(),
        eos_token=model.vocab.eos_text(),
        add_bos=model.vocab.add_bos,
        cpu_variant=choice.name,
        cpu_variant_reason="; ".join([choice.reason, *(f"{name} was passed over: {why}" for name, why in choice.passed_over)]),
        devices=tuple(f"{device.name} ({device.description})" for device in used),
        n_layers=model.n_layers,
        n_gpu_layers=n_gpu_layers,
        n_threads=decoder.n_threads,
        kv_type_k=kv_types[0],
        kv_type_v=kv_types[1],
        kv_bytes=found.cache_bytes,
        deterministic=settings.deterministic and not gpus and not found.unified and set(kv_types) == {DETERMINISTIC_KV_TYPE},
        kv_unified=found.unified,
        can_rewind=decoder.can_rewind,
        load_seconds=0.0,
        pid=os.getpid(),
    )
