"""Each family's config.json and names of tensors, in the words of GGUF (docs/hugging-face.md).

Hugging Face folders differ from GGUF files of the same model in a few ways. Three the core knows as
keys of ours: rotating channels lie as two halves in every family, Gemma stores its norms less one,
and config.json says layer by layer which have a window. And each expert is a tensor of its own.

Source: configuration_*.py and modeling_*.py of huggingface/transformers for the fields and their
defaults; convert_hf_to_gguf.py of ggml-org/llama.cpp for the keys that they become.

defines: FULL, WINDOWED, Family, FAMILIES, family_of, keys_of, gguf_name
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from ... import _core
from ...errors import ModelError
from .fields import Fields

LAYERS_MAX, HEAD_DIM_MAX = (_core.LIMITS[name] for name in ("LAYERS_MAX", "HEAD_DIM_MAX"))
"""What is listed for each of them here is listed for no more than the core takes."""
BEFORE = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
AFTER = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
AROUND = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
EXPERT = re.compile(r"mlp\.experts\.(\d{1,4})\.(gate|up|down)_proj", re.ASCII)
ROUTER = "mlp.gate"
LAYER = re.compile(r"model\.layers\.(\d{1,4})\.([a-z_.0-9]{1,60})\.(weight|bias)", re.ASCII)
NOT_WEIGHTS = re.compile(
    # Tables that old checkpoints carry, and what a model that also sees has beside its text.
    r"(model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"
    r"|(model\.)?(vision_tower|vision_model|multi_modal_projector)\..*)"
)
TEXT_PREFIXES = ("language_model.model.", "model.language_model.")
"""Of the text part within a model that also sees."""
FULL, WINDOWED = "full_attention", "sliding_attention"
"""Entries of layer_types."""
SILU = ("silu", "swish")
TANH_GELU = ("gelu_pytorch_tanh",)


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """How one family's folder becomes a model of an architecture."""

    architecture: str
    """Of core/model/architecture.h."""
    norms: Mapping[str, str] = msgspec.field(default_factory=lambda: BEFORE)
    norm_offset: float = 0.0
    """Added to what the files have of a norm."""
    activations: tuple[str, ...] = SILU
    theta: float = 10000.0
    """Rotary base where config.json has none."""
    windows: Literal["none", "layers", "optional"] = "none"
    """Whether sliding_window counts: never, for the layers that have one, or for these only where
    use_sliding_window says so."""
    full_every: int = 0
    """Each n-th layer sees everything where config.json does not say which; 0: none does."""
    scales: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """Fields that multiply something, and their keys."""
    soft_caps: bool = False
    experts: bool = False
    """Each row takes some of many feed-forwards."""
    scalar: str = ""
    """Field whose root divides scores; none: the length of a head."""
    defaults: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Of fields that hand-written config.json files leave out."""


GRANITE_SCALES = {
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "attention_multiplier": "attention.scale",
    "logits_scaling": "logit_scale",
}
GEMMA3 = Family(
    architecture="gemma3",
    norms=AROUND,
    norm_offset=1.0,
    activations=TANH_GELU,
    theta=1e6,
    windows="layers",
    full_every=6,
    scalar="query_pre_attn_scalar",
    defaults={
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
    },
)
FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(architecture="llama"),
    "MistralForCausalLM": Family(
        architecture="mistral",
        windows="layers",
        defaults={"num_key_value_heads": 8, "sliding_window": 4096},
    ),
    "Qwen2ForCausalLM": Family(architecture="qwen2", windows="optional"),
    "Qwen3ForCausalLM": Family(
        architecture="qwen3", windows="optional", defaults={"head_dim": 128}
    ),
    "Qwen3MoeForCausalLM": Family(
        architecture="qwen3moe",
        experts=True,
        windows="optional",
        defaults={
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "intermediate_size": 6144,
        },
    ),
    "GraniteForCausalLM": Family(architecture="granite", scales=GRANITE_SCALES),
    "Olmo2ForCausalLM": Family(architecture="olmo2", norms=AFTER, defaults={"rms_norm_eps": 1e-5}),
    "GemmaForCausalLM": Family(
        architecture="gemma",
        norm_offset=1.0,
        activations=(*TANH_GELU, "gelu"),
        defaults={"head_dim": 256},
    ),
    "Gemma2ForCausalLM": Family(
        architecture="gemma2",
        norms=AROUND,
        norm_offset=1.0,
        activations=TANH_GELU,
        windows="layers",
        full_every=2,
        soft_caps=True,
        scalar="query_pre_attn_scalar",
        defaults={
            "head_dim": 256,
            "rms_norm_eps": 1e-6,
            "sliding_window": 4096,
            "query_pre_attn_scalar": 256,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
    ),
    "Gemma3ForCausalLM": GEMMA3,
    "Gemma3ForConditionalGeneration": GEMMA3,
    "Phi3ForCausalLM": Family(
        architecture="phi3",
        windows="layers",
        defaults={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
    ),
}
"""By an entry of config.json's architectures."""


def family_of(config: Fields) -> tuple[str, Family]:
    """The class that config.json names, and its family. Raises ModelError."""
    named = config.texts("architectures")
    for name in named:
        if name in FAMILIES:
            return name, FAMILIES[name]
    told = ", ".join(named)[:200] or "nothing"
    raise config.error("architectures", f"names {told}; supported are {', '.join(FAMILIES)}")


