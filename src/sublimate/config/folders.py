"""Where files of the user are kept.

defines: own_folders, default_config_path, keys_path, data_folder, cache_folder
"""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import ConfigError
from .edge import EdgeSettings
from .tree import Settings

PRIVATE_FOLDER = 0o700
DATA_FOLDERS = ("batches", "files", "tls")
WAY_OUT = "Move it away, or name another data folder with --data-dir."


def own_folders() -> tuple[Path, Path, Path]:
    """The folders that nothing else writes to: caches, data, settings."""
    return (
        _user_folder("XDG_CACHE_HOME", "~/.cache"),
        _user_folder("XDG_DATA_HOME", "~/.local/share"),
        _user_folder("XDG_CONFIG_HOME", "~/.config"),
    )


def _user_folder(variable: str, default: str) -> Path:
    return Path(os.environ.get(variable) or default).expanduser() / "sublimate"


def default_config_path() -> Path:
    """$XDG_CONFIG_HOME/sublimate/config.toml."""
    return own_folders()[2] / "config.toml"


def keys_path(settings: Settings) -> Path:
    """The keys file: as set, else $XDG_CONFIG_HOME/sublimate/keys.toml."""
    if settings.edge.keys_file:
        return Path(settings.edge.keys_file).expanduser()
    return default_config_path().with_name("keys.toml")


def data_folder(settings: EdgeSettings) -> Path:
    """Where the server keeps what outlives it: data_dir, else $XDG_DATA_HOME/sublimate."""
    if settings.data_dir:
        return Path(settings.data_dir).expanduser()
    return own_folders()[1]


def private_folder(folder: Path) -> None:
    """Make a folder that this user alone may enter, or check the one that is there: not a link, and
    not another user's, who could change what is kept in it. Raises ConfigError, OSError."""
    if folder.is_symlink():
        raise ConfigError(f"{folder} is a link, and has to be a folder itself. {WAY_OUT}")
    folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        owner = os.fstat(opened).st_uid
        if owner != os.geteuid():
            raise ConfigError(f"{folder} belongs to another user (uid {owner}). {WAY_OUT}")
        os.fchmod(opened, PRIVATE_FOLDER)
    finally:
        os.close(opened)


def check_data_folders(settings: EdgeSettings) -> None:
    """Check those that exist. Raises ConfigError."""
    for folder in (data_folder(settings) / name for name in DATA_FOLDERS):
        try:
            if os.path.lexists(folder):
                private_folder(folder)
        except OSError as error:
            reason = f"{folder} cannot be used as a folder: {error.strerror}."
            raise ConfigError(f"{reason} {WAY_OUT}") from None


def cache_folder(settings: Settings) -> Path:
    """Where models are kept: cache_dir, else $XDG_CACHE_HOME/sublimate/models."""
    if settings.server.cache_dir:
        return Path(settings.server.cache_dir).expanduser()
    return own_folders()[0] / "models"
