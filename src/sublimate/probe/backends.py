"""A verdict for each backend: whether it runs on this machine, why (not), and what to do about it.

cpu-*: by instruction set, as core/cpu/dispatch.cpp decides. cuda-sm90: kernels for compute
capability 9.0 alone, whose resident loop needs graph nodes of CUDA 12.8. torch: whatever GPU or
CPU PyTorch runs on. The last two are judged by what machine and driver must have; no build holds
them yet, so there the best that they can be is "not built".

defines: CPU_BACKENDS, Backend, cpu_backends, backends_of, best_of, check_fit
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from .machine import Cpu, Gpus, Machine, cpu_of, memory_of
from .nvml import Gpu, NvmlAnswer
from .source import Source

Verdict = Literal["runs", "not built", "unsupported"]

CPU_BACKENDS = ("cpu-portable", "cpu-avx2", "cpu-avx512", "cpu-amx")
"""Slowest first."""
NEEDS = {
    "cpu-portable": (),
    "cpu-avx2": ("fma", "f16c", "avx", "avx2"),
    "cpu-avx512": (
        "avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16",
    ),
    "cpu-amx": ("amx_tile", "amx_int8", "amx_bf16"),
}  # fmt: skip
"""What each needs beyond the one before it, by the names of /proc/cpuinfo."""
MEANING = {
    "cpu-portable": "plain C++: slow",
    "cpu-avx2": "256-bit vectors: about half the speed of AVX-512",
    "cpu-avx512": "512-bit vectors with int8 dot products",
    "cpu-amx": "matrix tiles: fastest prompts and batches",
}
ARCHITECTURE = "x86_64"
INTEL, INTEL_FAMILY = "GenuineIntel", 6
MODELS_WITH_AMX = (143, 207, 173, 174)
"""Sapphire Rapids, Emerald Rapids, Granite Rapids (X and D)."""

COMPUTE_CAPABILITY = (9, 0)
CUDA_NEEDED = (12, 8)
DRIVER_NEEDED = "570"
TORCH_CAPABILITY = (7, 0)
"""Least that torch.compile's back end makes code for."""
DRIVER_ERRORS = {
    9: "Load the kernel module (modprobe nvidia), or restart after the installation.",
    12: f"Install NVIDIA's driver, {DRIVER_NEEDED} or newer; a container also needs `--gpus all`.",
    18: "Restart the machine: the driver was updated while the old one was in use.",
}
INSTALL_DRIVER = DRIVER_ERRORS[12]
NOT_BUILT = "This version serves on the CPU."


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the verdict."""

    name: str
    verdict: Verdict
    reason: str
    remedy: str = ""
    """What would change the verdict; empty if it runs, or if nothing would on this machine."""


def cpu_backends(cpu: Cpu) -> list[Backend]:
    """In the order of CPU_BACKENDS."""
    found: list[Backend] = []
    for name in CPU_BACKENDS:
        why_not = _cpu_obstacle(name, cpu)
        runs = why_not is None
        if cpu.isas:
            runs = name.removeprefix("cpu-") in cpu.isas
        if runs:
            found.append(Backend(name=name, verdict="runs", reason=f"{MEANING[name]}."))
            continue
        reason, remedy = why_not or ("The kernel refuses it to this process.", _allow_tiles())
        found.append(Backend(name=name, verdict="unsupported", reason=reason, remedy=remedy))
    return found


def backends_of(machine: Machine) -> list[Backend]:
    """All: the CPU's, cuda-sm90, torch."""
    return [*cpu_backends(machine.cpu), _cuda(machine.gpus), _torch(machine)]


def best_of(backends: Sequence[Backend]) -> str:
    """Name of the fastest that runs; empty if none does."""
    running = [backend.name for backend in backends if backend.verdict == "runs"]
    return running[-1] if running else ""


def check_fit(source: Source, isa: str, weight_bytes: int) -> str:
    """Why this machine cannot serve, with the remedy; empty if it can. `isa`: the one that must
    run, empty for any; `weight_bytes`: what has to be in memory. Takes about a millisecond."""
    if weight_bytes < 0:
        raise ValueError("weights take no less than nothing")
    if isa not in ("", "ref") and f"cpu-{isa}" not in CPU_BACKENDS:
        raise ValueError(f"{isa} is no instruction set of this program")
    cpu = cpu_of(source, source.process())
    backends = cpu_backends(cpu)
    name = f"This machine ({cpu.name})" if cpu.name else "This machine"
    running = [one.name.removeprefix("cpu-") for one in backends if one.verdict == "runs"]
    if not running:
        return f"{name} runs no backend of this program. {_sentence(backends[0])}"
    if isa and isa != "ref" and isa not in running:
        asked = next(one for one in backends if one.name == f"cpu-{isa}")
        return f"{name} cannot run {isa}: {_sentence(asked)} It runs {', '.join(running)}."
    memory = memory_of(source).total_bytes
    if 0 < memory < weight_bytes:
        return (
            f"{name} has {memory:,} bytes of memory for this process, and the model's weights alone"
            f" take {weight_bytes:,}. Take a smaller model, or give it more memory."
        )
    return ""


