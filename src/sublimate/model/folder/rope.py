"""The rotary embedding of config.json: keys of GGUF, and divisors of frequencies as tensors.

Source: modeling_rope_utils.py of huggingface/transformers for what the fields mean; of old files
too, which have rope_theta and rope_scaling where new ones have rope_parameters.

defines: Rope, read_rope
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from .families import FULL, WINDOWED, Family
from .fields import Fields

LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
LLAMA3_FACTORS = "rope_freqs.weight"
OWN_ROPE = "gemma3"
"""Layers with a window have an embedding of their own."""
KINDS = "default, linear, yarn, llama3 and longrope are"


class Rope(msgspec.Struct, frozen=True):
    """Without the architecture's name before the keys."""

    keys: dict[str, Any]
    divisors: dict[str, list[float]]
    """Name of a tensor -> one number for each pair of channels."""


def read_rope(config: Fields, family: Family, head_dim: int) -> Rope:
    """Raises ModelError that names the field."""
    full, windowed = _parameters(config, family)
    partial = full.positive("partial_rotary_factor", config.positive("partial_rotary_factor", 1.0))
    if partial > 1.0:
        raise config.error("partial_rotary_factor", f"is {partial:g}, above 1")
    dimension = int(head_dim * partial)
    theta = full.positive("rope_theta", config.positive("rope_theta", family.theta))
    keys: dict[str, Any] = {"rope.dimension_count": dimension, "rope.freq_base": theta}
    if windowed is not None:
        default = config.positive("rope_local_base_freq", 10000.0)
        keys["rope.freq_base_swa"] = windowed.positive("rope_theta", default)
        if _kind(windowed) != "default":
            raise windowed.error("rope_type", "must be default for layers with a window")
    kind = _kind(full)
    if kind in ("su", "yarn") and family.architecture == "phi3":
        kind = "longrope"  # its names before the paper's
    original = full.integer(
        "original_max_position_embeddings", config.integer("max_position_embeddings")
    )
    original = config.integer("original_max_position_embeddings", original)
    if kind == "default":
        return Rope(keys, {})
    if kind == "linear":
        more = {"rope.scaling.type": "linear", "rope.scaling.factor": full.positive("factor")}
        return Rope(keys | more, {})
    if kind == "yarn":
        return Rope(keys | _yarn(full, original), {})
    if kind == "llama3":
        return Rope(keys, {LLAMA3_FACTORS: _llama3(full, original, theta, dimension)})
    if kind == "longrope":
        return _longrope(config, full, original, keys)
    raise full.error("rope_type", f"{kind[:40]!r} is not supported ({KINDS})")


def _kind(parameters: Fields) -> str:
    return parameters.text("rope_type", parameters.text("type", "default"))


def _parameters(config: Fields, family: Family) -> tuple[Fields, Fields | None]:
    """Of the layers that see everything, and of those with a window where they have their own."""
    field = "rope_parameters" if config.has("rope_parameters") else "rope_scaling"
    parameters = config.within(field)
    if parameters.has(FULL) or parameters.has(WINDOWED):
        if family.architecture != OWN_ROPE:
            raise config.error(field, "by the kind of a layer is not supported for this family")
        return parameters.within(FULL), parameters.within(WINDOWED)
    own = family.architecture == OWN_ROPE
    return parameters, Fields({}, "config.json: rope_parameters") if own else None


def _yarn(parameters: Fields, original: int) -> dict[str, Any]:
    """The core multiplies the paper's 0.1 ln(factor) + 1 with what the key attn_factor says."""
    if not parameters.flag("truncate", True):
        raise parameters.error("truncate", "false is not supported")
    factor = parameters.positive("factor")
    usual = _magnitude(factor, 1.0)
    wanted = usual
    scale, all_dim = parameters.number("mscale", 0.0), parameters.number("mscale_all_dim", 0.0)
    if min(scale, all_dim) < 0.0:
        raise parameters.error("mscale", "and mscale_all_dim must not be below zero")
    if scale and all_dim:
        wanted = _magnitude(factor, scale) / _magnitude(factor, all_dim)
    wanted = parameters.positive("attention_factor", wanted)
    return {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": original,
        "rope.scaling.attn_factor": wanted / usual,
        "rope.scaling.yarn_beta_fast": parameters.positive("beta_fast", 32.0),
        "rope.scaling.yarn_beta_slow": parameters.positive("beta_slow", 1.0),
    }


def _magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * scale * math.log(factor) + 1.0


def _llama3(parameters: Fields, original: int, theta: float, dimension: int) -> list[float]:
    """Long waves are stretched, short ones stay, and those between are mixed."""
    factor = parameters.positive("factor")
    low = parameters.positive("low_freq_factor")
    high = parameters.positive("high_freq_factor")
    if high <= low:
        raise parameters.error("high_freq_factor", "must be above low_freq_factor")
    divisors: list[float] = []
    for pair in range(0, dimension, 2):
        turns = original / (2.0 * math.pi * theta ** (pair / dimension))
        share = min(max((turns - low) / (high - low), 0.0), 1.0)
        divisors.append(1.0 / ((1.0 - share) / factor + share))
    return divisors


def _longrope(config: Fields, parameters: Fields, original: int, keys: dict[str, Any]) -> Rope:
    pairs = int(keys["rope.dimension_count"]) // 2
    factor = config.integer("max_position_embeddings") / original
    stretch = 1.0
    if factor > 1.0 and original > 1:
        stretch = math.sqrt(1.0 + math.log(factor) / math.log(original))
    more = {
        "rope.scaling.original_context_length": original,
        "rope.scaling.attn_factor": parameters.positive("attention_factor", stretch),
    }
    return Rope(
        keys | more,
        {
            LONG_FACTORS: parameters.numbers("long_factor", pairs),
            SHORT_FACTORS: parameters.numbers("short_factor", pairs),
        },
    )
