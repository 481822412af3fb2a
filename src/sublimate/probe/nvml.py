"""What an NVIDIA driver tells of its GPUs, by the management library that comes with it.

Called directly: some twenty functions of a stable C interface, so that no package has to be
installed and nothing is loaded where there is no driver. Tests compare every declaration with
NVIDIA's own bindings (nvidia-ml-py). Names, numbers and units: NVIDIA, NVML API Reference Guide.

defines: LIBRARY, ERRORS, THROTTLE_REASONS, NvmlError, GpuProcess, Gpu, NvmlAnswer, Library,
         read_nvml
"""

from __future__ import annotations

import ctypes
from typing import Any, Literal

import msgspec

LIBRARY = "libnvidia-ml.so.1"
ERRORS = {
    1: "the library is closed",
    3: "not supported",
    4: "no permission",
    6: "not found",
    7: "more entries than there was room for",
    9: "the driver is not loaded",
    12: f"{LIBRARY} is not installed",
    13: "the driver is too old for this call",
    15: "the GPU has fallen off the bus",
    16: "the GPU needs a reset",
    17: "the operating system refuses",
    18: "library and loaded driver are of different versions",
}
UNINITIALIZED, LIBRARY_NOT_FOUND, FUNCTION_NOT_FOUND = 1, 12, 13

THROTTLE_REASONS = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "software_power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "software_thermal",
    0x40: "hardware_thermal",
    0x80: "hardware_power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Bits of nvmlClocksThrottleReasons and our words for them."""

SENSOR_GPU = 0
THRESHOLD_SLOWDOWN = 1
CLOCK_SM, CLOCK_MEMORY = 1, 2
MIG_ON = 1
TEXT_BYTES = 96
PROCESSES_MAX = 256
MEMORY_UNKNOWN = (1 << 64) - 1
CUDA_MAJOR, CUDA_MINOR = 1000, 10
MILLIWATTS = 1000.0
ON_A_CARD = ("PCIE", "NVL")
ON_A_MODULE = ("SXM", "HBM3", "H200", "H800", "H20", "GH200", "B200", "B300")

Form = Literal["SXM", "PCIe", ""]
Mig = Literal["on", "off", "unsupported"]


class NvmlError(Exception):
    """A call failed. `code` is nvmlReturn_t."""

    def __init__(self, code: int) -> None:
        super().__init__(ERRORS.get(code, f"error {code}"))
        self.code = code


