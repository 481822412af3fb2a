"""`sublimate serve`: its flags, which are the settings, as a command and as an app of its own. A
start has no use for the other commands, with all that they import.

defines: SERVES, serve, main
"""

from __future__ import annotations

from typing import Annotated

import typer

from . import options as flags
from .given import serve_with

SERVES = """Serve a model, or several, on http://127.0.0.1:8000 (Messages API).

Each setting is also an environment variable, as SUBLIMATE_QUEUE_MAX for --queue-max."""


def serve(
    model: flags.Models = None,
    library: flags.Library = None,
    idle_unload: flags.IdleUnload = None,
    models_memory: flags.ModelsMemory = None,
    host: flags.Host = None,
    port: flags.Port = None,
    tls: flags.Tls = None,
    tls_port: flags.TlsPort = None,
    http3: flags.Http3 = None,
    tls_certificate: flags.TlsCertificate = None,
    tls_key: flags.TlsKey = None,
    grpc: flags.Grpc = None,
    grpc_port: flags.GrpcPort = None,
    workers: flags.Workers = None,
    worker_cpus: flags.WorkerCpus = None,
    routing: flags.Routing = None,
    legacy_layer: flags.LegacyLayer = None,
    legacy_port: flags.LegacyPort = None,
    stay: flags.Stay = None,
    watchdog_seconds: flags.WatchdogSeconds = None,
    gpu_temperature_max: flags.GpuTemperatureMax = None,
    kernel_state: flags.KernelState = None,
    kernel_entries: flags.KernelEntries = None,
    cache_dir: flags.CacheDir = None,
    data_dir: flags.DataDir = None,
    context_length: flags.ContextLength = None,
    rope_scaling: flags.RopeScaling = None,
    rope_factor: flags.RopeFactor = None,
    exact: flags.Exact = None,
    quantize: flags.Quantize = None,
    batch_invariant: flags.BatchInvariant = None,
    threads: flags.Threads = None,
    isa: flags.Isa = None,
    kv: flags.Kv = None, kv_memory: flags.KvMemory = None,
    speculation: flags.Speculation = None,
    lora: flags.Lora = None,
    script: flags.Script = None,
    profile: flags.ProfileFlag = None,
    profile_contract: flags.ProfileContract = None,
    execution_profile: flags.ExecutionProfile = None,
    api_keys: flags.ApiKeys = None,
    api_key_file: flags.ApiKeyFile = None,
    keys_file: flags.KeysFile = None,
    cors_origins: flags.CorsOrigins = None,
    allowed_hosts: flags.AllowedHosts = None,
    tool_format: flags.ToolFormat = None,
    request_gzip: flags.RequestGzip = None,
    queue_max: flags.QueueMax = None,
    first_token_target: flags.FirstTokenTarget = None,
    fallback: flags.Fallback = None,
    fallback_key: flags.FallbackKey = None,
    fallback_model: flags.FallbackModel = None,
    tool_result_images: flags.ToolResultImages = None,
    context_stop_reason: flags.ContextStopReason = None,
    aliases: flags.Aliases = None, any_model: flags.AnyModel = None,
    metrics_compat: flags.MetricsCompat = None,
    otlp_endpoint: flags.OtlpEndpoint = None,
    trace: flags.Trace = None,
    log_prompts: flags.LogPrompts = None,
    batch_concurrency: flags.BatchConcurrency = None,
    file_bytes_max: flags.FileBytesMax = None,
    files_bytes_max: flags.FilesBytesMax = None,
    drain_seconds: flags.DrainSeconds = None,
    log_level: flags.LogLevel = None,
    log_format: flags.LogFormat = None,
    json: Annotated[bool, typer.Option("--json", help="Same as --log-format json.")] = False,
    config: flags.ConfigFile = None,
) -> None:  # fmt: skip
    serve_with(dict(locals()))


def main() -> None:
    """Entry of the command where its first word is `serve`; what it writes is as from main.py."""
    app = typer.Typer(
        name="sublimate",
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_nothing)
    app.command(help=SERVES)(serve)
    app()


def _nothing() -> None:
    """With a callback an app of one command still has its name."""
