"""Findings about this machine that a person can act on, and the same as data.

defines: Finding, Report, examine
"""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path
from typing import Any, Literal

import msgspec

from .. import _core
from ..config import Settings, cache_folder, format_size
from ..errors import ModelError
from ..model.files import locate
from ..model.registry import DEFAULT

Verdict = Literal["good", "notice", "problem"]

# Beside the weights: packed copies during the load, the processes themselves.
HEADROOM = 2.0
KIBIBYTE = 1024
LOAD_WARNING = 0.5
ISA_MEANING = {
    "amx": "matrix tiles: fastest prefill and batches",
    "avx512": "512-bit vectors with int8 dot products",
    "avx2": "256-bit vectors: about half the speed of avx512",
    "portable": "plain C++: slow; any better set was not found",
    "ref": "plain C++: for tests",
}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report."""

    topic: str
    verdict: Verdict
    text: str
    advice: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All findings, and the raw figures behind them."""

    fits: bool
    """No finding is a problem."""
    findings: list[Finding]
    machine: dict[str, Any]


def examine(settings: Settings) -> Report:
    """Look at the machine for these settings. Loads no model and opens no port for long."""
    machine = dict(_core.probe())
    machine["python"] = platform.python_version()
    machine["kernel"] = platform.release()
    machine["memory_available_bytes"] = _available_memory()
    findings = [
        _cpu(machine, settings),
        _cores(machine, settings),
        _load(),
        _memory(machine, settings),
        _huge_pages(),
        _model(settings),
        _port(settings.server.host, settings.server.port),
        _python(),
    ]
    fits = all(finding.verdict != "problem" for finding in findings)
    return Report(fits=fits, findings=findings, machine=machine)


def _cpu(machine: dict[str, Any], settings: Settings) -> Finding:
    isas: list[str] = list(machine.get("isas", []))
    best = str(machine.get("best_isa", isas[-1] if isas else ""))
    asked = settings.engine.isa
    chosen = asked or best
    cpu = str(machine.get("cpu") or "This CPU")
    if not isas or (asked and asked not in isas):
        return Finding(
            topic="instruction set",
            verdict="problem",
            text=f"{cpu} runs {', '.join(isas) or 'none of ours'}, not {asked or 'any'}.",
            advice="Leave --isa out to take the best one.",
        )
    why = "chosen by --isa" if asked else "the best that CPU and kernel allow"
    slow = chosen in ("portable", "ref")
    return Finding(
        topic="instruction set",
        verdict="notice" if slow else "good",
        text=f"{cpu}: {chosen} ({why}); {ISA_MEANING.get(chosen, '')}.",
        advice="In a virtual machine, ask for a CPU type that passes AVX2 through." if slow else "",
    )


def _cores(machine: dict[str, Any], settings: Settings) -> Finding:
    usable = len(os.sched_getaffinity(0))
    asked = settings.engine.threads
    if asked > usable:
        return Finding(
            topic="cores",
            verdict="notice",
            text=f"--threads {asked} with {usable} usable cores: threads will wait for each other.",
            advice="Leave --threads out.",
        )
    if usable == 1:
        return Finding(
            topic="cores",
            verdict="notice",
            text="One usable core: the edge and the model share it.",
            advice="Two cores or more give steadier gaps between tokens.",
        )
    return Finding(topic="cores", verdict="good", text=f"{usable} usable cores.")


def _load() -> Finding:
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load > LOAD_WARNING * cores:
        return Finding(
            topic="load",
            verdict="notice",
            text=f"Other work keeps {load:.1f} of {cores} cores busy.",
            advice="Speed and gaps between tokens will suffer while it runs.",
        )
    return Finding(topic="load", verdict="good", text=f"Load {load:.1f} on {cores} cores.")


def _available_memory() -> int:
    """MemAvailable, or less if a control group allows less. 0 if unknown."""
    available = 0
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * KIBIBYTE
    except (OSError, ValueError, IndexError):
        return 0
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        if limit != "max":
            available = min(available, max(0, int(limit) - used))
    except (OSError, ValueError):
        return available
    return available


# As the loader takes it if --kv-memory does not say: see choose_kv_bytes in core/model/model.cpp.
KV_SHARE = 4
KV_BYTES_PER_VALUE = 2
KEYS_AND_VALUES = 2


