"""Facts about a machine as typed figures, read through a Source. 0 or empty: it is not told.

defines: Cpu, Memory, HugePages, Kernel, Limits, Gpus, Software, Machine, cpu_of, memory_of,
         machine_of
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

import msgspec

from .nvml import NvmlAnswer
from .source import ProcessFacts, Source

KIBIBYTE = 1024
HEAD_BYTES = 4096
"""Of /proc/cpuinfo, whose entries are made while it is read: the first one is within this."""
SIZE_UNITS = {"": 1, "K": KIBIBYTE, "M": KIBIBYTE**2, "G": KIBIBYTE**3}
NVIDIA, DISPLAY_CLASS = "0x10de", "0x03"
PCI = "/sys/bus/pci/devices"
CAPABILITIES = {"net_admin": 12, "sys_admin": 21, "perfmon": 38, "bpf": 39}
"""Bits of CapEff that matter for programs in the kernel."""

# By the names of /proc/cpuinfo; the kernel hides there what it does not save on a switch.
FEATURES = (
    "fma", "f16c", "avx", "avx2", "avx_vnni", "avx512f", "avx512dq", "avx512bw", "avx512vl",
    "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16",
)  # fmt: skip


class _Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all groups of figures."""


class Cpu(_Figures, frozen=True, kw_only=True):
    """The first processor; the others are taken to be like it."""

    name: str
    vendor: str
    architecture: str
    family: int
    model: int
    features: tuple[str, ...]
    """Of those that matter here, by the names of /proc/cpuinfo."""
    has_tile_state: bool
    is_virtual: bool
    usable_cores: int
    l1_data_bytes: int
    """Of one core, as l2_bytes; l3_bytes is shared."""
    l2_bytes: int
    l3_bytes: int
    isas: tuple[str, ...]
    """What the extension found to run here; empty: it was not asked."""


class Memory(_Figures, frozen=True, kw_only=True):
    """Of the machine, or of the control group where that allows less."""

    total_bytes: int
    available_bytes: int
    read_bytes_per_s: float = 0.0
    """Measured on all usable cores (--measure); 0: it was not."""


class HugePages(_Figures, frozen=True, kw_only=True):
    """transparent, shared_memory: always, madvise, never, ... as the kernel's files have them."""

    transparent: str
    shared_memory: str
    page_bytes: int
    reserved: int
    free: int


class Kernel(_Figures, frozen=True, kw_only=True):
    """What this process may ask of the kernel."""

    release: str
    has_btf: bool
    capabilities: tuple[str, ...]
    """Effective ones, of those that programs in the kernel need."""
    unprivileged_bpf: bool
    backlog_max: int
    """net.core.somaxconn: connections that wait to be accepted."""
    receive_buffer_bytes_max: int
    """net.core.rmem_max, as the next: what a UDP socket may buffer."""
    send_buffer_bytes_max: int


class Limits(_Figures, frozen=True, kw_only=True):
    """None: unlimited."""

    locked_memory_bytes: int | None
    open_files: int | None
    open_files_max: int | None
    shared_memory_bytes: int
    group_memory_bytes: int | None
    """The control group's, as group_cores."""
    group_cores: float | None


class Gpus(_Figures, frozen=True, kw_only=True):
    """NVIDIA's. devices: what is on the PCI bus (vendor:device), driver or not."""

    devices: tuple[str, ...]
    nvml: NvmlAnswer | None


class Software(_Figures, frozen=True, kw_only=True):
    """Versions; torch is empty where it is not installed."""

    python: str
    torch: str
    extension_error: str


class Machine(_Figures, frozen=True, kw_only=True):
    """All of it."""

    cpu: Cpu
    memory: Memory
    huge_pages: HugePages
    kernel: Kernel
    limits: Limits
    gpus: Gpus
    software: Software
    load: float
    """Processes that ran or waited for a core, over the last minute."""


def machine_of(source: Source) -> Machine:
    """Everything but what has to be measured."""
    process = source.process()
    group_memory, _, group_cores = group_limits(source)
    return Machine(
        cpu=cpu_of(source, process),
        memory=memory_of(source),
        huge_pages=_huge_pages(source),
        kernel=_kernel(source),
        limits=Limits(
            locked_memory_bytes=process.locked_memory_bytes,
            open_files=process.open_files,
            open_files_max=process.open_files_max,
            shared_memory_bytes=process.shared_memory_bytes,
            group_memory_bytes=group_memory,
            group_cores=group_cores,
        ),
        gpus=Gpus(devices=_pci_devices(source), nvml=source.nvml()),
        software=Software(
            python=process.python, torch=source.torch(), extension_error=process.extension_error
        ),
        load=float((source.read("/proc/loadavg").split() or ["0"])[0]),
    )


