"""What the supervisor itself needs.

defines: ServerSettings
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from .section import (
    DEFAULT_GRPC_PORT,
    DEFAULT_LEGACY_PORT,
    DEFAULT_PORT,
    DEFAULT_TLS_PORT,
    GPU_CELSIUS_MAX,
    IDLE_SECONDS_MAX,
    KERNEL_ENTRIES,
    KERNEL_ENTRIES_MAX,
    PORT_MAX,
    WATCHDOG_SECONDS_MAX,
    WORKERS_MAX,
    Section,
)


class ServerSettings(Section, frozen=True, kw_only=True):
    """What the supervisor itself needs."""

    host: Annotated[str, Meta(min_length=1, description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=PORT_MAX, description="Port to listen on; 0 takes a free one.")
    ] = DEFAULT_PORT
    workers: Annotated[
        int,
        Meta(
            ge=1,
            le=WORKERS_MAX,
            description="Engines and edges, as many of each, on the same ports; an engine has its "
            "own cache (docs/workers.md).",
        ),
    ] = 1
    worker_cpus: Annotated[
        str,
        Meta(
            min_length=1,
            description="Cores of each engine, a colon between engines: 0-3:4-7 or node0:node1. "
            "auto splits those there are between several; none leaves it to the kernel.",
        ),
    ] = "auto"
    tls: Annotated[
        bool,
        Meta(description="HTTPS beside HTTP; without a certificate, with one made for loopback."),
    ] = False
    tls_port: Annotated[
        int, Meta(ge=0, le=PORT_MAX, description="Port of HTTPS; 0 takes a free one.")
    ] = DEFAULT_TLS_PORT
    grpc: Annotated[
        Literal["auto", "on", "off"],
        Meta(description="gRPC over HTTP/2: auto beside HTTPS; on, too, in the clear on loopback."),
    ] = "auto"
    grpc_port: Annotated[
        int, Meta(ge=0, le=PORT_MAX, description="Port of gRPC; 0 takes a free one.")
    ] = DEFAULT_GRPC_PORT
    legacy_layer: Annotated[
        bool,
        Meta(
            description="Add the layer that this server does without, to compare with: negotiate, "
            "a 302, a scheduler behind Redis (docs/legacy-layer.md)."
        ),
    ] = False
    legacy_port: Annotated[
        int,
        Meta(ge=0, le=PORT_MAX, description="Port that its 302 points to; 0 takes a free one."),
    ] = DEFAULT_LEGACY_PORT
    http3: Annotated[
        bool, Meta(description="HTTP/3 (QUIC) on the UDP port of the same number as HTTPS.")
    ] = True
    stay: Annotated[
        bool,
        Meta(description="If the engine cannot start, keep answering 503 with the reason."),
    ] = False
    kernel_state: Annotated[
        bool,
        Meta(
            description="Let the kernel remember connections, and steer them (eBPF), where it may "
            "(docs/kernel.md)."
        ),
    ] = True
    kernel_entries: Annotated[
        int,
        Meta(ge=1, le=KERNEL_ENTRIES_MAX, description="Connections that the kernel remembers."),
    ] = KERNEL_ENTRIES
    watchdog_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=WATCHDOG_SECONDS_MAX,
            description="An engine that stands still for so long is restarted, an edge after "
            "15 s at most; 0 never.",
        ),
    ] = 30.0
    gpu_temperature_max: Annotated[
        int,
        Meta(
            ge=0,
            le=GPU_CELSIUS_MAX,
            description="Degrees Celsius from which on a GPU gets no new work; 0: its own limit.",
        ),
    ] = 0
    library: Annotated[
        str,
        Meta(
            description="Folder whose models are served too, by the names of their files, each "
            "loaded when it is asked for; `cache`: where `pull` puts them; empty: none."
        ),
    ] = ""
    idle_unload: Annotated[
        float,
        Meta(
            ge=0,
            le=IDLE_SECONDS_MAX,
            description="A model that nobody has used for so many seconds is taken out of memory, "
            "until somebody asks for it; 0: never.",
        ),
    ] = 0.0
    models_memory: Annotated[
        int,
        Meta(
            ge=0,
            description="Memory for the weights and keys and values of several models: the one "
            "that was used least lately makes room; 0: half of the machine's.",
            extra={"size": True},
        ),
    ] = 0
    api_key_file: Annotated[
        str, Meta(description="File with one API key per line, added to api_keys.")
    ] = ""
    cache_dir: Annotated[str, Meta(description="Folder for models; empty: user cache.")] = ""
