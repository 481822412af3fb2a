"""LoRA adapters: files that change a model a little, for the requests that name them.

Two kinds are read: a folder as PEFT saves it (adapter_config.json, adapter_model.safetensors), of
which this module tells the core what lies where, and a GGUF file (general.type = adapter), which
the core reads itself. What would change more than the products of matrices is refused with the
reason.

Sources: huggingface/peft, src/peft/tuners/lora/config.py and src/peft/utils/other.py (names and
patterns); huggingface/safetensors, README (the format).

defines: AdapterTensor, AdapterFile, parse_adapter, check_adapters, read_adapter
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from .. import _core
from ..errors import ConfigError, ModelError
from .folder.documents import read_document, size_of
from .folder.safetensors import Stored, read_header
from .parts import is_utf8

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PICKLES = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth")
SUFFIX = ".gguf"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}", re.ASCII)
"""No colon: it parts an adapter from the model before it."""
RANK_MAX = _core.LIMITS["ADAPTER_RANK_MAX"]
TENSOR = re.compile(
    r"(?P<module>(?:[a-z_]+\.){0,4}layers\.(?P<layer>\d{1,4})\.(?P<part>[a-z_.]{1,40}))"
    r"\.lora_(?P<which>[AB])(?:\.default)?\.weight",
    re.ASCII,
)
MATRICES = {
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
"""Of a layer: what it is called in GGUF files."""
OTHER_TENSORS = {
    "lora_magnitude_vector": "belongs to DoRA, which is not supported: merge the adapter",
    "lora_embedding": "adapts the embedding, which is not supported",
    "modules_to_save": "replaces a whole module, which is not supported",
    "lm_head": "adapts the output matrix, which is not supported",
    ".experts.": "adapts an expert, which is not supported",
    ".bias": "is a bias, which is not supported",
}
"""Part of the name of a tensor that cannot be used: why."""
OTHER_STARTS = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Values of init_lora_weights that change the model's weights too, unless they were converted."""


class _Config(msgspec.Struct, frozen=True):
    """Of adapter_config.json, what changes the result; all else is how it was trained."""

    peft_type: str = ""
    r: int = 8
    lora_alpha: float = 8
    use_rslora: bool = False
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    fan_in_fan_out: bool = False
    use_dora: bool = False
    bias: str = "none"
    lora_bias: bool = False
    use_qalora: bool = False
    modules_to_save: list[str] | None = None
    trainable_token_indices: Any = None
    layer_replication: Any = None
    alora_invocation_tokens: Any = None
    target_parameters: Any = None
    init_lora_weights: bool | str | None = True


class AdapterTensor(msgspec.Struct, frozen=True):
    """Where a matrix lies in the file of weights."""

    name: str
    target: str
    """As GGUF adapters call it: blk.0.attn_q.weight.lora_a."""
    type: str
    rows: int
    columns: int
    offset: int
    factor: float
    """What the product of A and B is multiplied by."""


class AdapterFile(msgspec.Struct, frozen=True, kw_only=True):
    """One adapter as the core loads it."""

    name: str
    """That requests ask for."""
    path: Path
    """Of the file of weights."""
    tensors: tuple[AdapterTensor, ...] = ()
    """None: a GGUF file, of which the core reads them."""

    def told(self) -> tuple[str, str, list[tuple[Any, ...]]]:
        """For `_core.Model.load`."""
        return self.name, str(self.path), [msgspec.structs.astuple(each) for each in self.tensors]


def parse_adapter(text: str) -> tuple[str, Path]:
    """(name, path) of NAME=PATH. Raises ConfigError."""
    name, _, path = text.partition("=")
    if not path or not NAME.fullmatch(name):
        raise ConfigError(
            f"lora = {text!r}: expected NAME=PATH, with a name of letters, digits, dots, - and _."
        )
    return name, Path(path).expanduser()


def check_adapters(texts: Iterable[str]) -> tuple[str, ...]:
    """The same with absolute paths, each looked at. Raises ConfigError, ModelError."""
    found: dict[str, str] = {}
    for text in texts:
        name, path = parse_adapter(text)
        if name in found:
            raise ConfigError(f"lora = {text!r}: another adapter has this name.")
        read_adapter(name, path)
        found[name] = f"{name}={path.resolve()}"
    if len(found) > _core.LIMITS["ADAPTERS_MAX"]:
        raise ConfigError(f"lora: more than {_core.LIMITS['ADAPTERS_MAX']} adapters.")
    return tuple(found.values())


