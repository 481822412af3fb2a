"""`sublimate serve`: fetch the model if needed, bind, supervise.

defines: check_header, serve
"""

from __future__ import annotations

import time

from .. import _core
from ..config import Effective, cache_folder
from ..engine.script import read_script
from ..errors import ExitCode, ModelError
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


def serve(effective: Effective) -> ExitCode:
    """Runs until a signal. Raises SublimateError."""
    started_seconds = time.monotonic()
    settings = effective.settings
    if settings.engine.script:
        read_script(settings.engine.script)
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
