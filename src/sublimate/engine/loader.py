"""Makes a LoopEngine from settings: with a model, or with a script for tests.

defines: Share, check_hardware, check_kv_memory, measured_key, load_engine, scripted_engine
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from .. import _core
from ..config import EngineSettings, format_size
from ..control.measured import Measured
from ..errors import ConfigError, EngineError, HardwareError
from ..model.adapters import parse_adapter, read_adapter
from ..model.source import files_of, stamp, weight_bytes
from ..probe import FACTS_VARIABLE
from .remember import CoreWait, keep, recall
from .script import Script, read_script


def _nothing(model: _core.Model) -> None:
    """Nobody waits for the weights."""


@dataclass(frozen=True, slots=True)
class Share:
    """What an engine has in common with others of its server."""

    prefix_secret: int = 0
    """As for LoopEngine.with_model."""
    weights: Literal["never", "auto", "always"] = "never"
    """As share_weights of Model.load; so is the next one as shared_weights_fd."""
    weights_fd: int = -1
    engines: int = 1
    """As for Model.load."""
    kv_parts: int = 1
    """Into how many parts what keys and values may have falls beyond that."""
    packed: Callable[[_core.Model], None] = _nothing
    """Called once the weights are there, before the engine is warm."""
    measured: Measured | None = None
    """By the engine before this one."""
    remembers: Path | None = None
    """Folder of what engines of other servers have measured (remember.py)."""


ALONE = Share()


def check_hardware(isa: str, model_path: str) -> None:
    """Raises HardwareError, with the probe's finding, if nothing, or not the instruction set `isa`,
    runs here, or if the model is larger than the memory."""
    size = weight_bytes(model_path)
    found = _core.probe()
    fits = (isa or "portable") in found["isas"] and size <= int(found["memory_bytes"])
    if fits and FACTS_VARIABLE not in os.environ:
        return
    # A start that goes well is not to pay for loading what explains one that does not.
    from ..probe.backends import check_fit
    from ..probe.source import source_of

    if finding := check_fit(source_of(os.environ), isa, size):
        raise HardwareError(finding)


def check_kv_memory(kv_bytes: int, engines: int, model_bytes: int = 0) -> None:
    """Raises ConfigError for keys and values, of each engine so many bytes, that with the weights
    are more than the memory of this machine, or of its control group."""
    if engines < 1:
        raise ValueError("there is one engine at least")
    has = int(_core.probe()["memory_bytes"])
    if not kv_bytes or kv_bytes * engines + model_bytes <= has:
        return
    each = f" for each of {engines} engines" if engines > 1 else ""
    beside = f" beside a model of {format_size(model_bytes)}" if model_bytes else ""
    raise ConfigError(
        f"kv_memory = {format_size(kv_bytes)}{each}{beside}: this machine has {format_size(has)} "
        "of memory. Lower it (--kv-memory), or leave it out to have it sized from the machine."
    )


PS_PER_US = 1_000_000


def measured_key(model_path: str, settings: EngineSettings, engines: int) -> str:
    """Equal where measurements of another process hold: for the same file with the same settings,
    threads and instruction set among them, on the same cores, by the same build. Raises OSError."""
    about = [stamp(path) for path in (model_path, _core.__file__)]
    cores = sorted(os.sched_getaffinity(0))
    return msgspec.json.encode((about, settings, cores, engines)).decode()


def _measured_before(
    model_path: str, settings: EngineSettings, share: Share
) -> tuple[str, Measured | None]:
    """The key of what this engine measures, and what one before it has, where that holds."""
    try:
        key = measured_key(model_path, settings, share.engines)
    except OSError:
        return "", None  # the loader says what is wrong with the file
    known = share.measured
    if known is not None and known.key == key:
        return key, known
    return key, recall(share.remembers, key) if share.remembers is not None else None


def load_engine(
    model_path: str,
    settings: EngineSettings,
    progress: Callable[[float], None],
    share: Share = ALONE,
) -> tuple[_core.LoopEngine, dict[str, Any], Measured | None]:
    """The engine, warmed up, its info, and what it goes by. Raises EngineError, ModelError or
    ConfigError."""
    adapters = [parse_adapter(text) for text in settings.lora]
    if settings.script:
        names = [name for name, _ in adapters]
        return *scripted_engine(read_script(settings.script), share.prefix_secret, names), None
    check_hardware(settings.isa, model_path)
    check_kv_memory(settings.kv_memory, share.engines, weight_bytes(model_path))
    key, before = _measured_before(model_path, settings, share)
    found = files_of(model_path)
    try:
        model = _core.Model.load(
            model_path,
            exact=settings.exact,
            quantize=settings.quantize,
            batch_invariant=settings.batch_invariant,
            context_length=settings.context_length,
            rope_scaling=settings.rope_scaling,
            rope_factor=settings.rope_factor,
            threads=settings.threads,
            isa=settings.isa,
            kv=settings.kv,
            kv_bytes=settings.kv_memory,
            engines=share.engines * share.kv_parts,
            share_weights=share.weights,
            shared_weights_fd=share.weights_fd,
            adapters=[read_adapter(name, path).told() for name, path in adapters],
            header=found.header,
            files=found.files,
            progress=progress,
        )
        share.packed(model)
        waits = CoreWait()
        engine = _core.LoopEngine.with_model(
            model,
            speculation=settings.speculation == "auto",
            prefix_secret=share.prefix_secret,
            measured=msgspec.to_builtins(before) if before is not None else None,
        )
        begin = time.monotonic()
        engine.warm_up()
        warm_up_seconds = time.monotonic() - begin
    except _core.CoreError as error:
        raise EngineError(str(error)) from None
    except MemoryError:
        raise EngineError(f"There is too little memory to load {model_path}.") from None
    told = engine.measured()
    more = {
        "warm_up_seconds": warm_up_seconds,
        "step_cost": told["step_cost"],
        "measured_before": engine.was_measured_before,
        "remembered": False,
    }
    measured = msgspec.convert({**told, "key": key}, Measured) if key else None
    fresh = None if engine.was_measured_before else measured
    if fresh is not None and share.remembers is not None and waits.was_short():
        keep(share.remembers, fresh)
        more["remembered"] = True
    return engine, {**model.info, **more}, measured


def scripted_engine(
    script: Script, prefix_secret: int = 0, adapters: Sequence[str] = ()
) -> tuple[_core.LoopEngine, dict[str, Any]]:
    """An engine that answers from a script, whatever the adapter, and its info. Raises
    ConfigError."""
    try:
        engine = _core.LoopEngine.with_script(
            script.answers,
            vocabulary=script.vocabulary,
            context_length=script.context_length,
            kv_pages=script.kv_pages,
            stop_token=script.stop_token,
            step_delay_us=script.step_delay_us,
            prefill_delay_us_per_token=script.prefill_delay_us_per_token,
            speculation=script.speculation,
            prefix_secret=prefix_secret,
            adapters=len(adapters),
        )
    except _core.CoreError as error:
        raise ConfigError(f"The script is not valid: {error}") from None
    info = {
        "architecture": "script",
        "vocabulary": script.vocabulary,
        "context_length": script.context_length,
        "trained_context_length": script.context_length,
        "kv_pages": script.kv_pages,
        "kv_bytes": 0,
        "weight_bytes": 0,
        "parameters": 0,
        "adapters": [{"name": name, "rank": 0, "parameters": 0, "bytes": 0} for name in adapters],
        "isa": "script",
        "threads": 1,
        "exact": False,
        "same_arithmetic": True,
        "resident_loop": True,
        "compute_path": "direct-kernel",
        "load_seconds": 0.0,
        "warm_up_seconds": 0.0,
        "step_cost": {
            "step_ps": script.step_delay_us * PS_PER_US,
            "decode_row_ps": 0,
            "prompt_row_ps": script.prefill_delay_us_per_token * PS_PER_US,
        },
    }
    return engine, info
