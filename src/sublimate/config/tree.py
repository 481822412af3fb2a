"""All settings as one tree.

defines: LogSettings, Settings, SECTIONS
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from .edge import EdgeSettings
from .engine import EngineSettings
from .models import ModelSettings
from .section import Section
from .server import ServerSettings

ENVIRONMENT_PREFIX = "SUBLIMATE_"


class LogSettings(Section, frozen=True, kw_only=True):
    """How all processes log."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="Least that is logged."),
    ] = "info"
    log_format: Annotated[
        Literal["text", "json"], Meta(description="Lines for people or JSON lines.")
    ] = "text"


class Settings(Section, frozen=True, kw_only=True):
    """The whole tree."""

    model: Annotated[
        str,
        Meta(min_length=1, description="Name, path of a .gguf file, or Hugging Face repository."),
    ] = "smollm2-135m-instruct"
    models: tuple[ModelSettings, ...] = ()
    """If there are several, or a table says more of the one: all, the main one first."""
    server: ServerSettings = ServerSettings()
    engine: EngineSettings = EngineSettings()
    edge: EdgeSettings = EdgeSettings()
    log: LogSettings = LogSettings()


SECTIONS: dict[str, type[Section]] = {
    "server": ServerSettings,
    "engine": EngineSettings,
    "edge": EdgeSettings,
    "log": LogSettings,
}
