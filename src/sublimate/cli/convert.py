"""`sublimate convert`: writes a model as it is computed with, so that it is loaded by a map.

defines: convert
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from ..config import cache_folder, data_folder, format_size, load_settings
from ..errors import ConfigError, ExitCode, ModelError, SublimateError
from . import options as flags
from .output import note, out, run_guarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from .. import _core
    from ..config import EngineSettings

PACKED_SUFFIX = ".sublimate"
HUNDRED = 100
MEASURED_TIMES_MAX = 6


def convert(
    model: Annotated[str, typer.Argument(help="Name, path or repository; with --check, the file.")],
    target: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="What to write: NAME.sublimate.")
    ] = None,
    quantize: Annotated[
        Literal["int8", "int4"] | None,
        typer.Option(help="Round weights of 16 and 32 bits to 8 or 4."),
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="For `serve --exact`: fp32.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Of OUT, if it is there.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Read a packed file whole; write nothing.")
    ] = False,
    threads: Annotated[int, typer.Option("-t", "--threads", min=0, help="0: all cores.")] = 0,
    cache_dir: flags.CacheDir = None,
    config: flags.ConfigFile = None,
) -> None:
    """Write a model packed, for starts that only map it (docs/convert.md)."""

    def action() -> ExitCode:
        if check:
            return _check(model, target)
        path = _target(target)
        chosen = {"cache_dir": cache_dir} if cache_dir else {}
        settings = load_settings(chosen, config=config).settings
        folder = cache_folder(settings)
        _convert(model, folder, path, quantize or "", exact, replace, threads)
        served = msgspec.structs.replace(settings.engine, exact=exact, quantize="")
        _measure(path, served, data_folder(settings.edge))
        size = format_size(path.stat().st_size)
        out.print(f"{path}: {size}. Serve it with: sublimate serve --model {path}", soft_wrap=True)
        return ExitCode.OK

    if code := run_guarded(action):
        raise typer.Exit(code)


def _target(target: Path | None) -> Path:
    if target is None:
        raise ConfigError("Name what to write: sublimate convert MODEL NAME.sublimate.")
    if target.suffix.lower() != PACKED_SUFFIX:
        raise ConfigError(f"OUT is {target.name!r}: a packed file's name ends with .sublimate.")
    return target


def _check(path: str, target: Path | None) -> ExitCode:
    from .. import _core

    if target is not None:
        raise ConfigError("--check reads one file and writes none.")
    try:
        _core.verify_packed(path)
    except _core.CoreError as error:
        raise ModelError(str(error)) from None
    out.print(f"{path} is as it was written.", soft_wrap=True)
    return ExitCode.OK


def _convert(
    model: str,
    folder: Path,
    target: Path,
    quantize: str,
    exact: bool,
    replace: bool,
    threads: int,
) -> None:
    from .. import _core
    from ..model.files import fetch

    if exact and quantize:
        raise ConfigError("--exact keeps weights in fp32: leave it or --quantize out.")
    if threads > _core.LIMITS["COMPUTE_THREADS_MAX"]:
        raise ConfigError(f"threads: at most {_core.LIMITS['COMPUTE_THREADS_MAX']}.")
    file = fetch(model, folder)
    joined, text = _folder(file.path) if file.path.is_dir() else (None, "")
    try:
        with _Bar(file.name) as progress:
            _core.convert(
                str(file.path),
                str(target),
                exact=exact,
                quantize=quantize,
                replace=replace,
                threads=threads,
                joined=joined,
                text=text,
                progress=progress,
            )
    except _core.CoreError as error:
        raise ModelError(str(error)) from None
    except MemoryError:
        raise ModelError(f"There is too little memory to pack {file.name}.") from None


def _folder(path: Path) -> tuple[_core.Gguf, str]:
    """A Hugging Face folder's tensors, and what its other files say of text. Raises ModelError."""
    from ..model.folder.packed_text import packed_text
    from ..model.folder.reader import open_folder
    from ..model.source import header_of

    return header_of(str(path)), packed_text(open_folder(path).text_metadata())


def _measure(target: Path, settings: EngineSettings, folder: Path) -> None:
    """What a start would measure, while nothing starts beside it. Without it the first one does."""
    from ..engine.loader import Share, load_engine

    share = Share(remembers=folder)
    for _ in range(MEASURED_TIMES_MAX):
        try:
            info = load_engine(str(target), settings, lambda fraction: None, share)[1]
        except SublimateError as error:
            note(f"It cannot be loaded here as it is: {error}")
            return
        if info["measured_before"] or info["remembered"]:
            return


class _Bar:
    """A progress bar where somebody looks; called with the fraction done."""

    def __init__(self, name: str) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
        self._bars = Progress(*columns, console=out, transient=True, disable=not out.is_terminal)
        self._task = self._bars.add_task(name, total=HUNDRED)

    def __enter__(self) -> Callable[[float], None]:
        self._bars.start()
        return lambda fraction: self._bars.update(self._task, completed=fraction * HUNDRED)

    def __exit__(self, *_: object) -> None:
        self._bars.stop()
