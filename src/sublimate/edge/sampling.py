"""Sampling parameters: as a body names them, and checked.

All surfaces take the same ones, whatever they call them: a request struct that inherits
SamplingFields has them under the names of the Messages API and of other local servers.

defines: SamplingFields, Sampling, Defaults, defaults_of, with_defaults, token_limit, check_sampling
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import msgspec

from . import limits
from .errors import field_error

INT32_MAX = (1 << 31) - 1
UNLIMITED = INT32_MAX
"""max_tokens of a request that names none: as much as the context has room for."""
NO_LIMIT = (None, -1, -2)
"""What clients of other servers send for that; -2 is Ollama's."""
LOWEST_SEED = -(1 << (limits.SEED_BITS - 1))
HIGHEST_SEED = 1 << limits.SEED_BITS
FLOAT_STEP = 1e-6
"""Distance kept from an open bound, so that rounding to float32 does not reach it."""


class SamplingFields(msgspec.Struct, kw_only=True):
    """What a body may say of sampling; None where it says nothing."""

    max_tokens: int | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    # Extensions, under the names that other local servers gave them.
    seed: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None


class Sampling(msgspec.Struct, frozen=True):
    """Checked sampling parameters; the request record takes them as they are."""

    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int | None
    ignore_eos: bool
    stop_sequences: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    logit_bias: tuple[tuple[int, float], ...]
    logprobs: int = -1
    """Alternatives told per token, beside its own log-probability; -1: neither."""


Defaults = Mapping[str, float | int]
"""Field of SamplingFields -> what it is where a request does not say."""
KEYS = {
    "temp": ("temperature", 0.0, limits.TEMPERATURE_MAX),
    "top_p": ("top_p", FLOAT_STEP, 1.0),
    "top_k": ("top_k", 1, INT32_MAX),
    "min_p": ("min_p", 0.0, 1.0 - FLOAT_STEP),
    "penalty_repeat": ("repetition_penalty", FLOAT_STEP, limits.REPETITION_PENALTY_MAX),
}
"""What follows general.sampling. in a model's metadata -> field, and the range that it may have."""


def defaults_of(metadata: Mapping[str, Any]) -> Defaults:
    """What a model recommends, each as far as a request might ask for it."""
    found: dict[str, float | int] = {}
    for key, (field, low, high) in KEYS.items():
        value = metadata.get(f"general.sampling.{key}")
        if isinstance(value, int | float) and low <= value <= high:
            found[field] = int(value) if field == "top_k" else float(value)
    return found


def with_defaults(fields: SamplingFields, defaults: Defaults) -> SamplingFields:
    """The same, with what the model recommends where the request says nothing."""
    missing = [name for name in defaults if getattr(fields, name) is None]
    if not missing:
        return fields
    filled = copy.copy(fields)
    for name in missing:
        setattr(filled, name, defaults[name])
    return filled


def token_limit(value: int | None) -> int:
    """max_tokens of an API in which leaving it out or a negative value means no limit."""
    return UNLIMITED if value in NO_LIMIT else value


