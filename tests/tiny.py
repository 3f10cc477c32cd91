"""Tiny random models of several architectures, written as GGUF files: seconds become milliseconds where weights need no sense."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

N_VOCAB = 320


def _vocabulary(writer: gguf.GGUFWriter, n_vocab: int = N_VOCAB) -> None:
    """SPM: unknown, BOS, EOS, the 256 bytes, and a few words."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *(f"▁w{i}" for i in range(n_vocab - 259))]
    kinds = gguf.TokenType
    types = [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL, *[kinds.BYTE] * 256, *[kinds.NORMAL] * (n_vocab - 259)]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * n_vocab)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def _attention_layer(writer: gguf.GGUFWriter, layer: int, random: np.random.Generator, width: int, extra: tuple[str, ...]) -> None:
    def tensor(name: str, *shape: int) -> None:
        writer.add_tensor(f"blk.{layer}.{name}.weight", (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32))

    for name in ("attn_norm", "ffn_norm", *extra):
        size = 32 if name in ("attn_q_norm", "attn_k_norm") else width
        writer.add_tensor(f"blk.{layer}.{name}.weight", np.ones(size, np.float32))
    for name in ("attn_q", "attn_output"):
        tensor(name, width, width)
    for name in ("attn_k", "attn_v"):
        tensor(name, 32, width)
    tensor("ffn_gate", 2 * width, width)
    tensor("ffn_up", 2 * width, width)
    tensor("ffn_down", width, 2 * width)


def write_attention(
    path: Path, architecture: str = "llama", *, window: int = 0, n_layers: int = 2, split: int = 0, width: int = 64, n_vocab: int = N_VOCAB
) -> Path:
    """A transformer with grouped heads; `window`: sliding attention (gemma3); `split`: tensors per file. Returns the first file."""
    random = np.random.default_rng(1)
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split)
    writer.add_context_length(4096)
    writer.add_embedding_length(width)
    writer.add_block_count(n_layers)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(width // 32)
    writer.add_head_count_kv(1)
    writer.add_key_length(32)
    writer.add_value_length(32)
    writer.add_rope_dimension_count(32)
    writer.add_layer_norm_rms_eps(1e-5)
    if window:
        writer.add_sliding_window(window)
    _vocabulary(writer, n_vocab)
    extra = ("attn_q_norm", "attn_k_norm", "post_attention_norm", "post_ffw_norm") if architecture == "gemma3" else ()
    writer.add_tensor("token_embd.weight", random.standard_normal((n_vocab, width)).astype(np.float32))
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    writer.add_tensor("output.weight", random.standard_normal((n_vocab, width)).astype(np.float32))
    for layer in range(n_layers):
        _attention_layer(writer, layer, random, width, extra)
    _finish(writer)
    return path if not split else next(iter(sorted(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))))


def write_recurrent(path: Path, architecture: str = "mamba") -> Path:
    """Two layers with no cell per token, but a state per sequence; between them, in "jamba", one of attention."""
    width, inner, state, kernel, rank = 32, 64, 16, 4, 8
    hybrid = architecture == "jamba"
    kinds = "mam" if hybrid else "mm"
    random = np.random.default_rng(2)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(4096)
    writer.add_embedding_length(width)
    writer.add_block_count(len(kinds))
    writer.add_feed_forward_length(2 * width if hybrid else 0)
    writer.add_head_count(int(hybrid))
    if hybrid:
        writer.add_head_count_kv([int(kind == "a") for kind in kinds])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    _vocabulary(writer)

    def tensor(name: str, *shape: int) -> None:
        writer.add_tensor(name, (random.standard_normal(shape) / 4).astype(np.float32))

    def ones(name: str, size: int) -> None:
        writer.add_tensor(name, np.ones(size, np.float32))

    tensor("token_embd.weight", N_VOCAB, width)
    ones("output_norm.weight", width)
    for layer, kind in enumerate(kinds):
        block = f"blk.{layer}."
        if kind == "a":
            _attention_layer(writer, layer, random, width, ())
            continue
        ones(block + "attn_norm.weight", width)
        tensor(block + "ssm_in.weight", 2 * inner, width)
        tensor(block + "ssm_conv1d.weight", inner, kernel)
        tensor(block + "ssm_conv1d.bias", inner)
        tensor(block + "ssm_x.weight", rank + 2 * state, inner)
        tensor(block + "ssm_dt.weight", inner, rank)
        tensor(block + "ssm_dt.bias", inner)
        writer.add_tensor(block + "ssm_a", -np.ones((inner, state), np.float32))
        ones(block + "ssm_d", inner)
        tensor(block + "ssm_out.weight", width, inner)
        if hybrid:
            for name, size in (("ssm_dt_norm", rank), ("ssm_b_norm", state), ("ssm_c_norm", state), ("ffn_norm", width)):
                ones(f"{block}{name}.weight", size)
            tensor(block + "ffn_gate.weight", 2 * width, width)
            tensor(block + "ffn_up.weight", 2 * width, width)
            tensor(block + "ffn_down.weight", width, 2 * width)
    _finish(writer)
    return path


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