class Memory(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Utilization(ctypes.Structure):
    """nvmlUtilization_t: percent of the last sample period."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t as of nvmlDeviceGetComputeRunningProcesses_v3."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process that holds a compute context."""

    process_id: int
    used_bytes: int | None = None
    """None: the driver does not tell (no right to know, or inside of a container)."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. None: the driver does not tell this of it."""

    index: int
    name: str
    uuid: str = ""
    form: Form = ""
    """By its product name, which says so of cards and, by their memory, of modules."""
    compute_capability: tuple[int, int]
    cores: int | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    mig: Mig = "unsupported"
    temperature_celsius: int | None = None
    slowdown_celsius: int | None = None
    """From here on the GPU lowers its clocks."""
    power_watts: float | None = None
    power_limit_watts: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle_reasons: tuple[str, ...] | None = None
    utilization_percent: int | None = None
    processes: tuple[GpuProcess, ...] | None = None


class NvmlAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """All that was asked, at one moment."""

    error_code: int = 0
    """nvmlReturn_t that ended the asking; then there are no GPUs."""
    error: str = ""
    driver: str = ""
    cuda: tuple[int, int] = (0, 0)
    """Newest CUDA that the driver runs."""
    gpus: tuple[Gpu, ...] = ()


def form_of(name: str) -> Form:
    """Whether a GPU of that product name is a card in a slot or a module on a board."""
    if any(word in name.upper() for word in ON_A_CARD):
        return "PCIe"
    return "SXM" if any(word in name for word in ON_A_MODULE) else ""


class Library:
    """The library, open until `close`. One thread at a time. Raises NvmlError."""

    def __init__(self, path: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(path)
        except OSError:
            raise NvmlError(LIBRARY_NOT_FOUND) from None
        self._is_open = True
        self._call("nvmlInit_v2")

    def close(self) -> None:
        self._call("nvmlShutdown")
        self._is_open = False

    def answer(self) -> NvmlAnswer:
        """What the driver says now. Takes milliseconds for each GPU. Raises NvmlError."""
        version, count = ctypes.c_int(), ctypes.c_uint()
        self._call("nvmlSystemGetCudaDriverVersion_v2", ctypes.byref(version))
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return NvmlAnswer(
            driver=self._text("nvmlSystemGetDriverVersion"),
            cuda=(version.value // CUDA_MAJOR, version.value % CUDA_MAJOR // CUDA_MINOR),
            gpus=tuple(self._gpu(index) for index in range(count.value)),
        )

    def sensors(self, index: int) -> tuple[int | None, int | None]:
        """(degrees Celsius, percent of the last sample period in which a kernel ran) of one GPU:
        what is worth asking every second. Raises NvmlError."""
        return self._temperature(handle := self._handle(index)), self._busy(handle)

    def slowdown_celsius(self, index: int) -> int | None:
        """From here on the GPU lowers its clocks. Raises NvmlError."""
        return self._slowdown(self._handle(index))

    def _call(self, name: str, *arguments: Any) -> None:
        if not self._is_open:
            raise NvmlError(UNINITIALIZED)
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NvmlError(FUNCTION_NOT_FOUND) from None
        if code := int(function(*arguments)):
            raise NvmlError(code)

    def _tells(self, name: str, *arguments: Any) -> bool:
        """As _call; False where the GPU has no such figure or it may not be read."""
        try:
            self._call(name, *arguments)
        except NvmlError:
            return False
        return True

    def _text(self, name: str, *before: Any) -> str:
        text = ctypes.create_string_buffer(TEXT_BYTES)
        self._call(name, *before, text, ctypes.c_uint(TEXT_BYTES))
        return text.value.decode("utf-8", errors="replace")

    def _number(self, name: str, *before: Any) -> int | None:
        number = ctypes.c_uint()
        return number.value if self._tells(name, *before, ctypes.byref(number)) else None

    def _handle(self, index: int) -> Any:
        if index < 0:
            raise ValueError("GPUs are counted from 0")
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        return handle

    def _temperature(self, handle: Any) -> int | None:
        return self._number("nvmlDeviceGetTemperature", handle, SENSOR_GPU)

    def _slowdown(self, handle: Any) -> int | None:
        return self._number("nvmlDeviceGetTemperatureThreshold", handle, THRESHOLD_SLOWDOWN)

    def _busy(self, handle: Any) -> int | None:
        busy = Utilization()
        told = self._tells("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(busy))
        return int(busy.gpu) if told else None

    def _gpu(self, index: int) -> Gpu:
        handle, major, minor = self._handle(index), ctypes.c_int(), ctypes.c_int()
        self._call(
            "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor)
        )
        memory = Memory()
        has_memory = self._tells("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
        name, clock = self._text("nvmlDeviceGetName", handle), "nvmlDeviceGetClockInfo"
        return Gpu(
            index=index,
            name=name,
            uuid=self._text("nvmlDeviceGetUUID", handle),
            form=form_of(name),
            compute_capability=(major.value, minor.value),
            cores=self._number("nvmlDeviceGetNumGpuCores", handle),
            memory_bytes=int(memory.total) if has_memory else None,
            memory_used_bytes=int(memory.used) if has_memory else None,
            mig=self._mig(handle),
            temperature_celsius=self._temperature(handle),
            slowdown_celsius=self._slowdown(handle),
            power_watts=self._watts("nvmlDeviceGetPowerUsage", handle),
            power_limit_watts=self._watts("nvmlDeviceGetEnforcedPowerLimit", handle),
            sm_clock_mhz=self._number(clock, handle, CLOCK_SM),
            sm_clock_max_mhz=self._number("nvmlDeviceGetMaxClockInfo", handle, CLOCK_SM),
            memory_clock_mhz=self._number(clock, handle, CLOCK_MEMORY),
            throttle_reasons=self._throttle_reasons(handle),
            utilization_percent=self._busy(handle),
            processes=self._processes(handle),
        )

    def _watts(self, name: str, handle: Any) -> float | None:
        milliwatts = self._number(name, handle)
        return None if milliwatts is None else milliwatts / MILLIWATTS

    def _mig(self, handle: Any) -> Mig:
        now, next_boot = ctypes.c_uint(), ctypes.c_uint()
        asked = (handle, ctypes.byref(now), ctypes.byref(next_boot))
        if not self._tells("nvmlDeviceGetMigMode", *asked):
            return "unsupported"
        return "on" if now.value == MIG_ON else "off"

    def _throttle_reasons(self, handle: Any) -> tuple[str, ...] | None:
        bits = ctypes.c_ulonglong()
        name = "nvmlDeviceGetCurrentClocksThrottleReasons"
        if not self._tells(name, handle, ctypes.byref(bits)):
            return None
        return tuple(word for bit, word in THROTTLE_REASONS.items() if bits.value & bit)

    def _processes(self, handle: Any) -> tuple[GpuProcess, ...] | None:
        count, entries = ctypes.c_uint(PROCESSES_MAX), (ProcessInfo * PROCESSES_MAX)()
        name = "nvmlDeviceGetComputeRunningProcesses_v3"
        if not self._tells(name, handle, ctypes.byref(count), entries):
            return None
        return tuple(
            GpuProcess(
                process_id=entry.pid,
                used_bytes=None if entry.used_bytes == MEMORY_UNKNOWN else entry.used_bytes,
            )
            for entry in entries[: count.value]
        )


def read_nvml(path: str = LIBRARY) -> NvmlAnswer:
    """Open, ask, close. A driver that does not answer is an answer, too."""
    try:
        library = Library(path)
        try:
            return library.answer()
        finally:
            library.close()
    except NvmlError as error:
        return NvmlAnswer(error_code=error.code, error=str(error))
