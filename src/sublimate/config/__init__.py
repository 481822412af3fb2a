"""All settings: one typed tree, and how it is filled.

Reading order: section, then engine, edge and server (a section each: add a setting there), models,
tree, sizes, folders, load. Imported from here; each name is defined in one of them.
"""

from .edge import EdgeSettings
from .engine import EngineSettings
from .folders import cache_folder, data_folder, default_config_path, keys_path
from .load import Effective, load_settings
from .models import ModelSettings
from .section import (
    CONTEXT_TOKENS_MAX,
    DEFAULT_PORT,
    DRAIN_SECONDS_MAX,
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
from .tree import FIELDS, Field, LogSettings, Settings

__all__ = [
    "CONTEXT_TOKENS_MAX",
    "DEFAULT_PORT",
    "DRAIN_SECONDS_MAX",
    "FIELDS",
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
    "parse_size",
]
