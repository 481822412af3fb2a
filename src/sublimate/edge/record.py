"""Writes one request record (core/request.h) into ring memory.

defines: Tenant, request_words, write_record, set_mask_slots
"""

from __future__ import annotations

import secrets
import struct

import msgspec
import numpy as np
from numpy.typing import NDArray

from .. import _core
from ..config import PROFILES, Profile
from .sampling import Sampling

WORD_BITS = 32
WORD_MASK = (1 << WORD_BITS) - 1
SIGN_BIT = 1 << (WORD_BITS - 1)
SEED_BITS = 64
_FLOAT = struct.Struct("<f")

_FIELDS = {name: first for name, (first, _) in _core.REQUEST_FIELDS.items()}
_HEADER_WORDS = _core.REQUEST_HEADER_WORDS
# Version, slot and generation are set by acquire; everything behind them is ours.
_FIRST_WORD = _FIELDS["generation"] + 1


class Tenant(msgspec.Struct, frozen=True):
    """Whose cache a request may use: a 64-bit secret, as two words."""

    low: int
    high: int


def request_words(prompt_tokens: int, sampling: Sampling) -> int:
    """Words that the request needs in its slot."""
    return _HEADER_WORDS + prompt_tokens + 2 * len(sampling.logit_bias)


def write_record(
    view: NDArray[np.int32],
    ids: NDArray[np.int32],
    sampling: Sampling,
    *,
    token_budget: int,
    stop_tokens: tuple[int, ...],
    profile: Profile,
    tenant: Tenant,
) -> None:
    """Fill a view from EdgeClient.acquire. All values were checked (check_sampling)."""
    flags = _core.FLAGS["ignore_eos"] if sampling.ignore_eos else 0
    seed = sampling.seed
    if seed is None:
        seed = secrets.randbits(SEED_BITS)
    else:
        flags |= _core.FLAGS["seeded"]
    words = [0] * _HEADER_WORDS
    put = words.__setitem__
    put(_FIELDS["profile"], PROFILES.index(profile))
    put(_FIELDS["prompt_length"], len(ids))
    put(_FIELDS["token_budget"], token_budget)
    put(_FIELDS["temperature_bits"], _float_bits(sampling.temperature))
    put(_FIELDS["top_k"], sampling.top_k)
    put(_FIELDS["top_p_bits"], _float_bits(sampling.top_p))
    put(_FIELDS["min_p_bits"], _float_bits(sampling.min_p))
    put(_FIELDS["repetition_penalty_bits"], _float_bits(sampling.repetition_penalty))
    put(_FIELDS["presence_penalty_bits"], _float_bits(sampling.presence_penalty))
    put(_FIELDS["frequency_penalty_bits"], _float_bits(sampling.frequency_penalty))
    put(_FIELDS["seed_low"], _word(seed))
    put(_FIELDS["seed_high"], _word(seed >> WORD_BITS))
    put(_FIELDS["flags"], flags)
    put(_FIELDS["logprobs"], sampling.logprobs)
    put(_FIELDS["logit_bias_count"], len(sampling.logit_bias))
    put(_FIELDS["stop_token_count"], len(stop_tokens))
    first_stop = _FIELDS["stop_tokens"]
    words[first_stop : first_stop + len(stop_tokens)] = stop_tokens
    put(_FIELDS["mask_slot"], -1)
    put(_FIELDS["trigger_slot"], -1)
    put(_FIELDS["tenant_low"], tenant.low)
    put(_FIELDS["tenant_high"], tenant.high)
    view[_FIRST_WORD:_HEADER_WORDS] = words[_FIRST_WORD:]
    end = _HEADER_WORDS + len(ids)
    view[_HEADER_WORDS:end] = ids
    for token, bias in sampling.logit_bias:
        view[end : end + 2] = (token, _float_bits(bias))
        end += 2


def set_mask_slots(
    view: NDArray[np.int32], mask_slot: int, trigger_slot: int, free_end: int
) -> None:
    """Of a written record: its tokens need masks. trigger_slot: -1 for none; free_end: 0."""
    view[_FIELDS["flags"]] |= _core.FLAGS["masked"]
    view[_FIELDS["mask_slot"]] = mask_slot
    view[_FIELDS["trigger_slot"]] = trigger_slot
    view[_FIELDS["free_end"]] = free_end


def _word(value: int) -> int:
    """The low 32 bits as an int32."""
    low = value & WORD_MASK
    return low - (1 << WORD_BITS) if low & SIGN_BIT else low


def _float_bits(value: float) -> int:
    """Bit pattern of the nearest float32 as an int32."""
    return int.from_bytes(_FLOAT.pack(value), "little", signed=True)
