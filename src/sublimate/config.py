"""All settings: one typed tree, filled from defaults < TOML file < environment < flags.

Field names are unique over the tree, so a field has one name everywhere: `kv_memory` in the TOML
file, SUBLIMATE_KV_MEMORY in the environment, --kv-memory as a flag.

defines: EngineSettings, EdgeSettings, ServerSettings, LogSettings, Settings, Field, FIELDS,
         parse_size, format_size, load_settings, Effective, default_config_path, cache_folder,
         data_folder, keys_path
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from .errors import ConfigError, nearest

# These repeat core/limits.h, so that reading settings needs no core; a test compares them.
CONTEXT_TOKENS_MAX = 131_072
QUEUE_MAX = 384
THREADS_MAX = 64

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
STALLED_SECONDS = 5.0
"""An engine that stands still for so long is not healthy, and lost to its requests."""
ENVIRONMENT_PREFIX = "SUBLIMATE_"

Profile = Literal["low-latency", "high-throughput", "long-context"]
PROFILES: tuple[Profile, ...] = ("low-latency", "high-throughput", "long-context")


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the sections of the tree."""


class EngineSettings(_Section, frozen=True, kw_only=True):
    """What the engine process is told."""

    context_length: Annotated[
        int,
        Meta(ge=0, le=CONTEXT_TOKENS_MAX, description="Context in tokens; 0 takes the model's."),
    ] = 0
    rope_scaling: Annotated[
        Literal["", "none", "linear", "yarn"],
        Meta(description="Overrides the model's RoPE scaling."),
    ] = ""
    rope_factor: Annotated[
        float,
        Meta(ge=0, le=ROPE_FACTOR_MAX, description="RoPE scaling factor; 0 takes the model's."),
    ] = 0.0
    exact: Annotated[
        bool, Meta(description="fp32 weights and arithmetic: slower, nearest to the reference.")
    ] = False
    batch_invariant: Annotated[
        bool,
        Meta(
            description="A request's text does not depend on its batch. Without it large batches "
            "are faster on AMX; elsewhere it changes nothing."
        ),
    ] = True
    threads: Annotated[
        int,
        Meta(
            ge=0,
            le=THREADS_MAX,
            description="Compute threads; 0 takes the cores, 16 at most, or fewer where that is "
            "measured to be faster.",
        ),
    ] = 0
    isa: Annotated[
        Literal["", "ref", "portable", "avx2", "avx512", "amx"],
        Meta(description="Instruction set; empty takes the best that runs here, as measured."),
    ] = ""
    kv_memory: Annotated[
        int,
        Meta(
            ge=0,
            description="Memory for keys and values, such as 2GiB; 0 sizes it from the machine.",
            extra={"size": True},
        ),
    ] = 0
    speculation: Annotated[
        Literal["auto", "off"],
        Meta(
            description="auto: guess tokens from the text so far and check them in the same step, "
            "where that is faster; the answer stays the same."
        ),
    ] = "auto"
    script: Annotated[
        str,
        Meta(
            description="JSON file of token ids to answer with in place of a model (for tests).",
            extra={"hidden": True},
        ),
    ] = ""


class EdgeSettings(_Section, frozen=True, kw_only=True):
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
        Literal["", "generic", "hermes", "llama3", "mistral", "mistral-named", "gemma"],
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


class ServerSettings(_Section, frozen=True, kw_only=True):
    """What the supervisor itself needs."""

    host: Annotated[str, Meta(min_length=1, description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=PORT_MAX, description="Port to listen on; 0 takes a free one.")
    ] = DEFAULT_PORT
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
    watchdog_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=WATCHDOG_SECONDS_MAX,
            description="An engine that stands still for so long is restarted; 0 never.",
        ),
    ] = 30.0
    api_key_file: Annotated[
        str, Meta(description="File with one API key per line, added to api_keys.")
    ] = ""
    cache_dir: Annotated[str, Meta(description="Folder for models; empty: user cache.")] = ""