def _sentence(backend: Backend) -> str:
    return f"{backend.reason} {backend.remedy}".strip()


# ---- processors ----------------------------------------------------------------------------------
def _cpu_obstacle(name: str, cpu: Cpu) -> tuple[str, str] | None:
    """(reason, remedy) if the instruction set does not run; None if it does."""
    if cpu.architecture != ARCHITECTURE:
        return f"The kernels are for {ARCHITECTURE}; this is {cpu.architecture}.", ""
    missing: list[str] = []
    for one in CPU_BACKENDS[: CPU_BACKENDS.index(name) + 1]:
        missing += [feature for feature in NEEDS[one] if feature not in cpu.features]
    if missing:
        lacks = ", ".join(missing[:3]) + (" and others" if len(missing) > 3 else "")
        return f"The CPU does not show {lacks}.", _cpu_remedy(name, cpu)
    if name == "cpu-amx" and not cpu.has_tile_state:
        return "The kernel keeps no tile state for this process.", _allow_tiles()
    return None


def _cpu_remedy(name: str, cpu: Cpu) -> str:
    has_amx = cpu.vendor == INTEL and cpu.family == INTEL_FAMILY and cpu.model in MODELS_WITH_AMX
    if name == "cpu-amx" and has_amx:
        return (
            "This model of CPU has AMX: Linux 5.16 or newer shows it, and in a virtual machine a "
            "CPU type that passes it through."
        )
    if cpu.is_virtual:
        return "In a virtual machine, choose a CPU type that passes through what the host has."
    return ""


def _allow_tiles() -> str:
    return "Let the sandbox (seccomp) allow arch_prctl; Linux 5.16 or newer is needed."


# ---- GPUs ----------------------------------------------------------------------------------------
def _cuda(gpus: Gpus) -> Backend:
    name = "cuda-sm90"
    if (obstacle := _no_driver(gpus)) is not None:
        return Backend(name=name, verdict="unsupported", reason=obstacle[0], remedy=obstacle[1])
    answer = gpus.nvml or NvmlAnswer()
    fitting = [gpu for gpu in answer.gpus if gpu.compute_capability == COMPUTE_CAPABILITY]
    if not fitting:
        shown = ", ".join(f"{_product(gpu)} has {_capability(gpu)}" for gpu in answer.gpus)
        return Backend(
            name=name,
            verdict="unsupported",
            reason=f"It needs compute capability 9.0 (H100, H200, GH200); {shown or 'none here'}.",
            remedy="Use torch for other GPUs." if answer.gpus else "",
        )
    shown = _product(fitting[0])
    if answer.cuda < CUDA_NEEDED:
        return Backend(
            name=name,
            verdict="unsupported",
            reason=f"{shown} would do, but driver {answer.driver} runs CUDA {_dotted(answer.cuda)} "
            f"and {_dotted(CUDA_NEEDED)} is needed.",
            remedy=f"Install driver {DRIVER_NEEDED} or newer.",
        )
    if all(gpu.mig == "on" for gpu in fitting):
        return Backend(
            name=name,
            verdict="unsupported",
            reason=f"{shown} is cut into instances (MIG); the resident loop needs a whole GPU.",
            remedy=f"nvidia-smi -i {fitting[0].index} -mig 0",
        )
    reason = f"{shown} with driver {answer.driver} fits; this build has no CUDA backend."
    return Backend(name=name, verdict="not built", reason=reason, remedy=NOT_BUILT)


def _torch(machine: Machine) -> Backend:
    name, version = "torch", machine.software.torch
    if not version:
        remedy = "pip install torch"
        return Backend(
            name=name, verdict="unsupported", reason="PyTorch is not installed.", remedy=remedy
        )
    gpus = machine.gpus.nvml.gpus if machine.gpus.nvml else ()
    fitting = [gpu for gpu in gpus if gpu.compute_capability >= TORCH_CAPABILITY]
    device = _product(fitting[0]) if fitting else "the CPU"
    reason = f"PyTorch {version} on {device} fits; this build has no torch backend."
    return Backend(name=name, verdict="not built", reason=reason, remedy=NOT_BUILT)


def _no_driver(gpus: Gpus) -> tuple[str, str] | None:
    """(reason, remedy) if there is no GPU, or one that no driver speaks for."""
    if gpus.nvml is not None and not gpus.nvml.error_code:
        return None
    if gpus.nvml is None:
        if not gpus.devices:
            return "There is no NVIDIA GPU.", ""
        seen = f"There is an NVIDIA GPU ({gpus.devices[0]}) and no driver for it."
        return seen, INSTALL_DRIVER
    remedy = DRIVER_ERRORS.get(gpus.nvml.error_code, "See the kernel's log (dmesg) for NVRM lines.")
    return f"NVIDIA's driver does not answer: {gpus.nvml.error}.", remedy


def _product(gpu: Gpu) -> str:
    return gpu.name + (f" ({gpu.form})" if gpu.form and gpu.form not in gpu.name else "")


def _capability(gpu: Gpu) -> str:
    return _dotted(gpu.compute_capability)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
