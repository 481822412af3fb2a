"""What every section of the settings builds on, and the bounds that more than one place reads.

defines: Section, Profile, PROFILES, ToolFormatName, bounds and defaults
"""

from __future__ import annotations

from typing import Literal

import msgspec

# These repeat core/limits.h, so that reading settings needs no core; a test compares them.
CONTEXT_TOKENS_MAX = 131_072
QUEUE_MAX = 384
THREADS_MAX = 64
# And this core/bpf/maps.h.
KERNEL_ENTRIES = 65_536

PORT_MAX = 65535
ROPE_FACTOR_MAX = 1024
DEFAULT_PORT = 8000
DEFAULT_TLS_PORT = 8443
DEFAULT_GRPC_PORT = 8444
DEFAULT_LEGACY_PORT = 8090
QUEUE_DEFAULT = 256
BATCH_CONCURRENCY_MAX = 64
DRAIN_SECONDS_MAX = 86_400
WATCHDOG_SECONDS_MAX = 86_400
GPU_CELSIUS_MAX = 200
IDLE_SECONDS_MAX = 31_536_000
KERNEL_ENTRIES_MAX = 1 << 20
WORKERS_MAX = 16
TARGET_SECONDS_MAX = 86_400
LISTEN_BACKLOG = 1024
"""Connections that the kernel holds until they are accepted, up to `net.core.somaxconn`."""
STALLED_SECONDS = 5.0
"""An engine that stands still for so long is not healthy, and lost to its requests."""

ToolFormatName = Literal["", "generic", "hermes", "llama3", "mistral", "mistral-named", "gemma"]
"""How a model writes tool calls."""
Profile = Literal["low-latency", "high-throughput", "long-context"]
PROFILES: tuple[Profile, ...] = ("low-latency", "high-throughput", "long-context")


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the sections of the tree."""
