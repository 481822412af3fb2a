"""Where files of the user are kept.

defines: default_config_path, keys_path, data_folder, cache_folder
"""

from __future__ import annotations

import os
from pathlib import Path

from .edge import EdgeSettings
from .tree import Settings


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
