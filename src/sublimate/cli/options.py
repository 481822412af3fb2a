"""Flags that stand for settings: one Annotated type per flag, its help taken from config.FIELDS.

A flag's default is None (not given), so that the other sources of a setting can speak.

defines: the types of the flags, ConfigFile, Json, ServerUrl, AnyContext, CaCert
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..config import FIELDS
from .plain_flags import ALSO


def _option(name: str, text: str = "") -> Any:
    """text: instead of the setting's own description."""
    field = FIELDS[name]
    names = [field.flag, *ALSO.get(name, ())]
    if field.kind == "bool":
        names[0] = f"{field.flag}/--no-{field.flag[2:]}"
    default = ", ".join(field.default) if field.kind == "list" else str(field.default)
    shown = f" [dim]\\[{default}][/dim]" if default else ""
    # Sections group the help; the default is told there because the parameter's own is "not given".
    return typer.Option(
        *names,
        help=f"{text or field.help}{shown}",
        show_default=False,
        hidden=field.hidden,
        rich_help_panel=(field.section or "model").capitalize(),
        metavar="|".join(choice or '""' for choice in field.choices)
        or {"size": "SIZE", "list": "TEXT"}.get(field.kind),
    )


Model = Annotated[str | None, _option("model")]
Models = Annotated[list[str] | None, _option("model")]
"""The first is the main one."""
Library = Annotated[str | None, _option("library")]
IdleUnload = Annotated[float | None, _option("idle_unload")]
ModelsMemory = Annotated[str | None, _option("models_memory")]
Host = Annotated[str | None, _option("host")]
Port = Annotated[int | None, _option("port")]
Workers = Annotated[int | None, _option("workers")]
WorkerCpus = Annotated[str | None, _option("worker_cpus")]
Routing = Annotated[str | None, _option("routing")]
LegacyLayer = Annotated[bool | None, _option("legacy_layer")]
LegacyPort = Annotated[int | None, _option("legacy_port")]
Stay = Annotated[bool | None, _option("stay")]
WatchdogSeconds = Annotated[float | None, _option("watchdog_seconds")]
GpuTemperatureMax = Annotated[int | None, _option("gpu_temperature_max")]
KernelState = Annotated[bool | None, _option("kernel_state")]
KernelEntries = Annotated[int | None, _option("kernel_entries")]
KeysFile = Annotated[str | None, _option("keys_file")]
ApiKeyFile = Annotated[str | None, _option("api_key_file")]
CacheDir = Annotated[str | None, _option("cache_dir")]
ContextLength = Annotated[int | None, _option("context_length")]
RopeScaling = Annotated[str | None, _option("rope_scaling")]
RopeFactor = Annotated[float | None, _option("rope_factor")]
Exact = Annotated[bool | None, _option("exact")]
Quantize = Annotated[str | None, _option("quantize")]
BatchInvariant = Annotated[bool | None, _option("batch_invariant")]
Threads = Annotated[int | None, _option("threads")]
Isa = Annotated[str | None, _option("isa")]
Kv = Annotated[str | None, _option("kv")]
KvMemory = Annotated[str | None, _option("kv_memory")]
Speculation = Annotated[str | None, _option("speculation")]
Lora = Annotated[list[str] | None, _option("lora")]
Script = Annotated[str | None, _option("script")]
ProfileFlag = Annotated[str | None, _option("profile")]
ProfileContract = Annotated[str | None, _option("profile_contract")]
ExecutionProfile = Annotated[str | None, _option("execution_profile")]
ApiKeys = Annotated[list[str] | None, _option("api_keys")]
ClientKeys = Annotated[list[str] | None, _option("api_keys", "Key to send to the server.")]
CorsOrigins = Annotated[list[str] | None, _option("cors_origins")]
AllowedHosts = Annotated[list[str] | None, _option("allowed_hosts")]
Tls = Annotated[bool | None, _option("tls")]
Http3 = Annotated[bool | None, _option("http3")]
TlsPort = Annotated[int | None, _option("tls_port")]
Grpc = Annotated[str | None, _option("grpc")]
GrpcPort = Annotated[int | None, _option("grpc_port")]
TlsCertificate = Annotated[str | None, _option("tls_certificate")]
TlsKey = Annotated[str | None, _option("tls_key")]
DataDir = Annotated[str | None, _option("data_dir")]
ToolFormat = Annotated[str | None, _option("tool_format")]
RequestGzip = Annotated[bool | None, _option("request_gzip")]
FileBytesMax = Annotated[str | None, _option("file_bytes_max")]
FilesBytesMax = Annotated[str | None, _option("files_bytes_max")]
OtlpEndpoint = Annotated[str | None, _option("otlp_endpoint")]
BatchConcurrency = Annotated[int | None, _option("batch_concurrency")]
ToolResultImages = Annotated[str | None, _option("tool_result_images")]
ContextStopReason = Annotated[str | None, _option("context_stop_reason")]
Aliases = Annotated[list[str] | None, _option("aliases")]
AnyModel = Annotated[bool | None, _option("any_model")]
MetricsCompat = Annotated[str | None, _option("metrics_compat")]
Trace = Annotated[bool | None, _option("trace")]
LogPrompts = Annotated[bool | None, _option("log_prompts")]
QueueMax = Annotated[int | None, _option("queue_max")]
Fallback = Annotated[str | None, _option("fallback")]
FallbackKey = Annotated[str | None, _option("fallback_key")]
FallbackModel = Annotated[str | None, _option("fallback_model")]
FirstTokenTarget = Annotated[float | None, _option("first_token_target")]
DrainSeconds = Annotated[float | None, _option("drain_seconds")]
LogLevel = Annotated[str | None, _option("log_level")]
LogFormat = Annotated[str | None, _option("log_format")]

ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="TOML file with the same settings. [dim]SUBLIMATE_CONFIG[/dim]",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
ServerUrl = Annotated[
    str, typer.Option("--url", help="A running server; else the one at the configured address.")
]
AnyContext = Annotated[
    bool, typer.Option("--any-context", help="Also with a context too short for agents.")
]
CaCert = Annotated[Path | None, typer.Option("--cacert", help="PEM file to trust too, for https.")]
