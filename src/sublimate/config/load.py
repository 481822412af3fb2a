"""The settings that hold: defaults < TOML file < environment < flags.

Field names are unique over the tree, so a field has one name everywhere: `kv_memory` in the TOML
file, SUBLIMATE_KV_MEMORY in the environment, --kv-memory as a flag.

defines: load_settings, Effective
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from ..errors import ConfigError, nearest
from .engine import EngineSettings
from .fields import FIELDS, Field
from .folders import default_config_path
from .models import ModelSettings, with_models
from .sizes import parse_size
from .tree import ENVIRONMENT_PREFIX, SECTIONS, Settings

MODELS = "models"
"""A list of tables in the file, and further models among the flags."""
PINNED_PROFILE_VARIABLE = "EXECUTION_PROFILE"
# Read elsewhere (by the commands, the edge's limits, a child), so they are no mistakes.
OTHER_VARIABLES = (
    "SUBLIMATE_CONFIG",
    "SUBLIMATE_FAULTS",
    "SUBLIMATE_HTTP_",
    "SUBLIMATE_LEGACY_",
    "SUBLIMATE_PARENT",
    "SUBLIMATE_POLICY_KEY",
    "SUBLIMATE_PROBE_FACTS",
    "SUBLIMATE_KEY_PASSWORD",
)


class Effective(msgspec.Struct, frozen=True):
    """The settings that hold, where each came from, and notes about what was passed over."""

    settings: Settings
    origins: dict[str, str]
    notes: tuple[str, ...] = ()

    def value(self, name: str) -> Any:
        section = FIELDS[name].section
        owner = getattr(self.settings, section) if section else self.settings
        return getattr(owner, name)


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


def _is_utf8(value: Any) -> bool:
    """Of a text or a list of them."""
    try:
        for text in cast(list[Any], value) if isinstance(value, list) else [value]:
            str(text).encode()
    except UnicodeEncodeError:
        return False
    return True


def _checked(field: Field, value: Any, origin: str) -> Any:
    """The value as the field's type, or ConfigError that names field, source and what is valid."""
    place = f"{field.name} = {_shown(field, value)} ({origin})"
    is_text = isinstance(value, str)
    if field.name != "model" and not _is_utf8(value):
        # It is told to other processes in JSON. Of a model's name model/files.py says so.
        raise ConfigError(f"{place}: it is not UTF-8.")
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
    if field.name == "api_keys":
        _check_keys(getattr(section, field.name), origin, is_text=is_text)
    return getattr(section, field.name)


def _check_keys(keys: tuple[str, ...], origin: str, *, is_text: bool) -> None:
    """An unset variable in a command must not open a server. is_text: a list without keys was
    written as text, and not as an empty list of a file."""
    if (is_text and not keys) or not all(key.strip() for key in keys):
        raise ConfigError(f"api_keys ({origin}): a key is empty. Without keys, leave it out.")


def _table(path: Path, required: bool) -> dict[str, Any]:
    """The file as it is; empty without one that need not be there. Raises ConfigError."""
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        if required:
            raise ConfigError(f"The configuration file {path} does not exist.") from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration file {path} cannot be read: {error}") from None
    import tomllib  # where there is something to read

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The configuration file {path} cannot be read: {error}") from None


def _from_table(table: Mapping[str, Any], path: Path) -> dict[str, tuple[Any, str]]:
    flat: dict[str, tuple[Any, str]] = {}
    for key, value in table.items():
        if key == MODELS:
            continue
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


def _models_of(table: Mapping[str, Any], path: Path, base: dict[str, Any]) -> list[ModelSettings]:
    """The tables [[models]], on top of what holds for all. Raises ConfigError."""
    entries: Any = table.get(MODELS, [])
    if not isinstance(entries, list):
        raise ConfigError(f"{MODELS} in {path}: expected tables, each begun with [[{MODELS}]].")
    found: list[ModelSettings] = []
    for number, entry in enumerate(cast(list[Any], entries), 1):
        place = f"[[{MODELS}]] number {number} in {path}"
        if not isinstance(entry, dict):
            raise ConfigError(f"{place}: expected a table.")
        own, engine = dict[str, Any](), dict(base)
        for name, value in cast(dict[str, Any], entry).items():
            if name in FIELDS and FIELDS[name].section == "engine":
                engine[name] = _checked(FIELDS[name], value, place)
            elif name in ModelSettings.__struct_fields__ and name != "engine":
                own[name] = value
            else:
                known = [*ModelSettings.__struct_fields__, *EngineSettings.__struct_fields__]
                raise ConfigError(f"Unknown setting {name!r} in {place}.{nearest(name, known)}")
        try:
            one = msgspec.convert(own, ModelSettings)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{place}: {error}.") from None
        found.append(msgspec.structs.replace(one, engine=EngineSettings(**engine)))
    return found


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
    path = named or default_config_path()
    table = _table(path, required=named is not None)
    chosen = _from_table(table, path)
    from_environment, notes = _from_environment(environment)
    chosen.update(from_environment)
    for name, value in (flags or {}).items():
        if value is not None:
            chosen[name] = (value, f"flag {FIELDS[name].flag}" if name in FIELDS else "flag")
    values: dict[str, dict[str, Any]] = {section: {} for section in ("", *SECTIONS)}
    origins = {name: "default" for name in FIELDS}
    others = tuple(chosen.pop(MODELS, ((), ""))[0])
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
    # Adapters are of one model: those of no table are the main one's.
    lora = values["engine"].get("lora", ())
    plain = {name: value for name, value in values["engine"].items() if name != "lora"}
    tables = _models_of(table, path, plain)
    named = values[""].get("model", "")
    if models := with_models(named, others, tables, EngineSettings(**plain)):
        first = models[0]
        if lora and not first.engine.lora:
            engine = msgspec.structs.replace(first.engine, lora=lora)
            models = (msgspec.structs.replace(first, engine=engine), *models[1:])
        values[""] |= {"model": first.path, MODELS: models}
    return Effective(Settings(**values[""], **cast(Any, tree)), origins, tuple(notes))
