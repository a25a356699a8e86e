"""Small models with random but well-scaled weights and a tokenizer of bytes, one for each attention that differs.

The head sizes, the ratio of query to K/V heads and the parameters of the attention are those of real models; the rest
is as small as llama.cpp allows. A model is the same for the same specification.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

UNKNOWN, CONTROL, BYTE = 2, 3, 6  # llama_token_type
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
TOKEN_TYPES = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
NO_SCALES: Mapping[str, float] = {}
Shapes = Iterator[tuple[str, tuple[int, ...]]]
"""Names of tensors with their shapes in NumPy's order, outermost first."""


@dataclass(frozen=True)
class Model:
    """A small model; `extra` are further fields of its architecture, `layer` names the tensors of one of its layers."""

    arch: str
    n_embd: int
    n_head: int
    n_head_kv: int
    head_size: int
    layer: "Callable[[Model, int], Shapes]"
    n_ff: int = 128
    n_layer: int = 2
    window: int = 0
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the architecture without its prefix."""
        common = {
            "block_count": self.n_layer,
            "context_length": 4096,
            "embedding_length": self.n_embd,
            "feed_forward_length": self.n_ff,
            "attention.head_count": self.n_head,
            "attention.head_count_kv": self.n_head_kv,
            "attention.key_length": self.head_size,
            "attention.value_length": self.head_size,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.dimension_count": self.head_size,
            "rope.freq_base": 10000.0,
        }
        return common | ({"attention.sliding_window": self.window} if self.window else {}) | self.extra

    @property
    def tensors(self) -> Shapes:
        """All tensors."""
        yield "token_embd.weight", (len(TOKENS), self.n_embd)
        yield "output_norm.weight", (self.n_embd,)
        if self.arch != "gemma2":  # its output is the embedding
            yield "output.weight", (len(TOKENS), self.n_embd)
        for index in range(self.n_layer):
            for name, shape in self.layer(self, index):
                yield f"blk.{index}.{name}", shape


def attention(model: Model, *, bias: bool = False) -> Shapes:
    """The projections of ordinary attention."""
    q, kv = model.n_head * model.head_size, model.n_head_kv * model.head_size
    yield "attn_norm.weight", (model.n_embd,)
    for name, rows in (("attn_q", q), ("attn_k", kv), ("attn_v", kv)):
        yield f"{name}.weight", (rows, model.n_embd)
        if bias:
            yield f"{name}.bias", (rows,)
    yield "attn_output.weight", (model.n_embd, q)


def feed_forward(model: Model) -> Shapes:
    """A gated feed-forward network."""
    yield "ffn_norm.weight", (model.n_embd,)
    yield "ffn_gate.weight", (model.n_ff, model.n_embd)
    yield "ffn_up.weight", (model.n_ff, model.n_embd)
    yield "ffn_down.weight", (model.n_embd, model.n_ff)


def experts(model: Model, count: int, size: int) -> Shapes:
    """A mixture of experts."""
    yield "ffn_gate_inp.weight", (count, model.n_embd)
    yield "ffn_gate_exps.weight", (count, size, model.n_embd)
    yield "ffn_up_exps.weight", (count, size, model.n_embd)
    yield "ffn_down_exps.weight", (count, model.n_embd, size)


def llama_layer(model: Model, _index: int) -> Shapes:
    yield from attention(model, bias=model.arch == "qwen2")
    yield from feed_forward(model)


def qwen3_layer(model: Model, _index: int) -> Shapes:
    yield from attention(model)
    yield "attn_q_norm.weight", (model.head_size,)
    yield "attn_k_norm.weight", (model.head_size,)
    yield from feed_forward(model)


def gemma2_layer(model: Model, _index: int) -> Shapes:
    yield from attention(model)
    yield "post_attention_norm.weight", (model.n_embd,)
    yield from feed_forward(model)
    yield "post_ffw_norm.weight", (model.n_embd,)


def gpt_oss_layer(model: Model, _index: int) -> Shapes:
    yield from attention(model, bias=True)
    yield "attn_output.bias", (model.n_embd,)
    yield "attn_sinks.weight", (model.n_head,)
    yield "post_attention_norm.weight", (model.n_embd,)
    yield from experts(model, 4, 64)
    yield "ffn_gate_inp.bias", (4,)
    yield "ffn_gate_exps.bias", (4, 64)
    yield "ffn_up_exps.bias", (4, 64)
    yield "ffn_down_exps.bias", (4, model.n_embd)


def deepseek2_layer(model: Model, index: int) -> Shapes:
    """MLA with the absorbed projections: K has 512 + 64 values, of which V is the first 512."""
    nope, rope, value, latent, q_rank = 128, 64, 128, 512, 128
    yield "attn_norm.weight", (model.n_embd,)
    yield "attn_q_a_norm.weight", (q_rank,)
    yield "attn_kv_a_norm.weight", (latent,)
    yield "attn_q_a.weight", (q_rank, model.n_embd)
    yield "attn_q_b.weight", (model.n_head * (nope + rope), q_rank)
    yield "attn_kv_a_mqa.weight", (latent + rope, model.n_embd)
    yield "attn_k_b.weight", (model.n_head, latent, nope)
    yield "attn_v_b.weight", (model.n_head, value, latent)
    yield "attn_output.weight", (model.n_embd, model.n_head * value)
    if index == 0:
        yield from feed_forward(model)
        return
    yield "ffn_norm.weight", (model.n_embd,)
    yield from experts(model, 4, 64)
    yield "ffn_gate_shexp.weight", (64, model.n_embd)
    yield "ffn_up_shexp.weight", (64, model.n_embd)
    yield "ffn_down_shexp.weight", (model.n_embd, 64)


def jamba_layer(model: Model, index: int) -> Shapes:
    """A layer of Mamba first, then one of attention."""
    if index > 0:
        yield from attention(model)
    else:
        inner, state, rank, width = 2 * model.n_embd, 16, 16, 4
        yield "attn_norm.weight", (model.n_embd,)
        yield "ssm_in.weight", (2 * inner, model.n_embd)
        yield "ssm_conv1d.weight", (inner, width)
        yield "ssm_conv1d.bias", (inner,)
        yield "ssm_x.weight", (rank + 2 * state, inner)
        yield "ssm_dt_norm.weight", (rank,)
        yield "ssm_dt.weight", (inner, rank)
        yield "ssm_dt.bias", (inner,)
        yield "ssm_b_norm.weight", (state,)
        yield "ssm_c_norm.weight", (state,)
        yield "ssm_a", (inner, state)
        yield "ssm_d", (inner,)
        yield "ssm_out.weight", (model.n_embd, inner)
    yield from feed_forward(model)


EXPERTS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 64}
MLA = {
    "attention.key_length": 576,
    "attention.value_length": 512,
    "attention.key_length_mla": 192,
    "attention.value_length_mla": 128,
    "attention.kv_lora_rank": 512,
    "attention.q_lora_rank": 128,
    "rope.dimension_count": 64,
    "leading_dense_block_count": 1,
    "expert_shared_count": 1,
    "expert_weights_scale": 1.0,
}
MAMBA = {
    "attention.head_count_kv": [0, 1],
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 512,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 16,
}
SOFTCAP = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
MODELS = {
    "llama": Model("llama", 512, 8, 2, 128, llama_layer),
    "qwen2": Model("qwen2", 896, 14, 2, 64, llama_layer),
    "qwen3": Model("qwen3", 256, 16, 8, 128, qwen3_layer),
    "gemma2": Model("gemma2", 512, 4, 2, 256, gemma2_layer, window=64, extra=SOFTCAP),
    "gpt-oss": Model("gpt-oss", 256, 16, 2, 64, gpt_oss_layer, window=64, extra=EXPERTS),
    "deepseek2": Model("deepseek2", 256, 16, 1, 576, deepseek2_layer, extra=MLA | EXPERTS),
    "jamba": Model("jamba", 256, 4, 1, 64, jamba_layer, extra=MAMBA),
}


def weights(name: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Weights that keep the scale of activations: matrices in f16, variance 1/inputs; norms in f32, around 1."""
    if name.endswith("ssm_a"):
        return -np.exp(random.uniform(-1, 1, shape)).astype(np.float32)
    if "norm" in name or name.endswith("ssm_d"):
        return random.normal(1.0, 0.1, shape).astype(np.float32)
    if len(shape) == 1 or name.endswith((".bias", "ssm_conv1d.weight")):
        return random.normal(0.0, 0.3, shape).astype(np.float32)
    if name == "token_embd.weight":
        return random.normal(0.0, 1.0, shape).astype(np.float16)
    return random.normal(0.0, shape[-1] ** -0.5, shape).astype(np.float16)


def add_field(writer: GGUFWriter, key: str, value: Any) -> None:
    """Add a field of the type that llama.cpp reads."""
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def make_model(model: Model, path: Path, seed: int = 1, scales: Mapping[str, float] = NO_SCALES) -> Path:
    """Write a model; `scales` multiplies the weights whose names end so."""
    writer = GGUFWriter(path, model.arch)
    for key, value in model.fields.items():
        add_field(writer, f"{model.arch}.{key}", value)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([0.0] * len(TOKENS))
    writer.add_token_types(TOKEN_TYPES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    random = np.random.default_rng(seed)
    for name, shape in model.tensors:
        found = weights(name, shape, random)
        scale = math.prod(factor for ending, factor in scales.items() if name.endswith(ending))
        writer.add_tensor(name, (found.astype(np.float64) * scale).astype(found.dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
