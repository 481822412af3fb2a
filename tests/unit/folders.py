"""Hugging Face folders in a few lines, without torch: tiny random models and their files.

defines: CONFIG, random_tensors, write_safetensors, write_folder, write_json
"""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

HIDDEN, INNER, HEADS, KV_HEADS, HEAD, LAYERS, VOCABULARY = 64, 96, 4, 2, 16, 2, 300
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}


def random_tensors(seed: int = 3, around: bool = False) -> dict[str, NDArray[np.float32]]:
    """Of the model that CONFIG describes; with norms around the blocks as Gemma 2 has them."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> NDArray[np.float32]:
        return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def norm() -> NDArray[np.float32]:
        return random.uniform(0.5, 1.5, HIDDEN).astype(np.float32)

    queries, keys = HEADS * HEAD, KV_HEADS * HEAD
    tensors = {"model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        norms = ["input_layernorm", "post_attention_layernorm"]
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if around else []
        for name in norms:
            tensors[f"{prefix}.{name}.weight"] = norm()
        for name, rows, columns in (
            ("self_attn.q_proj", queries, HIDDEN),
            ("self_attn.k_proj", keys, HIDDEN),
            ("self_attn.v_proj", keys, HIDDEN),
            ("self_attn.o_proj", HIDDEN, queries),
            ("mlp.gate_proj", INNER, HIDDEN),
            ("mlp.up_proj", INNER, HIDDEN),
            ("mlp.down_proj", HIDDEN, INNER),
        ):
            tensors[f"{prefix}.{name}.weight"] = matrix(rows, columns)
    tensors["model.norm.weight"] = norm()
    if not around:
        tensors["lm_head.weight"] = matrix(VOCABULARY, HIDDEN)
    return tensors


def as_bytes(array: NDArray[np.float32], dtype: str) -> bytes:
    if dtype == "BF16":
        words = array.view(np.uint32)
        rounded = words + 0x7FFF + (words >> 16 & 1)
        return (rounded >> 16).astype(np.uint16).tobytes()
    return array.astype({"F32": np.float32, "F16": np.float16}[dtype]).tobytes()


def write_safetensors(
    path: Path, tensors: Mapping[str, NDArray[np.float32]], dtype: str = "F32", **header: Any
) -> None:
    """`header` replaces entries, for files that lie."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data, at = [], 0
    for name, array in tensors.items():
        content = as_bytes(array, dtype)
        offsets = [at, at + len(content)]
        entries[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        data.append(content)
        at += len(content)
    encoded = msgspec.json.encode(entries | header)
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + b"".join(data))


def write_json(path: Path, value: object) -> None:
    path.write_bytes(msgspec.json.encode(value))


def write_folder(
    folder: Path,
    tensors: Mapping[str, NDArray[np.float32]] | None = None,
    *,
    dtype: str = "F32",
    shards: int = 1,
    **changes: Any,
) -> Path:
    """A model of CONFIG with other values; None leaves a field out."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {name: value for name, value in (CONFIG | changes).items() if value is not None}
    write_json(folder / "config.json", config)
    every = random_tensors() if tensors is None else tensors
    if shards == 1:
        write_safetensors(folder / "model.safetensors", every, dtype)
        return folder
    weight_map: dict[str, str] = {}
    names = list(every)
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        own = {name: every[name] for name in names[shard::shards]}
        write_safetensors(folder / file, own, dtype)
        weight_map |= dict.fromkeys(own, file)
    write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    return folder
