"""Writes one request record (core/request.h) for the in-process engine.

defines: request_words, check_sampling, write_request
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..config import PROFILES
from ..errors import RequestError
from .results import Sampling

PENALTY_MAX = 2.0
# Of float32, which is what the record holds; NaN and infinity compare as outside.
FLOAT_MAX = float(np.finfo(np.float32).max)
FLOAT_MIN = float(np.finfo(np.float32).tiny)
WORD_BITS = 32
WORD_MASK = (1 << WORD_BITS) - 1
SIGN_BIT = 1 << (WORD_BITS - 1)


def request_words(prompt_tokens: int, sampling: Sampling, score: bool) -> int:
    """Words that the request needs in its slot (request_words in core/request.h)."""
    per_token = 3 if score else 1
    bias_words = 2 * len(sampling.logit_bias)
    return _core.REQUEST_HEADER_WORDS + prompt_tokens * per_token + bias_words


def check_sampling(sampling: Sampling, vocabulary: int) -> None:
    """Raises RequestError that names the field that is out of range."""
    limits = _core.LIMITS
    checks = {
        "max_tokens": 0 <= sampling.max_tokens <= limits["CONTEXT_TOKENS_MAX"],
        "temperature": 0 <= sampling.temperature <= FLOAT_MAX,
        "top_k": 0 <= sampling.top_k <= limits["VOCABULARY_MAX"],
        "top_p": 0 < sampling.top_p <= 1,
        "min_p": 0 <= sampling.min_p < 1,
        "repetition_penalty": FLOAT_MIN <= sampling.repetition_penalty <= FLOAT_MAX,
        "presence_penalty": abs(sampling.presence_penalty) <= PENALTY_MAX,
        "frequency_penalty": abs(sampling.frequency_penalty) <= PENALTY_MAX,
        "seed": -(1 << 63) <= sampling.seed < 1 << 64,
        "logprobs": -1 <= sampling.logprobs <= limits["LOGPROBS_MAX"],
        "stop_tokens": len(sampling.stop_tokens) <= limits["STOP_TOKENS_MAX"]
        and all(0 <= token < vocabulary for token in sampling.stop_tokens),
        "logit_bias": len(sampling.logit_bias) <= limits["LOGIT_BIAS_MAX"]
        and all(0 <= i < vocabulary and abs(b) <= FLOAT_MAX for i, b in sampling.logit_bias),
    }
    wrong = [name for name, right in checks.items() if not right]
    if wrong:
        raise RequestError(f"out of range: {', '.join(wrong)}")


def write_request(
    view: NDArray[np.int32],
    tokens: NDArray[np.int32],
    sampling: Sampling,
    *,
    token_budget: int,
    adapter: int = 0,
    flags: Sequence[str] = (),
) -> None:
    """Fill a zeroed view from EdgeClient.acquire: header fields, then tokens, then bias pairs."""
    names = list(flags)
    if sampling.ignore_eos:
        names.append("ignore_eos")
    if not sampling.cache:
        names.append("no_cache")
    now = time.monotonic_ns()
    fields = {
        "profile": PROFILES.index(sampling.profile),
        "prompt_length": len(tokens),
        "token_budget": token_budget,
        "temperature_bits": _float_bits(sampling.temperature),
        "top_k": sampling.top_k,
        "top_p_bits": _float_bits(sampling.top_p),
        "min_p_bits": _float_bits(sampling.min_p),
        "repetition_penalty_bits": _float_bits(sampling.repetition_penalty),
        "presence_penalty_bits": _float_bits(sampling.presence_penalty),
        "frequency_penalty_bits": _float_bits(sampling.frequency_penalty),
        "seed_low": _word(sampling.seed),
        "seed_high": _word(sampling.seed >> WORD_BITS),
        "flags": sum(_core.FLAGS[name] for name in names),
        "logprobs": sampling.logprobs,
        "logit_bias_count": len(sampling.logit_bias),
        "stop_token_count": len(sampling.stop_tokens),
        "adapter": adapter,
        "mask_slot": -1,
        "trigger_slot": -1,
        "submitted_ns_low": _word(now),
        "submitted_ns_high": _word(now >> WORD_BITS),
    }
    for name, value in fields.items():
        view[_core.REQUEST_FIELDS[name][0]] = value
    first = _core.REQUEST_FIELDS["stop_tokens"][0]
    view[first : first + len(sampling.stop_tokens)] = sampling.stop_tokens
    begin = _core.REQUEST_HEADER_WORDS
    end = begin + len(tokens)
    view[begin:end] = tokens
    for place, (token, bias) in enumerate(sampling.logit_bias):
        view[end + 2 * place : end + 2 * place + 2] = (token, _float_bits(bias))


def _word(value: int) -> int:
    """The low 32 bits as an int32."""
    low = value & WORD_MASK
    return low - (1 << WORD_BITS) if low & SIGN_BIT else low


def _float_bits(value: float) -> int:
    return int(struct.unpack("<i", struct.pack("<f", value))[0])