class LogSettings(_Section, frozen=True, kw_only=True):
    """How all processes log."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Least that is logged."),
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"], Meta(description="Lines for people or JSON lines.")
    ] = "text"


class Settings(_Section, frozen=True, kw_only=True):
    """The whole tree."""

    model: Annotated[
        str,
        Meta(min_length=1, description="Name, path of a .gguf file, or Hugging Face repository."),
    ] = "smollm2-135m-instruct"
    server: ServerSettings = ServerSettings()
    engine: EngineSettings = EngineSettings()
    edge: EdgeSettings = EdgeSettings()
    log: LogSettings = LogSettings()


class Field(msgspec.Struct, frozen=True):
    """One leaf of the tree, as files, environment and flags see it."""

    name: str
    section: str
    kind: str
    help: str
    default: Any
    environment: str
    choices: tuple[str, ...] = ()
    secret: bool = False
    hidden: bool = False

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


SECTIONS: dict[str, type[_Section]] = {
    "server": ServerSettings,
    "engine": EngineSettings,
    "edge": EdgeSettings,
    "log": LogSettings,
}


def _field(owner: type[_Section], section: str, name: str, hint: Any, default: Any) -> Field:
    base, meta = get_args(hint)[:2]
    extra: dict[str, Any] = cast(Meta, meta).extra or {}
    choices: tuple[str, ...] = ()
    if get_origin(base) is Literal:
        kind, choices = "str", tuple(str(value) for value in get_args(base))
    elif get_origin(base) is tuple:
        kind = "list"
    else:
        kind = "size" if extra.get("size") else cast(type, base).__name__
    return Field(
        name=name,
        section=section,
        kind=kind,
        help=str(cast(Meta, meta).description),
        default=default,
        environment=ENVIRONMENT_PREFIX + name.upper(),
        choices=choices,
        secret=bool(extra.get("secret")),
        hidden=bool(extra.get("hidden")),
    )


def _collect_fields() -> dict[str, Field]:
    fields: dict[str, Field] = {}
    owners: list[tuple[str, type[_Section]]] = [("", Settings), *SECTIONS.items()]
    for section, owner in owners:
        hints = get_type_hints(owner, include_extras=True)
        for info in msgspec.structs.fields(owner):
            if get_origin(hints[info.name]) is not Annotated:
                continue
            if info.name in fields:
                raise TypeError(f"setting {info.name} is defined twice")
            fields[info.name] = _field(owner, section, info.name, hints[info.name], info.default)
    return fields


FIELDS: dict[str, Field] = _collect_fields()
PINNED_PROFILE_VARIABLE = "EXECUTION_PROFILE"
# Read elsewhere (by the commands, the edge's limits, a child), so they are no mistakes.
OTHER_VARIABLES = (
    "SUBLIMATE_CONFIG",
    "SUBLIMATE_HTTP_",
    "SUBLIMATE_LEGACY_",
    "SUBLIMATE_PARENT",
    "SUBLIMATE_POLICY_KEY",
    "SUBLIMATE_KEY_PASSWORD",
)

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_BINARY_STEP = 1024


def parse_size(text: str) -> int:
    """Bytes from text such as 512, 512M, 1.5GiB, 2 GB (powers of 1024). ValueError if not."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("expected a size such as 512MiB or 2GiB")
    number, power, _ = match.groups()
    return int(float(number) * _BINARY_STEP ** _POWERS[power.upper()])


def format_size(size_bytes: float) -> str:
    """Bytes for a person: 93.8 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < _BINARY_STEP:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= _BINARY_STEP
    return f"{size_bytes:.1f} TiB"


class Effective(msgspec.Struct, frozen=True):
    """The settings that hold, where each came from, and notes about what was passed over."""

    settings: Settings
    origins: dict[str, str]
    notes: tuple[str, ...] = ()

    def value(self, name: str) -> Any:
        section = FIELDS[name].section
        owner = getattr(self.settings, section) if section else self.settings
        return getattr(owner, name)


def default_config_path() -> Path:
    """$XDG_CONFIG_HOME/sublimate/config.toml."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "sublimate" / "config.toml"


def keys_path(settings: Settings) -> Path:
    """The keys file: as set, else $XDG_CONFIG_HOME/sublimate/keys.toml."""
    if settings.edge.keys_file:
        return Path(settings.edge.keys_file).expanduser()
    return default_config_path().with_name("keys.toml")


def data_folder(settings: EdgeSettings) -> Path:
    """Where the server keeps what outlives it: data_dir, else $XDG_DATA_HOME/sublimate."""
    if settings.data_dir:
        return Path(settings.data_dir).expanduser()
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "sublimate"


def cache_folder(settings: Settings) -> Path:
    """Where models are kept: cache_dir, else $XDG_CACHE_HOME/sublimate/models."""
    if settings.server.cache_dir:
        return Path(settings.server.cache_dir).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "sublimate" / "models"


def _shown(field: Field, value: Any) -> str:
    return "(a secret)" if field.secret else repr(value)


def _coerce_text(field: Field, text: str) -> Any:
    """A value of the field's kind from text. ValueError if it is none."""
    if field.kind == "int":
        return int(text)
    if field.kind == "float":
        return float(text)
    if field.kind == "size":
        return parse_size(text)
    if field.kind == "list":
        return [part.strip() for part in text.split(",") if part.strip()]
    if field.kind == "bool":
        words = {"1": True, "true": True, "yes": True, "on": True}
        words |= {"0": False, "false": False, "no": False, "off": False, "": False}
        if text.lower() not in words:
            raise ValueError("expected true or false")
        return words[text.lower()]
    return text