def check_sampling(
    fields: SamplingFields, *, vocabulary: int, stop_ids_max: int, bias_max: int
) -> Sampling:
    """Every number finite and inside its range, or ApiError that names the field."""
    if fields.max_tokens is None:
        raise field_error("max_tokens", "field required")
    penalty = limits.PENALTY_MAX
    seed = fields.seed
    if seed is not None and not LOWEST_SEED <= seed < HIGHEST_SEED:
        raise field_error("seed", "expected a 64-bit integer")
    return Sampling(
        max_tokens=min(_within("max_tokens", fields.max_tokens, 0, None), INT32_MAX),
        temperature=_number("temperature", fields.temperature, 1.0, 0.0, limits.TEMPERATURE_MAX),
        # Other servers write "off" as top_p 0 and top_k -1.
        top_p=_above_zero("top_p", fields.top_p or None, 1.0),
        top_k=min(_within("top_k", _top_k(fields.top_k), 0, INT32_MAX), vocabulary),
        min_p=_number("min_p", fields.min_p, 0.0, 0.0, 1.0, below=True),
        repetition_penalty=_above_zero(
            "repetition_penalty", fields.repetition_penalty, limits.REPETITION_PENALTY_MAX
        ),
        presence_penalty=_number("presence_penalty", fields.presence_penalty, 0, -penalty, penalty),
        frequency_penalty=_number(
            "frequency_penalty", fields.frequency_penalty, 0, -penalty, penalty
        ),
        seed=seed,
        ignore_eos=bool(fields.ignore_eos),
        stop_sequences=_stop_sequences(fields.stop_sequences or []),
        stop_token_ids=_stop_token_ids(fields.stop_token_ids or [], vocabulary, stop_ids_max),
        logit_bias=_logit_bias(fields.logit_bias or {}, vocabulary, bias_max),
    )


# The comparisons are written so that NaN fails them.
def _number(
    name: str, value: float | None, default: float, low: float, high: float, below: bool = False
) -> float:
    if value is None:
        return float(default)
    if not low <= value <= high or (below and not value < high):
        raise field_error(name, f"expected a number from {low:g} to {'below ' * below}{high:g}")
    return min(value, high - FLOAT_STEP) if below else value


def _above_zero(name: str, value: float | None, high: float) -> float:
    if value is None:
        return 1.0
    if not 0 < value <= high:
        raise field_error(name, f"expected a number above 0 and at most {high:g}")
    return max(value, FLOAT_STEP)


def _top_k(value: int | None) -> int:
    return 0 if value in (None, -1) else value


def _within(name: str, value: int, low: int, high: int | None) -> int:
    if value < low:
        raise field_error(name, f"expected an integer of at least {low}")
    if high is not None and value > high:
        raise field_error(name, f"expected an integer of at most {high}")
    return value


def _stop_sequences(sequences: list[str]) -> tuple[str, ...]:
    if len(set(filter(None, sequences))) > limits.STOP_SEQUENCES_MAX:
        raise field_error("stop_sequences", f"at most {limits.STOP_SEQUENCES_MAX} are taken")
    for index, text in enumerate(sequences):
        if len(text.encode()) > limits.STOP_SEQUENCE_BYTES_MAX:
            reason = f"at most {limits.STOP_SEQUENCE_BYTES_MAX} bytes are taken"
            raise field_error(f"stop_sequences.{index}", reason)
    return tuple(dict.fromkeys(filter(None, sequences)))


def _stop_token_ids(ids: list[int], vocabulary: int, count_max: int) -> tuple[int, ...]:
    for index, token in enumerate(ids):
        if not 0 <= token < vocabulary:
            raise field_error(f"stop_token_ids.{index}", "not a token of this model")
    unique = tuple(dict.fromkeys(ids))
    if len(unique) > count_max:
        raise field_error("stop_token_ids", f"at most {count_max} are taken")
    return unique


def _logit_bias(bias: dict[str, float], vocabulary: int, count_max: int) -> tuple[Any, ...]:
    if len(bias) > count_max:
        raise field_error("logit_bias", f"at most {count_max} tokens are taken")
    pairs: list[tuple[int, float]] = []
    for key, value in bias.items():
        token = int(key) if key.isascii() and key.isdigit() and len(key) <= 10 else -1
        if not 0 <= token < vocabulary:
            raise field_error("logit_bias", "a key is not a token of this model")
        if not -limits.LOGIT_BIAS_VALUE_MAX <= value <= limits.LOGIT_BIAS_VALUE_MAX:
            raise field_error(
                "logit_bias", f"expected values within {limits.LOGIT_BIAS_VALUE_MAX:g}"
            )
        pairs.append((token, value))
    return tuple(pairs)