def read_adapter(name: str, path: Path) -> AdapterFile:
    """A folder as PEFT saves it, or a GGUF file, whose tensors the core looks at. Raises
    ModelError."""
    if not is_utf8(path.resolve()):
        raise ModelError(f"The adapter {name}: the name of {str(path)!a} is not UTF-8.")
    try:
        is_folder = path.is_dir()
        if not is_folder and not path.is_file():
            raise ModelError(f"The adapter {name}: {path} is neither a folder nor a file.")
    except OSError as error:
        raise ModelError(f"The adapter {name}: {path}: {error.strerror}.") from None
    try:
        if is_folder:
            return AdapterFile(name=name, path=path / WEIGHTS, tensors=_read_folder(path))
        if path.suffix.lower() != SUFFIX:
            raise ModelError(f"{path} is no folder as PEFT saves it, and no {SUFFIX} file")
        kind = _core.Gguf(str(path)).metadata.get("general.type")
        if kind != "adapter":
            what = "it has none" if kind is None else f"it is {str(kind)[:40]!r}"
            raise ModelError(f"{path} is no adapter, which its general.type would say: {what}")
    except (ModelError, _core.CoreError) as error:
        raise ModelError(f"The adapter {name}: {str(error).rstrip('.')}.") from None
    return AdapterFile(name=name, path=path)


# ---- PEFT ----------------------------------------------------------------------------------------
def _read_folder(folder: Path) -> tuple[AdapterTensor, ...]:
    weights = folder / WEIGHTS
    if not weights.exists():
        for pickle in PICKLES:
            if (folder / pickle).exists():
                raise ModelError(
                    f"{folder / pickle} is a pickle, which is not read: save it as {WEIGHTS}"
                )
    config = _read_config(folder / CONFIG)
    found = read_header(weights, size_of(weights))
    tensors = tuple(_tensor(name, stored, config) for name, stored in sorted(found.items()))
    if not tensors:
        raise ModelError(f"{weights} holds no adapter")
    return tensors


def _read_config(path: Path) -> _Config:
    config = read_document(path, _Config)
    start = config.init_lora_weights
    refused = {
        f"peft_type is {config.peft_type!r}; LORA is supported": config.peft_type != "LORA",
        "use_dora: DoRA is not supported; merge the adapter": config.use_dora,
        f"bias = {config.bias!r}: biases are not supported": config.bias != "none",
        "lora_bias: biases are not supported": config.lora_bias,
        "modules_to_save: whole modules are not supported": bool(config.modules_to_save),
        "trainable_token_indices are not supported": bool(config.trainable_token_indices),
        "fan_in_fan_out: transposed weights are not supported": config.fan_in_fan_out,
        "use_qalora: QALoRA is not supported": config.use_qalora,
        "layer_replication is not supported": bool(config.layer_replication),
        "alora_invocation_tokens: aLoRA is not supported": bool(config.alora_invocation_tokens),
        "target_parameters are not supported": bool(config.target_parameters),
        f"init_lora_weights = {start!r} changes the model's weights too: convert the adapter when "
        "it is saved (path_initial_model_for_weight_conversion)": isinstance(start, str)
        and start.lower().startswith(OTHER_STARTS),
        f"r = {config.r}: outside 1 to {RANK_MAX}": not 1 <= config.r <= RANK_MAX,
        "lora_alpha is no finite number": not math.isfinite(config.lora_alpha),
    }
    for reason, holds in refused.items():
        if holds:
            raise ModelError(f"{path}: {reason}")
    for pattern in (*(config.rank_pattern or ()), *(config.alpha_pattern or ())):
        if not re.fullmatch(r"[A-Za-z0-9_.]{1,200}", pattern, re.ASCII):
            raise ModelError(
                f"{path}: of rank_pattern and alpha_pattern names are read, not "
                f"expressions such as {pattern[:60]!r}"
            )
    return config


def _of_pattern(patterns: Mapping[str, Any] | None, module: str, default: Any) -> Any:
    """The value of the first name that is this module's, or the end of it."""
    for name, value in (patterns or {}).items():
        if module == name or module.endswith(f".{name}"):
            return value
    return default


def _tensor(name: str, stored: Stored, config: _Config) -> AdapterTensor:
    shown = f"tensor {name[:120]!r}"
    for part, reason in OTHER_TENSORS.items():
        if part in name:
            raise ModelError(f"{shown} {reason}")
    match = TENSOR.fullmatch(name)
    matrix = MATRICES.get(match["part"]) if match else None
    if match is None or matrix is None:
        raise ModelError(f"{shown} is no adapter of a matrix that can have one")
    if len(stored.shape) != 2:
        raise ModelError(f"{shown} has the shape {stored.shape[:8]}, not (rows, columns)")
    stored.check(name)
    rows, columns = stored.shape
    rank = rows if match["which"] == "A" else columns
    wanted = _of_pattern(config.rank_pattern, match["module"], config.r)
    if rank != wanted:
        raise ModelError(f"{shown} has the rank {rank}, its configuration {wanted}")
    alpha = _of_pattern(config.alpha_pattern, match["module"], config.lora_alpha)
    return AdapterTensor(
        name=name,
        target=f"blk.{int(match['layer'])}.{matrix}.weight.lora_{match['which'].lower()}",
        type=stored.dtype,
        rows=rows,
        columns=columns,
        offset=stored.begin,
        factor=alpha / (math.sqrt(rank) if config.use_rslora else rank),
    )
