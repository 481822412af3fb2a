"""What `serve` starts its processes with: the models of its settings and of its library.

defines: launch_of
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from ..config import EngineSettings, ModelSettings, Settings, cache_folder
from ..engine.loader import check_kv_memory
from ..errors import ConfigError
from ..model.adapters import check_adapters
from ..model.files import ModelFile, Progress, fetch
from ..model.models_folder import CACHE, models_in
from ..model.parts import is_utf8
from ..supervisor.launch import Launch, ModelLaunch, stamp_of


def launch_of(
    settings: Settings,
    edge_module: str,
    progress: Progress,
    check: Callable[[str], None] | None,
) -> Launch:
    """Fetches what is not here. check: raises ModelError for a file that is no model; None: that is
    for engine and edge to find, which say so to every request. Raises SublimateError."""
    for text in settings.edge.aliases:
        if not all(text.partition("=")):
            raise ConfigError(f"alias = {text!r}: expected NAME=MODEL, as claude-opus-9=default.")
    alone = ModelSettings(path=settings.model, engine=settings.engine)
    first, *others = settings.models or (alone,)
    file = _fetched(first, settings, progress, check)
    main = first.name or file.name
    engine, tool_format = _engine_of(first), first.tool_format or settings.edge.tool_format
    edge = msgspec.structs.replace(settings.edge, tool_format=tool_format)
    more: dict[str, ModelLaunch] = {}
    for one in others:
        its_file = _fetched(one, settings, progress, check)
        name = one.name or its_file.name
        if name in more or name == main:
            raise ConfigError(f"Two models are called {name!r}: give one of them another name.")
        more[name] = _more(name, its_file, one, settings)
    paths = {file.path, *(Path(one.path) for one in more.values())}
    for its_file in _library(settings):
        if its_file.name not in more and its_file.name != main and its_file.path not in paths:
            engine_of_all = msgspec.structs.replace(settings.engine, lora=())
            plain = ModelSettings(path=str(its_file.path), engine=engine_of_all)
            more[its_file.name] = _more(its_file.name, its_file, plain, settings)
    return Launch(
        settings=msgspec.structs.replace(settings, engine=engine, edge=edge),
        model_path=str(file.path),
        model_name=main,
        edge_module=edge_module,
        model_stamp=stamp_of(str(file.path), engine.lora),
        model_bytes=file.size_bytes,
        more=tuple(more.values()),
    )


def _engine_of(one: ModelSettings) -> EngineSettings:
    """Raises ConfigError, ModelError for adapters that cannot be."""
    return msgspec.structs.replace(one.engine, lora=check_adapters(one.engine.lora))


def _fetched(
    one: ModelSettings, settings: Settings, progress: Progress, check: Callable[[str], None] | None
) -> ModelFile:
    file = fetch(one.path, cache_folder(settings), progress)
    if not one.engine.script:
        check_kv_memory(one.engine.kv_memory, settings.server.workers, file.size_bytes)
    if check is not None:
        check(str(file.path))
    return file


def _more(name: str, file: ModelFile, one: ModelSettings, settings: Settings) -> ModelLaunch:
    engine = _engine_of(one)
    return ModelLaunch(
        name=name,
        path=str(file.path),
        engine=engine,
        tool_format=one.tool_format or settings.edge.tool_format,
        preload=one.preload,
        model_stamp=stamp_of(str(file.path), engine.lora),
        model_bytes=file.size_bytes,
    )


def _library(settings: Settings) -> list[ModelFile]:
    """What cannot be a model is passed over: that is told when somebody asks for it."""
    chosen = settings.server.library
    if not chosen:
        return []
    folder = cache_folder(settings) if chosen == CACHE else Path(chosen).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"library = {chosen!r}: {folder} is no folder.")
    files: list[ModelFile] = []
    for kept in models_in(folder):
        path = kept.path.parent.resolve() / kept.path.name
        if is_utf8(path):
            files.append(ModelFile(name=kept.name, path=path, size_bytes=kept.size_bytes))
    return files
