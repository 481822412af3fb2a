"""LoRA adapters against transformers on weights that have them merged: PEFT's folders and GGUF
files, an architecture whose files keep rotating channels side by side and others that keep halves,
fused matrices, several ranks and scales in one adapter.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sublimate import _core
from sublimate.model.adapters import read_adapter

pytestmark = pytest.mark.reference
if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers", "gguf")):
    pytest.skip("torch and transformers are not installed", allow_module_level=True)
for folder in ("reference", "unit"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
import gguf  # noqa: E402
import torch  # noqa: E402
from checkpoints import Checkpoint, Shape, permuted  # noqa: E402
from families import FAMILIES, FamilyCheckpoint  # noqa: E402
from test_transformers import (  # noqa: E402
    DEFAULT_BAR,
    EXACT_BAR,
    LENGTH,
    relative_error,
    worst_error,
)

from peft_files import Tensors, factor_of, peft_tensors, write_peft  # noqa: E402

GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
PREFIX = "base_model.model."
SHAPE = Shape()
RANK, ALPHA = 5, 8.0


def checkpoint_of(path: Path, name: str, kind: str) -> Any:
    if name == "llama":
        return Checkpoint(path, SHAPE, kind, "none", seed=7)
    return FamilyCheckpoint(path, name, SHAPE, kind)


def matrices_of(checkpoint: Any) -> dict[str, tuple[int, int]]:
    """What an adapter can change: all matrices of the layers."""
    found: dict[str, tuple[int, int]] = {}
    for name, weight in checkpoint.state.items():
        module = name.removesuffix(".weight")
        if ".layers." in name and module.partition(".layers.")[2].partition(".")[2] in GGUF_NAMES:
            found[module] = tuple(weight.shape)
    return found


def merge(checkpoint: Any, tensors: Tensors, factor: float) -> None:
    """Into transformers' model, for good."""
    state = checkpoint.model.state_dict()
    for name, a in tensors.items():
        if not name.endswith("lora_A.weight"):
            continue
        b = tensors[name.replace("lora_A", "lora_B")]
        module = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
        delta = factor * (b.astype(np.float64) @ a.astype(np.float64))
        with torch.no_grad():
            state[f"{module}.weight"] += torch.from_numpy(delta.astype(np.float32))


def write_gguf(path: Path, name: str, tensors: Tensors, alpha: float) -> Path:
    """As the format's converter writes it: for llama and its kind, rows of heads in pairs."""
    pairs = name == "llama" or FAMILIES[name].pairs
    writer = gguf.GGUFWriter(path, name)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    heads = {"attn_q": SHAPE.heads, "attn_k": SHAPE.kv_heads}
    for told, values in tensors.items():
        layer, module = told.partition(".layers.")[2].split(".lora_")[0].split(".", 1)
        matrix = GGUF_NAMES[module]
        which = "a" if "lora_A" in told else "b"
        if which == "b" and pairs and matrix in heads:
            values = permuted(values, heads[matrix])
        writer.add_tensor(f"blk.{layer}.{matrix}.weight.lora_{which}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("name", "kind", "form"),
    [("llama", "F32", "peft"), ("llama", "Q4_0", "gguf"), ("qwen3", "F32", "gguf"),
     ("qwen3", "Q8_0", "peft"), ("gemma2", "F32", "peft"), ("granite", "F32", "gguf"),
     ("phi3", "F32", "gguf"), ("phi3", "Q4_0", "peft")],
)  # fmt: skip
def test_an_adapter_equals_merged_weights(
    tmp_path: Path, name: str, kind: str, form: str, record_property: Any
) -> None:
    path = tmp_path / "model.gguf"
    checkpoint = checkpoint_of(path, name, kind)
    tensors = peft_tensors(matrices_of(checkpoint), RANK, seed=3)
    other = peft_tensors(matrices_of(checkpoint), 17, seed=4)
    if form == "peft":
        file = write_peft(tmp_path / "adapter", tensors, r=RANK, lora_alpha=ALPHA)
    else:
        file = write_gguf(tmp_path / "adapter.gguf", name, tensors, ALPHA)
    second = write_peft(tmp_path / "other", other, r=17, lora_alpha=1)
    told = [read_adapter("second", second).told(), read_adapter("first", file).told()]
    ids = np.random.default_rng(1).integers(0, SHAPE.vocabulary, LENGTH).tolist()
    base = checkpoint.logits(ids)
    merge(checkpoint, tensors, factor_of(RANK, ALPHA))
    reference = checkpoint.logits(ids)
    assert relative_error(base, reference) > 5 * DEFAULT_BAR  # it is seen whether it was applied
    for exact, bar in ((True, EXACT_BAR), (False, DEFAULT_BAR)):
        model = _core.Model.load(str(path), exact=exact, kv_bytes=1 << 20, threads=1, adapters=told)
        measure = worst_error if exact else relative_error
        for decode in (False, True):
            error = measure(model.logits(ids, decode=decode, adapter=2), reference)
            record_property("exact" if exact else "default", f"{error:.6f}")
            assert error <= bar, f"{'exact' if exact else 'default'}: {error:.5f} > {bar}"
        assert measure(model.logits(ids, adapter=0), base) <= bar
        assert measure(model.logits(ids, adapter=1), reference) > bar


def test_patterns_and_the_square_root(tmp_path: Path) -> None:
    """rank_pattern and alpha_pattern name modules; use_rslora divides by the rank's square root."""
    path = tmp_path / "model.gguf"
    checkpoint = checkpoint_of(path, "llama", "F32")
    matrices = matrices_of(checkpoint)
    values = {name: shape for name, shape in matrices.items() if name.endswith("v_proj")}
    first = {name: shape for name, shape in matrices.items() if "layers.0.mlp" in name}
    assert values and first
    tensors = peft_tensors(values, 3, seed=1) | peft_tensors(first, 9, seed=2)
    patterns = {"model.layers.0.mlp.gate_proj": 9, "0.mlp.up_proj": 9, "mlp.down_proj": 9}
    file = write_peft(
        tmp_path / "adapter",
        tensors,
        dtype="BF16",
        r=3,
        lora_alpha=2,
        use_rslora=True,
        rank_pattern=patterns,
        alpha_pattern={"v_proj": 5.0},
    )
    kept = {
        name: (each.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
        for name, each in tensors.items()
    }
    for names, factor in ((values, factor_of(3, 5.0, use_rslora=True)),
                          (first, factor_of(9, 2.0, use_rslora=True))):  # fmt: skip
        part = {name: each for name, each in kept.items()
                if name.removeprefix(PREFIX).partition(".lora_")[0] in names}  # fmt: skip
        merge(checkpoint, part, factor)
    ids = np.random.default_rng(1).integers(0, SHAPE.vocabulary, LENGTH).tolist()
    reference = checkpoint.logits(ids)
    told = [read_adapter("it", file).told()]
    model = _core.Model.load(str(path), exact=True, kv_bytes=1 << 20, threads=1, adapters=told)
    assert worst_error(model.logits(ids, adapter=1), reference) <= EXACT_BAR
    assert worst_error(model.logits(ids), reference) > EXACT_BAR
    assert model.info["adapters"][0]["rank"] == 9
