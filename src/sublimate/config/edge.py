"""What the edge process is told.

defines: EdgeSettings
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from .section import (
    BATCH_CONCURRENCY_MAX,
    DRAIN_SECONDS_MAX,
    QUEUE_DEFAULT,
    QUEUE_MAX,
    TARGET_SECONDS_MAX,
    Profile,
    Section,
    ToolFormatName,
)


class EdgeSettings(Section, frozen=True, kw_only=True):
    """What the edge process is told."""

    profile: Annotated[
        Profile, Meta(description="Execution profile of requests that name none.")
    ] = "high-throughput"
    profile_contract: Annotated[
        Literal["default", "strict"],
        Meta(description="strict answers 400 to a request that names no profile."),
    ] = "default"
    execution_profile: Annotated[
        Literal["", "low-latency", "high-throughput", "long-context"],
        Meta(
            description="Pins the server to one profile; another in a request is a 400.",
            extra={"environment": "EXECUTION_PROFILE"},
        ),
    ] = ""
    api_keys: Annotated[
        tuple[str, ...],
        Meta(
            description="Accepted API keys (comma-separated in the environment); none: open.",
            extra={"secret": True},
        ),
    ] = ()
    keys_file: Annotated[
        str,
        Meta(
            description="TOML file of named API keys with limits, see `sublimate keys`; empty: "
            "keys.toml beside the user's config file."
        ),
    ] = ""
    cors_origins: Annotated[
        tuple[str, ...], Meta(description="Origins that browsers may call from; * is any.")
    ] = ()
    allowed_hosts: Annotated[
        tuple[str, ...],
        Meta(
            description="More names that Host may have where the server listens on loopback and "
            "has no API key; * is any."
        ),
    ] = ()
    tls_certificate: Annotated[
        str, Meta(description="PEM file of the certificate for HTTPS, with its chain.")
    ] = ""
    tls_key: Annotated[
        str, Meta(description="PEM file of its key; empty: in the certificate's file.")
    ] = ""
    data_dir: Annotated[
        str, Meta(description="Folder for batches, files and a certificate; empty: user data.")
    ] = ""
    tool_format: Annotated[
        ToolFormatName,
        Meta(description="How the model writes tool calls; empty: as its chat template tells."),
    ] = ""
    request_gzip: Annotated[
        bool,
        Meta(description="Take request bodies with Content-Encoding: gzip, up to 32 MiB decoded."),
    ] = False
    queue_max: Annotated[
        int,
        Meta(ge=1, le=QUEUE_MAX, description="Requests that may wait; beyond it 529."),
    ] = QUEUE_DEFAULT
    routing: Annotated[
        Literal["prefix", "off"],
        Meta(
            description="With several workers, prefix: a request goes to the engine that has read "
            "the most of its prompt before; off: to the one beside its connection."
        ),
    ] = "prefix"
    first_token_target: Annotated[
        float,
        Meta(
            ge=0,
            le=TARGET_SECONDS_MAX,
            description="Seconds to the first token beyond which a request gets 529 at once; 0 is "
            "relative to what the engine needs when it is just saturated.",
        ),
    ] = 0.0
    fallback: Annotated[
        str,
        Meta(
            description="URL of another server that answers what the engine cannot take now "
            "(overflow, or all of it while the engine is down): the base of one with the Messages "
            "API, or one that ends with /v1/chat/completions; empty: none."
        ),
    ] = ""
    fallback_key: Annotated[str, Meta(description="API key for it.", extra={"secret": True})] = ""
    fallback_model: Annotated[
        str, Meta(description="Name of its model; empty: as the request has it.")
    ] = ""
    tool_result_images: Annotated[
        Literal["refuse", "note"],
        Meta(
            description="Images in tool results, which the model cannot see: a 400, or a note to "
            "the model that one was there."
        ),
    ] = "refuse"
    context_stop_reason: Annotated[
        Literal["auto", "max_tokens"],
        Meta(
            description="stop_reason of an answer that met the end of the context: auto names the "
            "window to clients of the newer API version; others always read max_tokens."
        ),
    ] = "auto"
    aliases: Annotated[
        tuple[str, ...],
        Meta(description="More names of the model, as claude-sonnet-4-5=default."),
    ] = ()
    any_model: Annotated[
        bool,
        Meta(description="Answer requests for every model name: unknown ones get the main model."),
    ] = False
    metrics_compat: Annotated[
        Literal["", "vllm"],
        Meta(description="vllm: /metrics has vLLM's names and bucket edges too."),
    ] = ""
    otlp_endpoint: Annotated[
        str,
        Meta(
            description="Base URL of an OpenTelemetry collector (OTLP over HTTP), such as "
            "http://127.0.0.1:4318; empty: as OTEL_EXPORTER_OTLP_ENDPOINT says, else none."
        ),
    ] = ""
    trace: Annotated[
        bool,
        Meta(description="Keep each step of the last requests for `sublimate debug`, always."),
    ] = False
    log_prompts: Annotated[
        bool, Meta(description="Log the bodies of requests: prompts, in the clear.")
    ] = False
    batch_concurrency: Annotated[
        int,
        Meta(ge=1, le=BATCH_CONCURRENCY_MAX, description="Requests of batches at once."),
    ] = 8
    file_bytes_max: Annotated[
        int,
        Meta(
            ge=0,
            description="Largest uploaded file; also bounded by that of a request's body.",
            extra={"size": True},
        ),
    ] = 32 << 20
    files_bytes_max: Annotated[
        int,
        Meta(ge=0, description="All uploaded files of one key.", extra={"size": True}),
    ] = 1 << 30
    drain_seconds: Annotated[
        float,
        Meta(ge=0, le=DRAIN_SECONDS_MAX, description="Time that streams have at shutdown."),
    ] = 30.0