def _kv_pool_bytes(machine: dict[str, Any], settings: Settings) -> int:
    """What the pool of keys and values is going to take, at most."""
    if settings.engine.kv_memory:
        return settings.engine.kv_memory
    whole = int(machine.get("memory_bytes", 0)) // KV_SHARE
    try:
        file = locate(settings.model, cache_folder(settings))
        per_token, trained = _kv_of(_core.Gguf(str(file.path)).metadata) if file else (0, 0)
    except (ModelError, _core.CoreError):
        return whole
    context = settings.engine.context_length or trained
    sequence = per_token * context
    if not sequence:
        return whole
    return min(sequence * _core.LIMITS["SEQUENCES_MAX"], max(whole, sequence))


def _kv_of(metadata: dict[str, Any]) -> tuple[int, int]:
    """(bytes of keys and values for each token, context in tokens); zeros where it is not told."""
    name = str(metadata.get("general.architecture", ""))

    def told(key: str) -> int:
        value = metadata.get(f"{name}.{key}", 0)
        return value if isinstance(value, int) else 0

    heads = told("attention.head_count")
    kv_heads = told("attention.head_count_kv") or heads
    head = told("attention.key_length") or (told("embedding_length") // heads if heads else 0)
    values = KEYS_AND_VALUES * told("block_count") * kv_heads * head
    return values * KV_BYTES_PER_VALUE, told("context_length")


def _memory(machine: dict[str, Any], settings: Settings) -> Finding:
    available = int(machine["memory_available_bytes"])
    try:
        file = locate(settings.model, cache_folder(settings))
        weights = file.size_bytes if file else DEFAULT.size_bytes
    except ModelError:
        weights = DEFAULT.size_bytes
    pool = _kv_pool_bytes(machine, settings)
    needed = int(weights * HEADROOM) + settings.engine.kv_memory
    text = (
        f"{format_size(available)} available; the model needs about {format_size(needed)}; keys "
        f"and values may take {format_size(pool)} as requests fill them."
    )
    if available and available < needed:
        advice = "Take a smaller model or lower --kv-memory, or free memory."
        return Finding(topic="memory", verdict="problem", text=text, advice=advice)
    if available and available < int(weights * HEADROOM) + pool:
        advice = "Set --kv-memory to what is left, or free memory."
        return Finding(topic="memory", verdict="notice", text=text, advice=advice)
    return Finding(topic="memory", verdict="good", text=text)


def _huge_pages() -> Finding:
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    try:
        mode = path.read_text().partition("[")[2].partition("]")[0]
    except OSError:
        mode = "unknown"
    if mode in ("always", "madvise"):
        return Finding(topic="huge pages", verdict="good", text=f"Transparent huge pages: {mode}.")
    return Finding(
        topic="huge pages",
        verdict="notice",
        text=f"Transparent huge pages: {mode}. Reading weights will be slower.",
        advice=f"As root: echo madvise > {path}",
    )


def _model(settings: Settings) -> Finding:
    try:
        file = locate(settings.model, cache_folder(settings))
    except ModelError as error:
        return Finding(topic="model", verdict="problem", text=str(error))
    if file is None:
        text = f"{settings.model} is not here yet; serve fetches it at the first start."
        advice = "sublimate pull fetches it now."
        return Finding(topic="model", verdict="notice", text=text, advice=advice)
    try:
        header = _core.Gguf(str(file.path))
        architecture = str(header.metadata.get("general.architecture", "unknown"))
    except _core.CoreError as error:
        return Finding(topic="model", verdict="problem", text=f"{file.path}: {error}")
    size = format_size(file.size_bytes)
    text = f"{file.name}: {size}, architecture {architecture}, {len(header.tensors)} tensors."
    return Finding(topic="model", verdict="good", text=text)


def _port(host: str, port: int) -> Finding:
    if port == 0:
        return Finding(topic="port", verdict="good", text="A free port will be taken.")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            reason = error.strerror or type(error).__name__
            return Finding(
                topic="port",
                verdict="problem",
                text=f"Cannot listen on {host}:{port}: {reason}.",
                advice="Stop what listens there, or choose another with --port.",
            )
    return Finding(topic="port", verdict="good", text=f"{host}:{port} is free.")


def _python() -> Finding:
    text = f"Python {platform.python_version()} on Linux {platform.release()}."
    return Finding(topic="python", verdict="good", text=text)