def _checked(field: Field, value: Any, origin: str) -> Any:
    """The value as the field's type, or ConfigError that names field, source and what is valid."""
    place = f"{field.name} = {_shown(field, value)} ({origin})"
    if isinstance(value, str) and field.kind != "str":
        try:
            value = _coerce_text(field, value)
        except ValueError as error:
            reason = str(error) if field.kind in ("size", "bool") else f"expected {field.kind}"
            raise ConfigError(f"{place}: {reason}.") from None
    if field.choices and value not in field.choices:
        valid = ", ".join(choice or "''" for choice in field.choices)
        hint = nearest(str(value), field.choices)
        raise ConfigError(f"{place}: expected one of {valid}.{hint}")
    owner = SECTIONS[field.section] if field.section else Settings
    try:
        section = msgspec.convert({field.name: value}, owner)
    except msgspec.ValidationError as error:
        reason = str(error).split(" - at ")[0]
        raise ConfigError(f"{place}: {reason}.") from None
    return getattr(section, field.name)


def _from_file(path: Path, required: bool) -> dict[str, tuple[Any, str]]:
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except FileNotFoundError:
        if required:
            raise ConfigError(f"The configuration file {path} does not exist.") from None
        return {}
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"The configuration file {path} cannot be read: {error}") from None
    flat: dict[str, tuple[Any, str]] = {}
    for key, value in table.items():
        if key in SECTIONS and isinstance(value, dict):
            entries = cast(dict[str, Any], value)
        else:
            entries = {key: value}
        for name, entry in entries.items():
            if name not in FIELDS:
                hint = nearest(name, FIELDS)
                raise ConfigError(f"Unknown setting {name!r} in {path}.{hint}")
            flat[name] = (entry, f"file {path}")
    return flat


def _from_environment(
    environment: Mapping[str, str],
) -> tuple[dict[str, tuple[Any, str]], list[str]]:
    known = {field.environment: field for field in FIELDS.values()}
    found: dict[str, tuple[Any, str]] = {}
    notes: list[str] = []
    for variable, text in sorted(environment.items()):
        ours = variable.startswith(ENVIRONMENT_PREFIX)
        if not ours or variable.startswith(OTHER_VARIABLES):
            continue
        field = known.get(variable)
        if field is None:
            # Compared without the prefix, which would make any two of them alike.
            hint = nearest(variable.removeprefix(ENVIRONMENT_PREFIX).lower(), FIELDS)
            if hint:
                notes.append(f"The variable {variable} is no setting and was ignored.{hint}")
        elif field.name == "port" and text.startswith("tcp://"):
            # Kubernetes sets this for a service that is called "sublimate".
            notes.append(f"The variable {variable} is a service link and was ignored.")
        else:
            found[field.name] = (text, f"environment {variable}")
    pinned = environment.get(PINNED_PROFILE_VARIABLE, "")
    if pinned:
        found["execution_profile"] = (pinned, f"environment {PINNED_PROFILE_VARIABLE}")
    return found, notes


def _read_keys(path: str, origin: str) -> tuple[str, ...]:
    try:
        lines = Path(path).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"api_key_file = {path!r} ({origin}): {reason}.") from None
    stripped = (line.strip() for line in lines)
    keys = tuple(line for line in stripped if line and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"api_key_file = {path!r} ({origin}): it holds no key.")
    return keys


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    config: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Effective:
    """The settings that hold. Flags that are None were not given. Raises ConfigError."""
    environment = os.environ if environment is None else environment
    named = config or (
        Path(environment["SUBLIMATE_CONFIG"]) if environment.get("SUBLIMATE_CONFIG") else None
    )
    chosen = _from_file(named or default_config_path(), required=named is not None)
    from_environment, notes = _from_environment(environment)
    chosen.update(from_environment)
    for name, value in (flags or {}).items():
        if value is not None:
            chosen[name] = (value, f"flag {FIELDS[name].flag}")
    values: dict[str, dict[str, Any]] = {section: {} for section in ("", *SECTIONS)}
    origins = {name: "default" for name in FIELDS}
    for name, (value, origin) in chosen.items():
        field = FIELDS[name]
        values[field.section][name] = _checked(field, value, origin)
        origins[name] = origin
    key_file = values["server"].get("api_key_file")
    if key_file:
        keys = _read_keys(key_file, origins["api_key_file"])
        values["edge"]["api_keys"] = tuple(values["edge"].get("api_keys", ())) + keys
        origins["api_keys"] = origins["api_key_file"]
    tree = {name: section(**values[name]) for name, section in SECTIONS.items()}
    return Effective(Settings(**values[""], **cast(Any, tree)), origins, tuple(notes))