def cpu_of(source: Source, process: ProcessFacts) -> Cpu:
    """The processor. Reads what `serve` looks at when it starts, so it is quick."""
    if process.usable_cores < 1:
        raise ValueError("a process has a core to run on")
    head = source.read("/proc/cpuinfo", HEAD_BYTES).partition("\n\n")[0]
    fields = dict(_fields(head))
    flags = set(fields.get("flags", "").split())
    caches = dict(_caches(source))
    return Cpu(
        name=fields.get("model name", ""),
        vendor=fields.get("vendor_id", ""),
        architecture=process.architecture,
        family=_number(fields.get("cpu family", "")),
        model=_number(fields.get("model", "")),
        features=tuple(name for name in FEATURES if name in flags),
        has_tile_state=process.has_tile_state,
        is_virtual="hypervisor" in flags,
        usable_cores=process.usable_cores,
        l1_data_bytes=caches.get(1, 0),
        l2_bytes=caches.get(2, 0),
        l3_bytes=caches.get(3, 0),
        isas=process.isas,
    )


def memory_of(source: Source) -> Memory:
    """What there is and what is free, for this process."""
    fields = dict(_fields(source.read("/proc/meminfo")))
    total, available = (_kilobytes(fields, name) for name in ("MemTotal", "MemAvailable"))
    limit, left, _ = group_limits(source)
    if limit is not None:
        total, available = min(total, limit), min(available, left)
    return Memory(total_bytes=total, available_bytes=available)


def _fields(text: str) -> Iterator[tuple[str, str]]:
    """Of lines such as `name : value`."""
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            yield name.strip(), value.strip()


def _number(text: str) -> int:
    """A whole number at the beginning, or 0."""
    match = re.match(r"\s*(\d+)", text)
    return int(match[1]) if match else 0


def _kilobytes(fields: dict[str, str], name: str) -> int:
    return _number(fields.get(name, "")) * KIBIBYTE


def _caches(source: Source) -> Iterator[tuple[int, int]]:
    """(level, bytes) of the caches for data."""
    folder = "/sys/devices/system/cpu/cpu0/cache"
    for name in source.names(folder):
        if source.read(f"{folder}/{name}/type").strip() in ("Data", "Unified"):
            size = re.match(r"(\d+)([KMG]?)", source.read(f"{folder}/{name}/size"))
            level = _number(source.read(f"{folder}/{name}/level"))
            yield level, int(size[1]) * SIZE_UNITS[size[2]] if size else 0


def group_limits(source: Source) -> tuple[int | None, int, float | None]:
    """(bytes of memory that the control group allows, bytes of it that are left, cores). None: no
    limit, or the extension, which knows how to read it, cannot be loaded."""
    try:
        core = importlib.import_module("sublimate._core")
    except ImportError:
        return None, 0, None
    found = core.group_limits(source.read)
    return found["memory_bytes"] or None, found["memory_free_bytes"], found["cores"] or None


def _huge_pages(source: Source) -> HugePages:
    folder = "/sys/kernel/mm/transparent_hugepage"
    fields = dict(_fields(source.read("/proc/meminfo")))
    return HugePages(
        transparent=_chosen(source.read(f"{folder}/enabled")),
        shared_memory=_chosen(source.read(f"{folder}/shmem_enabled")),
        page_bytes=_number(source.read(f"{folder}/hpage_pmd_size")),
        reserved=_number(fields.get("HugePages_Total", "")),
        free=_number(fields.get("HugePages_Free", "")),
    )


def _chosen(text: str) -> str:
    """Of `always [madvise] never`, the one in brackets."""
    return text.partition("[")[2].partition("]")[0]


def _kernel(source: Source) -> Kernel:
    effective = dict(_fields(source.read("/proc/self/status"))).get("CapEff", "0")
    bits = int(effective, 16)
    net, bpf_off = "/proc/sys/net/core", source.read("/proc/sys/kernel/unprivileged_bpf_disabled")
    return Kernel(
        release=source.read("/proc/sys/kernel/osrelease").strip(),
        has_btf="vmlinux" in source.names("/sys/kernel/btf"),
        capabilities=tuple(name for name, bit in CAPABILITIES.items() if bits >> bit & 1),
        unprivileged_bpf=bpf_off.strip() == "0",
        backlog_max=_number(source.read(f"{net}/somaxconn")),
        receive_buffer_bytes_max=_number(source.read(f"{net}/rmem_max")),
        send_buffer_bytes_max=_number(source.read(f"{net}/wmem_max")),
    )


def _pci_devices(source: Source) -> tuple[str, ...]:
    found: list[str] = []
    for name in source.names(PCI):
        vendor, kind, device = (
            source.read(f"{PCI}/{name}/{file}").strip() for file in ("vendor", "class", "device")
        )
        if vendor == NVIDIA and kind.startswith(DISPLAY_CLASS):
            found.append(f"{vendor[2:]}:{device[2:]}")
    return tuple(found)
