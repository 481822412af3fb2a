"""All settings: one typed tree, and how it is filled.

Reading order: section, then engine, edge and server (a section each: add a setting there), models,
tree, fields, sizes, folders, load. Imported from here; each name is defined in one of them.
Those of fields and load are loaded when they are asked for: edges and engines are told theirs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .edge import EdgeSettings
from .engine import EngineSettings
from .folders import cache_folder, data_folder, default_config_path, keys_path, own_folders
from .models import ModelSettings
from .section import (
    CONTEXT_TOKENS_MAX,
    DEFAULT_PORT,
    DRAIN_SECONDS_MAX,
    LISTEN_BACKLOG,
    PORT_MAX,
    PROFILES,
    QUEUE_DEFAULT,
    QUEUE_MAX,
    STALLED_SECONDS,
    THREADS_MAX,
    Profile,
)
from .server import ServerSettings
from .sizes import format_size, parse_size
from .tree import LogSettings, Settings

if TYPE_CHECKING:
    from .fields import FIELDS as FIELDS
    from .fields import Field as Field
    from .load import Effective as Effective
    from .load import load_settings as load_settings

_HOMES = {"FIELDS": "fields", "Field": "fields", "Effective": "load", "load_settings": "load"}

__all__ = [
    "CONTEXT_TOKENS_MAX",
    "DEFAULT_PORT",
    "DRAIN_SECONDS_MAX",
    "FIELDS",
    "LISTEN_BACKLOG",
    "PORT_MAX",
    "PROFILES",
    "QUEUE_DEFAULT",
    "QUEUE_MAX",
    "STALLED_SECONDS",
    "THREADS_MAX",
    "EdgeSettings",
    "Effective",
    "EngineSettings",
    "Field",
    "LogSettings",
    "ModelSettings",
    "Profile",
    "ServerSettings",
    "Settings",
    "cache_folder",
    "data_folder",
    "default_config_path",
    "format_size",
    "keys_path",
    "load_settings",
    "own_folders",
    "parse_size",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
