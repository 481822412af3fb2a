"""Writes LoRA adapters as PEFT saves them, right or wrong on purpose.

defines: peft_tensors, write_safetensors, write_peft, factor_of
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tensors = dict[str, NDArray[np.float32]]
DTYPES = {"F32": np.float32, "F16": np.float16}
CONFIG: dict[str, Any] = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "a/model",
    "r": 4,
    "lora_alpha": 6,
    "lora_dropout": 0.05,
    "use_rslora": False,
    "use_dora": False,
    "bias": "none",
    "fan_in_fan_out": False,
    "modules_to_save": None,
    "rank_pattern": {},
    "alpha_pattern": {},
    "target_modules": ["q_proj", "v_proj"],
    "init_lora_weights": True,
}


def peft_tensors(
    matrices: Mapping[str, tuple[int, int]], rank: int, seed: int, scale: float = 0.5
) -> Tensors:
    """A and B by the name of a matrix of transformers' model: (rows, columns)."""
    random = np.random.default_rng(seed)
    tensors: Tensors = {}
    for name, (rows, columns) in matrices.items():
        a = random.standard_normal((rank, columns)) / math.sqrt(columns)
        b = random.standard_normal((rows, rank)) * scale
        tensors[f"base_model.model.{name}.lora_A.weight"] = a.astype(np.float32)
        tensors[f"base_model.model.{name}.lora_B.weight"] = b.astype(np.float32)
    return tensors


def write_safetensors(path: Path, tensors: Tensors, dtype: str = "F32", **changes: Any) -> None:
    """changes: of the header, by a tensor's name; None takes it out."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        if dtype == "BF16":
            raw = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        else:
            raw = values.astype(DTYPES[dtype]).tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": offsets}
        data += raw
    for name, change in changes.items():
        header[name] = {**header.get(name, {}), **change}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_peft(folder: Path, tensors: Tensors, dtype: str = "F32", **config: Any) -> Path:
    """The folder. config: fields of adapter_config.json; None for one that is null."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    write_safetensors(folder / "adapter_model.safetensors", tensors, dtype)
    return folder


def factor_of(rank: int, alpha: float, *, use_rslora: bool = False) -> float:
    """What B A is multiplied by."""
    return alpha / (math.sqrt(rank) if use_rslora else rank)
