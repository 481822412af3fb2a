"""Findings about this machine that a person can act on, and the same as data (docs/hardware.md).

defines: SCHEMA_VERSION, Finding, Report, examine
"""

from __future__ import annotations

import importlib
import os
import socket
from typing import Any, Literal

import msgspec

from ..config import LISTEN_BACKLOG, Settings, cache_folder, format_size
from ..errors import ModelError
from ..model.files import ModelFile, locate
from ..model.registry import DEFAULT
from .backends import Backend, backends_of, best_of
from .bandwidth import read_bytes_per_s
from .machine import Machine, machine_of
from .nvml import Gpu
from .source import Source, source_of

SCHEMA_VERSION = 1
"""Of Report as JSON: a member that changes its meaning or goes is a new one."""

Verdict = Literal["good", "notice", "problem"]

# Beside the weights: packed copies during the load, the processes themselves.
HEADROOM = 2.0
LOAD_WARNING = 0.5
OPEN_FILES_WANTED = 4096
SHARED_MEMORY_WANTED_BYTES = 64 << 20
BUFFER_WANTED_BYTES = 1 << 20
GIGA = 1e9
HEAT = ("hardware_thermal", "software_thermal", "hardware_slowdown", "hardware_power_brake")
"""Reasons for low clocks that somebody should see to."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report."""

    topic: str
    verdict: Verdict
    text: str
    advice: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A verdict for each backend, all findings, and the figures behind them."""

    schema_version: int = SCHEMA_VERSION
    fits: bool
    """No finding is a problem."""
    backend: str
    """What serves here: the fastest that runs, or the one that was asked for."""
    backends: list[Backend]
    findings: list[Finding]
    machine: Machine


def examine(settings: Settings, source: Source | None = None, *, measure: bool = False) -> Report:
    """Look at the machine for these settings. Loads no model and opens no port for long.

    `source`: where facts come from; None: the environment says. `measure`: read memory for a
    moment with all cores.
    """
    machine = machine_of(source or source_of(os.environ))
    if measure:
        memory = machine.memory
        rate = read_bytes_per_s(machine.cpu.usable_cores, memory.available_bytes)
        memory = msgspec.structs.replace(memory, read_bytes_per_s=rate)
        machine = msgspec.structs.replace(machine, memory=memory)
    backends = backends_of(machine)
    findings = [
        _backend(machine, backends, settings.engine.isa),
        _cores(machine, settings),
        _load(machine),
        _memory(machine, settings),
        *_bandwidth(machine),
        _huge_pages(machine),
        _limits(machine),
        _kernel(machine),
        *(_gpu(gpu) for gpu in (machine.gpus.nvml.gpus if machine.gpus.nvml else ())),
        _model(settings),
        _port(settings.server.host, settings.server.port),
        _software(machine),
    ]
    return Report(
        fits=all(finding.verdict != "problem" for finding in findings),
        backend=f"cpu-{settings.engine.isa}" if settings.engine.isa else best_of(backends),
        backends=backends,
        findings=findings,
        machine=machine,
    )


def _backend(machine: Machine, backends: list[Backend], asked: str) -> Finding:
    """What will serve, on this processor."""
    topic, cpu = "processor", machine.cpu
    name = cpu.name or "This CPU"
    if asked == "ref":
        text = f"{name} runs the reference kernels, as --isa asks: slow, for tests."
        return Finding(topic=topic, verdict="notice", text=text)
    best = best_of(backends)
    chosen = f"cpu-{asked}" if asked else best
    verdict = next((one for one in backends if one.name == chosen), backends[0])
    if verdict.verdict != "runs":
        advice = verdict.remedy
        if best:
            advice = f"Leave --isa out to take {best.removeprefix('cpu-')}. {advice}".strip()
        text = f"{name} cannot run {verdict.name}. {verdict.reason}"
        return Finding(topic=topic, verdict="problem", text=text, advice=advice)
    why = "as --isa asks" if asked else "the best that CPU and kernel allow"
    slow = chosen == "cpu-portable"
    advice = next(one.remedy for one in backends if one.name == "cpu-avx2") if slow else ""
    return Finding(
        topic=topic,
        verdict="notice" if slow else "good",
        text=f"{name}: {chosen} ({why}); {verdict.reason}",
        advice=advice,
    )


def _cores(machine: Machine, settings: Settings) -> Finding:
    topic, usable, asked = "cores", machine.cpu.usable_cores, settings.engine.threads
    allowed = machine.limits.group_cores
    if asked > usable:
        text = f"--threads {asked} with {usable} usable cores: threads will wait for each other."
        return Finding(topic=topic, verdict="notice", text=text, advice="Leave --threads out.")
    if allowed is not None and allowed < usable:
        return Finding(
            topic=topic,
            verdict="notice",
            text=f"{usable} usable cores, of whose time the control group allows {allowed:g}.",
            advice="Pin the server to whole cores (cpuset) in place of a quota: throttled threads "
            "wait for each other.",
        )
    if usable == 1:
        return Finding(
            topic=topic,
            verdict="notice",
            text="One usable core: the edge and the model share it.",
            advice="Two cores or more give steadier gaps between tokens.",
        )
    return Finding(topic=topic, verdict="good", text=f"{usable} usable cores.")


def _load(machine: Machine) -> Finding:
    load, cores = machine.load, machine.cpu.usable_cores
    if load > LOAD_WARNING * cores:
        return Finding(
            topic="load",
            verdict="notice",
            text=f"The load is {load:.1f} on {cores} cores.",
            advice="Speed and gaps between tokens will suffer while it runs.",
        )
    return Finding(topic="load", verdict="good", text=f"Load {load:.1f} on {cores} cores.")


KV_BYTES_PER_VALUE = {"f32": 4, "bf16": 2, "int8": 1}
KV_BYTES_PER_HEAD = {"f32": 0, "bf16": 0, "int8": 4}  # a scale
KEYS_AND_VALUES = 2


def _kv_pool_bytes(machine: Machine, settings: Settings) -> int:
    """What the pool of keys and values is going to take, at most: choose_kv_bytes in
    core/model/model.cpp. 0: unknown without the extension."""
    if settings.engine.kv_memory:
        return settings.engine.kv_memory
    core = _core()
    if core is None:
        return 0
    whole = machine.memory.total_bytes // int(core.LIMITS["KV_MEMORY_SHARE"])
    try:
        file = locate(settings.model, cache_folder(settings))
        kind = "f32" if settings.engine.exact else settings.engine.kv
        per_token, trained = _kv_of(_header(file).metadata, kind) if file else (0, 0)
    except ModelError:
        return whole
    context = settings.engine.context_length or trained
    sequence = per_token * context
    if not sequence:
        return whole
    return min(sequence * int(core.LIMITS["SEQUENCES_MAX"]), max(whole, sequence))


def _header(file: ModelFile) -> Any:
    """Where the extension is known to load. Raises ModelError."""
    from ..model.source import header_of

    return header_of(str(file.path))


def _kv_of(metadata: dict[str, Any], kind: str) -> tuple[int, int]:
    """(bytes of keys and values for each token, context in tokens); zeros where it is not told."""
    name = str(metadata.get("general.architecture", ""))

    def told(key: str) -> int:
        value = metadata.get(f"{name}.{key}", 0)
        return value if isinstance(value, int) else 0

    heads = told("attention.head_count")
    kv_heads = told("attention.head_count_kv") or heads
    head = told("attention.key_length") or (told("embedding_length") // heads if heads else 0)
    head_bytes = head * KV_BYTES_PER_VALUE[kind] + KV_BYTES_PER_HEAD[kind]
    return KEYS_AND_VALUES * told("block_count") * kv_heads * head_bytes, told("context_length")


def _memory(machine: Machine, settings: Settings) -> Finding:
    available = machine.memory.available_bytes
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


def _bandwidth(machine: Machine) -> list[Finding]:
    rate = machine.memory.read_bytes_per_s
    if not rate:
        return []
    text = f"Memory is read at {rate / GIGA:.1f} GB/s; a token of one stream reads all weights."
    return [Finding(topic="bandwidth", verdict="good", text=text)]


def _huge_pages(machine: Machine) -> Finding:
    mode = machine.huge_pages.transparent or "unknown"
    shared = machine.huge_pages.shared_memory or "unknown"
    text = f"Transparent huge pages: {mode}; in shared memory: {shared}."
    if mode in ("always", "madvise"):
        return Finding(topic="huge pages", verdict="good", text=text)
    return Finding(
        topic="huge pages",
        verdict="notice",
        text=f"{text} Reading weights will be slower.",
        advice="As root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    )


def _limits(machine: Machine) -> Finding:
    limits, advice = machine.limits, ""
    files = limits.open_files_max
    if files is not None and files < OPEN_FILES_WANTED:
        advice = f"Raise the limit of open files: ulimit -Hn {OPEN_FILES_WANTED} (LimitNOFILE=)."
    elif 0 < limits.shared_memory_bytes < SHARED_MEMORY_WANTED_BYTES:
        advice = "Give the container more shared memory: --shm-size 256m."
    locked = limits.locked_memory_bytes
    text = (
        f"Open files: {_amount(files)}; lockable memory: "
        f"{'unlimited' if locked is None else format_size(locked)}; /dev/shm: "
        f"{format_size(limits.shared_memory_bytes)}."
    )
    verdict = "notice" if advice else "good"
    return Finding(topic="limits", verdict=verdict, text=text, advice=advice)


def _kernel(machine: Machine) -> Finding:
    """What this kernel allows; nothing of it is needed to serve."""
    kernel = machine.kernel
    can_load = {"bpf", "perfmon"} <= set(kernel.capabilities) or "sys_admin" in kernel.capabilities
    text = f"Linux {kernel.release}; type information (BTF): {'yes' if kernel.has_btf else 'no'}; "
    text += f"programs in the kernel (eBPF): {'allowed' if can_load else 'not allowed'}."
    small = min(kernel.receive_buffer_bytes_max, kernel.send_buffer_bytes_max)
    if 0 < small < BUFFER_WANTED_BYTES:
        return Finding(
            topic="kernel",
            verdict="good",
            text=f"{text} UDP buffers are {format_size(small)} at most.",
            advice="For HTTP/3 over long distances: sysctl -w net.core.rmem_max=2500000 "
            "net.core.wmem_max=2500000",
        )
    if 0 < kernel.backlog_max < LISTEN_BACKLOG:
        advice = f"sysctl -w net.core.somaxconn={LISTEN_BACKLOG}"
        return Finding(topic="kernel", verdict="notice", text=text, advice=advice)
    return Finding(topic="kernel", verdict="good", text=text)


def _gpu(gpu: Gpu) -> Finding:
    """What it is and how it does."""
    parts = [f"{gpu.name}{f' ({gpu.form})' if gpu.form else ''}"]
    parts.append(f"compute capability {gpu.compute_capability[0]}.{gpu.compute_capability[1]}")
    if gpu.memory_bytes is not None:
        parts.append(format_size(gpu.memory_bytes))
    if gpu.temperature_celsius is not None:
        parts.append(f"{gpu.temperature_celsius} degrees")
    if gpu.power_watts is not None and gpu.power_limit_watts is not None:
        parts.append(f"{gpu.power_watts:.0f} of {gpu.power_limit_watts:.0f} W")
    if gpu.sm_clock_mhz is not None:
        parts.append(f"{gpu.sm_clock_mhz} of {gpu.sm_clock_max_mhz or 0} MHz")
    if gpu.mig != "unsupported":
        parts.append(f"MIG {gpu.mig}")
    slow = [reason for reason in gpu.throttle_reasons or () if reason in HEAT]
    advice = ""
    if slow:
        parts.append(f"clocks held down: {', '.join(slow)}")
        advice = "See to cooling and power: nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER"
    verdict = "notice" if slow else "good"
    topic = f"gpu {gpu.index}"
    return Finding(topic=topic, verdict=verdict, text=", ".join(parts) + ".", advice=advice)


def _amount(number: int | None) -> str:
    return "unlimited" if number is None else f"{number:,}"


def _model(settings: Settings) -> Finding:
    try:
        file = locate(settings.model, cache_folder(settings))
    except ModelError as error:
        return Finding(topic="model", verdict="problem", text=str(error))
    if file is None:
        text = f"{settings.model} is not here yet; serve fetches it at the first start."
        advice = "sublimate pull fetches it now."
        return Finding(topic="model", verdict="notice", text=text, advice=advice)
    core, size = _core(), format_size(file.size_bytes)
    if core is None:
        return Finding(topic="model", verdict="good", text=f"{file.name}: {size}.")
    try:
        header = _header(file)
        architecture = str(header.metadata.get("general.architecture", "unknown"))
    except ModelError as error:
        return Finding(topic="model", verdict="problem", text=str(error))
    text = f"{file.name}: {size}, architecture {architecture}, {len(header.tensors)} tensors."
    return Finding(topic="model", verdict="good", text=text)


def _port(host: str, port: int) -> Finding:
    if port == 0:
        return Finding(topic="port", verdict="good", text="A free port will be taken.")
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", "") or "it is no address"
        return Finding(
            topic="port",
            verdict="problem",
            text=f"Cannot listen on {host}:{port}: {reason}.",
            advice="Stop what listens there, or choose another with --port, or an address of this "
            "machine with --host.",
        )
    return Finding(topic="port", verdict="good", text=f"{host}:{port} is free.")


def _software(machine: Machine) -> Finding:
    software = machine.software
    if software.extension_error:
        return Finding(
            topic="extension",
            verdict="problem",
            text=f"The compiled part cannot be loaded: {software.extension_error}.",
            advice="Install it again for this Python and machine: make build, or pip install "
            "--force-reinstall --no-deps sublimate",
        )
    text = f"Python {software.python}; the compiled part loads."
    return Finding(topic="python", verdict="good", text=text)


def _core() -> Any:
    """The extension; None where it cannot be loaded, which is a finding of its own."""
    try:
        return importlib.import_module("sublimate._core")
    except ImportError:
        return None
