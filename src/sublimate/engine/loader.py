"""Makes a LoopEngine from settings: with a model, or with a script for tests.

defines: Share, check_hardware, load_engine, scripted_engine
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .. import _core
from ..config import EngineSettings
from ..errors import ConfigError, EngineError, HardwareError
from ..model.adapters import parse_adapter, read_adapter
from ..model.source import files_of, weight_bytes
from ..probe import FACTS_VARIABLE
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
    packed: Callable[[_core.Model], None] = _nothing
    """Called once the weights are there, before the engine is warm."""


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


PS_PER_US = 1_000_000


def load_engine(
    model_path: str,
    settings: EngineSettings,
    progress: Callable[[float], None],
    share: Share = ALONE,
) -> tuple[_core.LoopEngine, dict[str, Any]]:
    """The engine, warmed up, and its info. Raises EngineError, ModelError or ConfigError."""
    adapters = [parse_adapter(text) for text in settings.lora]
    if settings.script:
        return scripted_engine(
            read_script(settings.script), share.prefix_secret, [name for name, _ in adapters]
        )
    check_hardware(settings.isa, model_path)
    found = files_of(model_path)
    try:
        model = _core.Model.load(
            model_path,
            exact=settings.exact,
            batch_invariant=settings.batch_invariant,
            context_length=settings.context_length,
            rope_scaling=settings.rope_scaling,
            rope_factor=settings.rope_factor,
            threads=settings.threads,
            isa=settings.isa,
            kv_bytes=settings.kv_memory,
            engines=share.engines,
            share_weights=share.weights,
            shared_weights_fd=share.weights_fd,
            adapters=[read_adapter(name, path).told() for name, path in adapters],
            header=found.header,
            files=found.files,
            progress=progress,
        )
        share.packed(model)
        engine = _core.LoopEngine.with_model(
            model, speculation=settings.speculation == "auto", prefix_secret=share.prefix_secret
        )
        begin = time.monotonic()
        engine.warm_up()
        warm_up_seconds = time.monotonic() - begin
    except _core.CoreError as error:
        raise EngineError(str(error)) from None
    except MemoryError:
        raise EngineError(f"There is too little memory to load {model_path}.") from None
    more = {"warm_up_seconds": warm_up_seconds, "step_cost": engine.step_cost()}
    return engine, {**model.info, **more}


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
