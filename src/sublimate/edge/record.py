"""Writes one request record (core/request.h) into ring memory.

defines: Tenant, request_words, write_record, set_mask_slots
"""

from __future__ import annotations

import secrets
import struct
from array import array

import msgspec

from .. import _core
from ..config import PROFILES, Profile
from .sampling import Sampling

WORD_BITS = 32
WORD_BYTES = WORD_BITS // 8
WORD_MASK = (1 << WORD_BITS) - 1
SEED_BITS = 64
STOP_TOKENS_MAX = _core.REQUEST_FIELDS["stop_tokens"][1]

_FIELDS = {name: first for name, (first, _) in _core.REQUEST_FIELDS.items()}
_HEADER_WORDS = _core.REQUEST_HEADER_WORDS
# Version, slot and generation are set by acquire; everything behind them is ours.
_FIRST_BYTE = (_FIELDS["generation"] + 1) * WORD_BYTES
_BIAS = struct.Struct("<if")


def _written() -> struct.Struct:
    """The words behind the generation, in their order: one call writes them all."""
    kinds = ""
    for name, (first, count) in sorted(_core.REQUEST_FIELDS.items(), key=lambda at: at[1]):
        if first <= _FIELDS["generation"]:
            continue
        is_ours = name not in ("submitted_ns_low", "submitted_ns_high", "reserved")
        kind = "f" if name.endswith("_bits") else "I" if name.startswith("seed") else "i"
        kinds += kind * count if is_ours else f"{count * WORD_BYTES}x"
    return struct.Struct(f"<{kinds}")


_WRITTEN = _written()


class Tenant(msgspec.Struct, frozen=True):
    """Whose cache a request may use: a 64-bit secret, as two words."""

    low: int
    high: int


def request_words(prompt_tokens: int, sampling: Sampling) -> int:
    """Words that the request needs in its slot."""
    return _HEADER_WORDS + prompt_tokens + 2 * len(sampling.logit_bias)


def write_record(
    view: memoryview,
    ids: array[int],
    sampling: Sampling,
    *,
    token_budget: int,
    stop_tokens: tuple[int, ...],
    profile: Profile,
    tenant: Tenant,
    adapter: int = 0,
) -> None:
    """Fill an int32 view from EdgeClient.acquire; ids: likewise int32. All values were checked
    (check_sampling)."""
    flags = _core.FLAGS["ignore_eos"] if sampling.ignore_eos else 0
    seed = sampling.seed
    if seed is None:
        seed = secrets.randbits(SEED_BITS)
    else:
        flags |= _core.FLAGS["seeded"]
    unused = (0,) * (STOP_TOKENS_MAX - len(stop_tokens))
    _WRITTEN.pack_into(
        view,
        _FIRST_BYTE,
        PROFILES.index(profile),
        len(ids),
        token_budget,
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
        seed & WORD_MASK,
        seed >> WORD_BITS & WORD_MASK,
        flags,
        sampling.logprobs,
        len(sampling.logit_bias),
        len(stop_tokens),
        *stop_tokens,
        *unused,
        adapter,
        -1,  # mask slot
        tenant.low,
        tenant.high,
        0,  # sparse mode
        0,  # shards
        -1,  # trigger slot
        0,  # end of what is free of masks
    )
    end = _HEADER_WORDS + len(ids)
    view[_HEADER_WORDS:end] = memoryview(ids)
    for token, bias in sampling.logit_bias:
        _BIAS.pack_into(view, end * WORD_BYTES, token, bias)
        end += 2


def set_mask_slots(view: memoryview, mask_slot: int, trigger_slot: int, free_end: int) -> None:
    """Of a written record: its tokens need masks. trigger_slot: -1 for none; free_end: 0."""
    view[_FIELDS["flags"]] |= _core.FLAGS["masked"]
    view[_FIELDS["mask_slot"]] = mask_slot
    view[_FIELDS["trigger_slot"]] = trigger_slot
    view[_FIELDS["free_end"]] = free_end
