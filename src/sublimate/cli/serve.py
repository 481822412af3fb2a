"""`sublimate serve`: fetch the model if needed, bind, supervise.

defines: check_header, serve
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from .. import _core
from ..config import Effective, Settings, cache_folder, keys_path
from ..engine.script import read_script
from ..errors import ConfigError, ExitCode, ModelError
from ..keys import read_keys
from ..model.files import fetch
from ..supervisor.listen import bind
from ..supervisor.supervise import Supervisor
from .screen import JsonReporter, ScreenReporter


def check_header(path: str) -> None:
    """A file that is no model is told before processes start. Raises ModelError."""
    try:
        _core.Gguf(path)
    except _core.CoreError as error:
        raise ModelError(f"{path}: {error}") from None


def _checked_keys(settings: Settings) -> Path:
    """The keys file. One that was named must be there; the user's own may appear later. Raises
    ConfigError."""
    path = keys_path(settings)
    try:
        read_keys(path)
    except FileNotFoundError:
        if settings.edge.keys_file:
            raise ConfigError(f"keys_file = {str(path)!r}: there is no such file.") from None
    return path


def serve(effective: Effective) -> ExitCode:
    """Runs until a signal. Raises SublimateError."""
    started_seconds = time.monotonic()
    settings = effective.settings
    if settings.engine.script:
        read_script(settings.engine.script)
    keys = _checked_keys(settings)
    edge = msgspec.structs.replace(settings.edge, keys_file=str(keys))
    settings = msgspec.structs.replace(settings, edge=edge)
    reporter_class = JsonReporter if settings.log.log_format == "json" else ScreenReporter
    # A port that is taken is told before a long download.
    with bind(settings.server.host, settings.server.port) as listen:
        reporter = reporter_class(settings, settings.model, started_seconds)
        file = fetch(settings.model, cache_folder(settings), reporter.fetching)
        reporter.model_name = file.name
        check_header(str(file.path))
        supervisor = Supervisor(
            settings,
            model_path=str(file.path),
            model_name=file.name,
            listen=listen,
            reporter=reporter,
        )
        return supervisor.run()
