"""The one decision function (core/policy/decide.h) with names for its words.

defines: Request, Hardware, Headroom, Border, Decision, decide, headroom_of
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from .. import _core
from ..config import PROFILES, Profile

Role = Literal["client", "engine"]
Split = Literal["none", "uniform", "semantic"]
Target = Literal["resident", "queue", "cpu", "server", "refuse"]
Reason = Literal["", "oom", "too_long"]

# In the order of the enums of core/policy/decide.h.
ROLES: tuple[Role, ...] = ("client", "engine")
KINDS = ("paragraph", "message")
SPLITS: tuple[Split, ...] = ("none", "uniform", "semantic")
TARGETS: tuple[Target, ...] = ("resident", "queue", "cpu", "server", "refuse")
REASONS: tuple[Reason, ...] = ("", "oom", "too_long")

WORD_MAX = 2**31 - 1
PARTS_PER_MILLION = 1_000_000
KV_HEADROOM = re.compile(r"free=(\d{1,10}), ?total=(\d{1,10})")
SHARE = re.compile(r"\d{1,3}(\.\d{1,6})?")


class Border(NamedTuple):
    """Where a prompt may be cut, counted from its beginning in the request's unit."""

    position: int
    kind: Literal["paragraph", "message"]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be decided about. Raises ValueError unless it has one length of the prompt, and
    for a count below 0."""

    prompt_tokens: int | None = None
    prompt_characters: int | None = None
    """For who has no tokenizer: three characters count as a token (see layer.proto)."""
    output_tokens_max: int = 0
    system_characters: int = 0
    """Of the system prompt, which is a part of the prompt."""
    borders: tuple[Border, ...] = ()
    """In any order."""
    profile: Profile | None = None
    """Asked for; None: decided."""
    streamed: bool = True
    """Somebody waits for each token."""

    def __post_init__(self) -> None:
        if (self.prompt_tokens is None) == (self.prompt_characters is None):
            raise ValueError("give either prompt_tokens or prompt_characters")
        counts = {
            "prompt_tokens": self.prompt_tokens or 0,
            "prompt_characters": self.prompt_characters or 0,
            "output_tokens_max": self.output_tokens_max,
            "system_characters": self.system_characters,
        }
        if wrong := [name for name, count in counts.items() if count < 0]:
            raise ValueError(f"{wrong[0]} is a count, and less than 0")


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """Of who decides: a client that could run the model itself, or the engine."""

    role: Role = "client"
    cores: int = 0
    memory_mib: int = 0
    """For a model; 0: it runs none."""
    has_gpu: bool = False


class Headroom(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of the server, as its last response told (headroom_of)."""

    kv_tokens_total: int = 0
    """0: not known, and nothing is decided by it."""
    kv_tokens_free: int = 0
    """That a new request can reserve."""
    utilization_ppm: int = 0
    """Of the engine's roofline, in millionths."""
    queue_is_open: bool = True
    has_fallback_server: bool = False


class Decision(msgspec.Struct, frozen=True):
    """How the request should run."""

    prompt_tokens: int
    """That the plan is made for."""
    profile: Profile
    split: Split
    target: Target
    """resident: the server's loop, at once; queue: the same when memory is free; cpu: the CPU
    beside the engine's GPU, or the client's own machine; server: another server; refuse: none."""
    reason: Reason
    """Of a target that is not resident. oom: the memory for keys and values is full past the
    threshold; too_long: it could never hold the request."""
    shard_ends: tuple[int, ...]
    """In tokens; the last is prompt_tokens. Empty: too long for a plan."""


UNKNOWN_HARDWARE = Hardware()
UNKNOWN_HEADROOM = Headroom()


def decide(
    request: Request,
    hardware: Hardware = UNKNOWN_HARDWARE,
    headroom: Headroom = UNKNOWN_HEADROOM,
) -> Decision:
    """Pure: the same inputs have the same decision, in C++ and WebAssembly too. Numbers beyond
    int32 count as the largest."""
    in_characters = request.prompt_characters is not None
    length = request.prompt_characters if in_characters else request.prompt_tokens
    words = (
        int(in_characters),
        length or 0,
        request.output_tokens_max,
        request.system_characters,
        -1 if request.profile is None else PROFILES.index(request.profile),
        request.streamed,
        ROLES.index(hardware.role),
        hardware.cores,
        hardware.memory_mib,
        hardware.has_gpu,
        headroom.kv_tokens_total,
        headroom.kv_tokens_free,
        headroom.utilization_ppm,
        headroom.queue_is_open,
        headroom.has_fallback_server,
    )
    borders = [(_word(place), KINDS.index(kind)) for place, kind in request.borders]
    tokens, profile, split, target, reason, _, *ends = _core.decide(
        [_word(word) for word in words], borders
    )
    return Decision(
        tokens, PROFILES[profile], SPLITS[split], TARGETS[target], REASONS[reason], tuple(ends)
    )


def _word(number: int) -> int:
    return max(-WORD_MAX, min(int(number), WORD_MAX))


def headroom_of(headers: Mapping[str, str]) -> Headroom:
    """From a response's headers (x-kv-headroom and x-engine-utilization, names in lower case); what
    they do not tell is unknown."""
    memory = KV_HEADROOM.fullmatch(headers.get("x-kv-headroom", ""))
    share = headers.get("x-engine-utilization", "")
    return Headroom(
        kv_tokens_total=int(memory[2]) if memory else 0,
        kv_tokens_free=int(memory[1]) if memory else 0,
        utilization_ppm=round(float(share) * PARTS_PER_MILLION) if SHARE.fullmatch(share) else 0,
    )


def message_borders(lengths: Iterable[int]) -> tuple[Border, ...]:
    """After each of the messages whose lengths are given, but not after the last."""
    borders: list[Border] = []
    at = 0
    for length in lengths:
        at += length
        borders.append(Border(at, "message"))
    return tuple(borders[:-1])
