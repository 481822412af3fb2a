"""What the probe asks of NVIDIA's library: declarations against NVIDIA's own bindings, and the
answers of a library that stands in for a driver, read by both."""

import ctypes
from pathlib import Path

import pynvml
import pytest

from sublimate.probe import nvml


def test_numbers_are_those_of_the_bindings() -> None:
    codes = {value: name for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
    assert nvml.ERRORS.keys() <= codes.keys()
    assert codes[nvml.LIBRARY_NOT_FOUND] == "NVML_ERROR_LIBRARY_NOT_FOUND"
    assert codes[nvml.FUNCTION_NOT_FOUND] == "NVML_ERROR_FUNCTION_NOT_FOUND"
    assert codes[9] == "NVML_ERROR_DRIVER_NOT_LOADED"
    assert codes[18] == "NVML_ERROR_LIB_RM_VERSION_MISMATCH"
    assert nvml.SENSOR_GPU == pynvml.NVML_TEMPERATURE_GPU
    assert nvml.THRESHOLD_SLOWDOWN == pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    assert (nvml.CLOCK_SM, nvml.CLOCK_MEMORY) == (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM)
    assert nvml.MIG_ON == pynvml.NVML_DEVICE_MIG_ENABLE
    known = {
        value
        for name, value in vars(pynvml).items()
        if name.startswith("nvmlClocksThrottleReason") and isinstance(value, int)
    }
    assert known - {0, pynvml.nvmlClocksThrottleReasonAll} == set(nvml.THROTTLE_REASONS)
    assert pynvml.nvmlClocksThrottleReasonHwThermalSlowdown == 0x40


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (nvml.Memory, pynvml.c_nvmlMemory_t),
        (nvml.Utilization, pynvml.c_nvmlUtilization_t),
        (nvml.ProcessInfo, pynvml.c_nvmlProcessInfo_v3_t),
    ],
    ids=["memory", "utilization", "process"],
)
def test_structures_are_laid_out_as_in_the_bindings(
    ours: type[ctypes.Structure], theirs: type[ctypes.Structure]
) -> None:
    def layout(kind: type[ctypes.Structure]) -> list[tuple[int, int]]:
        fields = [getattr(kind, field[0]) for field in kind._fields_]
        return [(field.offset, field.size) for field in fields]

    assert layout(ours) == layout(theirs) and ctypes.sizeof(ours) == ctypes.sizeof(theirs)


def test_a_gpu_is_read_as_it_answers(nvml_library: Path) -> None:
    answer = nvml.read_nvml(str(nvml_library))
    assert not answer.error_code and answer.driver == "570.133.20" and answer.cuda == (12, 8)
    assert answer.gpus == (
        nvml.Gpu(
            index=0,
            name="NVIDIA H100 80GB HBM3",
            uuid="GPU-1234",
            form="SXM",
            compute_capability=(9, 0),
            cores=16896,
            memory_bytes=85520809984,
            memory_used_bytes=588251136,
            mig="unsupported",
            temperature_celsius=71,
            slowdown_celsius=87,
            power_watts=431.25,
            power_limit_watts=700.0,
            sm_clock_mhz=1755,
            sm_clock_max_mhz=1980,
            memory_clock_mhz=2619,
            throttle_reasons=("software_power_cap", "hardware_thermal"),
            utilization_percent=63,
            processes=(
                nvml.GpuProcess(process_id=4242, used_bytes=1 << 20),
                nvml.GpuProcess(process_id=4343, used_bytes=None),
            ),
        ),
    )


def test_the_bindings_read_the_same(nvml_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our calls against theirs, function by function, on one library."""
    ours = nvml.read_nvml(str(nvml_library)).gpus[0]
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(nvml_library)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetName(gpu) == ours.name
    assert pynvml.nvmlDeviceGetCudaComputeCapability(gpu) == ours.compute_capability
    assert pynvml.nvmlDeviceGetMemoryInfo(gpu).total == ours.memory_bytes
    assert pynvml.nvmlDeviceGetMemoryInfo(gpu).used == ours.memory_used_bytes
    assert pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu == ours.utilization_percent
    assert pynvml.nvmlDeviceGetPowerUsage(gpu) == (ours.power_watts or 0) * 1000
    assert pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) == (ours.power_limit_watts or 0) * 1000
    clock = pynvml.nvmlDeviceGetClockInfo
    assert clock(gpu, pynvml.NVML_CLOCK_SM) == ours.sm_clock_mhz
    assert clock(gpu, pynvml.NVML_CLOCK_MEM) == ours.memory_clock_mhz
    threshold = pynvml.nvmlDeviceGetTemperatureThreshold
    assert threshold(gpu, pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN) == ours.slowdown_celsius
    assert pynvml.nvmlDeviceGetNumGpuCores(gpu) == ours.cores
    found = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(gpu)
    assert [(one.pid, one.usedGpuMemory) for one in found] == [
        (one.process_id, one.used_bytes) for one in ours.processes or ()
    ]


def test_a_driver_that_does_not_answer_is_an_answer(tmp_path: Path) -> None:
    answer = nvml.read_nvml(str(tmp_path / nvml.LIBRARY))
    assert answer.error_code == nvml.LIBRARY_NOT_FOUND and "not installed" in answer.error
    assert answer.gpus == ()


def test_a_library_without_a_function_is_too_old(nvml_library: Path) -> None:
    opened = nvml.Library(str(nvml_library))
    with pytest.raises(nvml.NvmlError, match="too old") as caught:
        opened._call("nvmlDeviceGetWhatIsNotThere")
    assert caught.value.code == nvml.FUNCTION_NOT_FOUND
    opened.close()
    with pytest.raises(nvml.NvmlError, match="closed"):
        opened.answer()


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("NVIDIA H100 80GB HBM3", "SXM"),
        ("NVIDIA H100 PCIe", "PCIe"),
        ("NVIDIA H100 NVL", "PCIe"),
        ("NVIDIA H200", "SXM"),
        ("NVIDIA H200 NVL", "PCIe"),
        ("NVIDIA A100-SXM4-80GB", "SXM"),
        ("NVIDIA A100-PCIE-40GB", "PCIe"),
        ("NVIDIA GeForce RTX 4090", ""),
    ],
)
def test_a_form_is_told_by_the_product_name(name: str, form: str) -> None:
    assert nvml.form_of(name) == form