def gguf_name(name: str, family: Family) -> str:
    """What GGUF calls a tensor; empty for one that no text needs. Raises ModelError."""
    if NOT_WEIGHTS.fullmatch(name):
        return ""
    for prefix in TEXT_PREFIXES:
        if name.startswith(prefix):
            name = f"model.{name.removeprefix(prefix)}"
    name = name.removeprefix("language_model.") if name.endswith("lm_head.weight") else name
    if name in WHOLE:
        return WHOLE[name]
    if match := LAYER.fullmatch(name):
        number, part, kind = match.groups()
        known = family.norms.get(part) or PARTS.get(part)
        if family.experts and part == ROUTER:
            known = "ffn_gate_inp"
        elif family.experts and (expert := EXPERT.fullmatch(part)):
            known = f"ffn_{expert[2]}.{int(expert[1])}"
        if known is not None:
            return f"blk.{int(number)}.{known}.{kind}"
    raise ModelError(
        f"Tensor {name[:80]!r} is not part of a supported {family.architecture} model."
    )


def keys_of(config: Fields, family: Family) -> dict[str, Any]:
    """Metadata of GGUF for the sizes, scales and windows, of config.json with the family's
    defaults. Raises ModelError that names the field."""
    _refuse_what_is_not_computed(config, family)
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    head_dim = config.integer("head_dim", hidden // heads)
    if not 1 <= head_dim <= HEAD_DIM_MAX:
        told = f"(or what hidden_size leaves each head) is {head_dim}, outside 1 to {HEAD_DIM_MAX}"
        raise config.error("head_dim", told)
    layers = config.integer("num_hidden_layers", high=LAYERS_MAX)
    keys: dict[str, Any] = {
        "block_count": layers,
        "context_length": config.integer("max_position_embeddings"),
        "embedding_length": hidden,
        "feed_forward_length": config.integer("intermediate_size"),
        "attention.head_count": heads,
        "attention.head_count_kv": config.integer("num_key_value_heads", heads),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config.positive("rms_norm_eps", 1e-6),
    }
    window, full_every = _windows(config, family, layers)
    keys["attention.sliding_window"] = window
    if family.experts:
        keys |= _experts(config)
    for field, key in family.scales.items():
        keys[key] = config.positive(field, 1.0)
    if family.scalar:
        keys["attention.scale"] = 1.0 / math.sqrt(config.positive(family.scalar))
    if family.soft_caps:
        keys["attn_logit_softcapping"] = config.positive("attn_logit_softcapping")
        keys["final_logit_softcapping"] = config.positive("final_logit_softcapping")
    named = {f"{family.architecture}.{name}": value for name, value in keys.items()}
    return {
        "general.architecture": family.architecture,
        **named,
        "sublimate.rotates_halves": True,
        "sublimate.norm_offset": family.norm_offset,
        "sublimate.full_attention_every": full_every,
    }


def _refuse_what_is_not_computed(config: Fields, family: Family) -> None:
    """Settings that would change what the model computes. Raises ModelError."""
    if config.has("quantization_config"):
        kind = config.within("quantization_config").text("quant_method", "its own method")
        raise config.error(
            "quantization_config",
            f"says that the weights are quantised ({kind}), which is not read: take the model "
            f"unquantised, or a GGUF file of it",
        )
    field = "hidden_activation" if config.has("hidden_activation") else "hidden_act"
    activation = config.text(field, family.activations[0])
    if activation not in family.activations:
        known = " or ".join(family.activations)
        raise config.error(field, f"is {activation[:40]!r}; {family.architecture} has {known}")
    if config.flag("use_bidirectional_attention"):
        raise config.error("use_bidirectional_attention", "is not supported")
    if not family.soft_caps:
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            if config.has(name):
                raise config.error(name, f"is not part of a {family.architecture} model")


def _experts(config: Fields) -> dict[str, Any]:
    """Every layer has them. Raises ModelError."""
    if config.integer("decoder_sparse_step", 1) != 1 or config.get("mlp_only_layers"):
        raise config.error("mlp_only_layers", "and decoder_sparse_step: layers without experts are "
                           "not supported")  # fmt: skip
    return {
        # Newer files have the second name.
        "expert_count": config.integer("num_experts", config.integer("num_local_experts", 128)),
        "expert_used_count": config.integer("num_experts_per_tok"),
        "expert_feed_forward_length": config.integer("moe_intermediate_size"),
        "expert_weights_norm": config.flag("norm_topk_prob"),
    }


def _windows(config: Fields, family: Family, layers: int) -> tuple[int, int]:
    """(positions that a layer with a window sees, 0: there is none; each n-th layer sees
    everything, 0: none does). Raises ModelError."""
    counts = family.windows == "layers" or (
        family.windows == "optional" and config.flag("use_sliding_window")
    )
    window = config.integer("sliding_window", 0, low=0) if counts else 0
    if window == 0:
        return 0, 0
    kinds = config.texts("layer_types") or _usual_kinds(config, family, layers)
    full = [index for index, kind in enumerate(kinds) if kind == FULL]
    every = full[0] + 1 if full else 0
    if every == 1:
        if len(full) == len(kinds):
            return 0, 0
    elif kinds == _each_full(every, layers):
        return window, every
    raise config.error(
        "layer_types", "has windows in layers of no regular pattern, which is not supported"
    )


def _usual_kinds(config: Fields, family: Family, layers: int) -> list[str]:
    if family.windows == "optional":
        first = config.integer("max_window_layers", 28, low=0)
        return [WINDOWED if layer >= first else FULL for layer in range(layers)]
    return _each_full(config.integer("sliding_window_pattern", family.full_every, low=0), layers)


def _each_full(every: int, layers: int) -> list[str]:
    return [FULL if every and (layer + 1) % every == 0 else WINDOWED for layer in range(layers)]
