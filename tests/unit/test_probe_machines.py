"""The verdicts on machines of every kind, from recordings: tests/fixtures/probe/README.md."""

import io
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

import house
from sublimate import _core
from sublimate.cli.probe import backends_table, findings_table
from sublimate.config import ServerSettings, Settings
from sublimate.engine.loader import check_hardware
from sublimate.errors import ConfigError, HardwareError
from sublimate.probe import FACTS_VARIABLE, backends, machine
from sublimate.probe.backends import Backend, backends_of, best_of, check_fit, cpu_backends
from sublimate.probe.bandwidth import read_bytes_per_s
from sublimate.probe.machine import machine_of, memory_of
from sublimate.probe.report import Report, examine
from sublimate.probe.source import (
    HostSource,
    RecordedSource,
    Recording,
    RecordingSource,
    source_of,
)

FOLDER = house.ROOT / "tests/fixtures/probe"
RUNS, NOT_BUILT, NO = "runs", "not built", "unsupported"
CPUS = {
    "portable": (RUNS, NO, NO, NO),
    "avx2": (RUNS, RUNS, NO, NO),
    "avx512": (RUNS, RUNS, RUNS, NO),
    "amx": (RUNS, RUNS, RUNS, RUNS),
    "none": (NO, NO, NO, NO),
}
MACHINES = {
    # name: (what the CPU runs, cuda-sm90, torch, words of cuda's reason, of its remedy)
    "no-avx2": ("portable", NO, NO, "no NVIDIA GPU", ""),
    "avx2": ("avx2", NO, NO, "no NVIDIA GPU", ""),
    "avx512": ("avx512", NO, NO, "no NVIDIA GPU", ""),
    "amx": ("amx", NO, NO, "no NVIDIA GPU", ""),
    "h100-sxm": ("amx", NOT_BUILT, NOT_BUILT, "H100 80GB HBM3 (SXM) with driver 570", "CPU"),
    "h100-pcie": ("avx512", NOT_BUILT, NO, "NVIDIA H100 PCIe with driver 575", "CPU"),
    "a100": ("avx2", NO, NOT_BUILT, "A100-SXM4-80GB has 8.0", "Use torch"),
    "no-driver": ("amx", NO, NO, "(10de:2330) and no driver", "--gpus all"),
    "old-driver": ("avx512", NO, NOT_BUILT, "driver 535.104.05 runs CUDA 12.2", "driver 570"),
    "aarch64": ("none", NO, NO, "no NVIDIA GPU", ""),
}


def recording(name: str) -> Recording:
    return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=Recording)


def source(name: str, **files: str) -> RecordedSource:
    """A recording, of which some files have another text. The flags decide, not what was asked of
    the extension on the recorded machine."""
    found = recording(name)
    process = msgspec.structs.replace(found.process, isas=())
    paths = {path: files.get(path, text) for path, text in {**found.files, **files}.items()}
    return RecordedSource(msgspec.structs.replace(found, process=process, files=paths))


def report(name: str, tmp_path: Path) -> Report:
    server = ServerSettings(port=0, cache_dir=str(tmp_path))
    return examine(Settings(model="default", server=server), source(name))


def named(found: list[Backend], name: str) -> Backend:
    return next(one for one in found if one.name == name)


def test_every_recording_has_its_verdict_here() -> None:
    assert sorted(MACHINES) == sorted(path.stem for path in FOLDER.glob("*.json"))


@pytest.mark.parametrize("name", MACHINES)
def test_each_machine_gets_its_verdicts(name: str) -> None:
    cpu, cuda, torch, reason, remedy = MACHINES[name]
    found = backends_of(machine_of(source(name)))
    assert [one.name for one in found] == [*backends.CPU_BACKENDS, "cuda-sm90", "torch"]
    assert tuple(one.verdict for one in found[:4]) == CPUS[cpu]
    assert (named(found, "cuda-sm90").verdict, named(found, "torch").verdict) == (cuda, torch)
    told = named(found, "cuda-sm90")
    assert reason in told.reason and remedy in told.remedy
    assert best_of(found) == ("" if cpu == "none" else f"cpu-{cpu}")
    assert all(one.reason.endswith(".") for one in found)


@pytest.mark.parametrize("name", MACHINES)
def test_a_report_fits_eighty_columns_and_goes_through_json(name: str, tmp_path: Path) -> None:
    found = report(name, tmp_path)
    assert found.fits == (name != "aarch64"), found.findings
    assert found.schema_version == 1
    assert msgspec.json.decode(msgspec.json.encode(found), type=Report) == found
    shown = Console(width=80, record=True, file=io.StringIO())
    shown.print(backends_table(found.backends), findings_table(found.findings))
    lines = shown.export_text().splitlines()
    assert max(map(len, lines)) <= 80 and len(lines) > len(found.findings)
    assert all(any(f" {one.name} " in line for line in lines) for one in found.backends)


def test_the_command_shows_and_tells(tmp_path: Path) -> None:
    environment = {**os.environ, FACTS_VARIABLE: str(FOLDER / "aarch64.json")}
    command = [sys.executable, "-m", "sublimate", "probe", "--json", "--port", "0"]
    command += ["--record", str(tmp_path / "machine.json")]
    done = subprocess.run(command, capture_output=True, env=environment)
    assert done.returncode == 4, done.stderr
    told = msgspec.json.decode(done.stdout, type=Report)
    assert not told.fits and told.backend == "" and told.machine.cpu.architecture == "aarch64"
    again = source_of({FACTS_VARIABLE: str(tmp_path / "machine.json")})
    assert machine_of(again) == told.machine


def test_figures_are_read_from_the_files() -> None:
    found = machine_of(source("amx"))
    cpu = found.cpu
    assert cpu.name == "Intel(R) Xeon(R) Platinum 8480+" and (cpu.family, cpu.model) == (6, 143)
    assert (cpu.l1_data_bytes, cpu.l2_bytes, cpu.l3_bytes) == (48 << 10, 2 << 20, 105 << 20)
    assert found.memory.total_bytes == (256 * 1048576 - 181244) * 1024
    assert found.kernel.release == "6.8.0-45-generic" and found.kernel.has_btf
    assert not found.kernel.capabilities and not found.kernel.unprivileged_bpf
    assert found.kernel.receive_buffer_bytes_max == 212992
    assert found.huge_pages.transparent == "madvise" and found.huge_pages.page_bytes == 2 << 20
    assert found.load == 0.21
    root = machine_of(source("avx512"))
    assert root.kernel.capabilities == ("net_admin", "sys_admin", "perfmon", "bpf")
    assert root.limits.group_memory_bytes is None, "what version 1 says for no limit"


def test_a_control_group_limits_memory_and_cores() -> None:
    """The least of all groups above this process counts, in either version of the interface."""
    group = "/sys/fs/cgroup/user.slice"
    limited = source(
        "amx",
        **{
            f"{group}/user-1000.slice/memory.max": "8589934592\n",
            f"{group}/user-1000.slice/memory.current": "1073741824\n",
            f"{group}/memory.max": "17179869184\n",
            f"{group}/cpu.max": "150000 100000\n",
        },
    )
    found = machine_of(limited)
    assert found.memory.total_bytes == 8 << 30 and found.memory.available_bytes == 7 << 30
    assert found.limits.group_memory_bytes == 8 << 30 and found.limits.group_cores == 1.5
    old = source(
        "avx512",
        **{
            "/sys/fs/cgroup/memory/server/memory.limit_in_bytes": "2147483648\n",
            "/sys/fs/cgroup/memory/server/memory.usage_in_bytes": "1073741824\n",
            "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
        },
    )
    assert memory_of(old).available_bytes == 1 << 30
    assert machine_of(old).limits.group_cores == 0.5


V2 = "24 23 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = (
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)
GIB = 1 << 30
GROUPS = {
    # name: (mountinfo, /proc/self/cgroup, files, memory, free memory, cores)
    "v2-nested": (V2, "0::/a/b\n", {"a/b/memory.max": GIB, "a/memory.max": 2 * GIB}, GIB, GIB, 0),
    "v2-above": (V2, "0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": GIB}, GIB, GIB, 0),
    "v2-high": (V2, "0::/a\n", {"a/memory.max": 2 * GIB, "a/memory.high": GIB}, GIB, GIB, 0),
    "v2-root": (V2, "0::/\n", {"memory.max": GIB, "cpu.max": "50000 100000"}, GIB, GIB, 0.5),
    "v2-busy-neighbour": (
        V2,
        "0::/a/b\n",
        {"a/b/memory.max": GIB, "a/memory.max": 2 * GIB, "a/memory.current": 2 * GIB - 4096},
        GIB,
        4096,
        0,
    ),
    "v2-cpu": (
        V2,
        "0::/a/b\n",
        {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000"},
        0,
        0,
        1.5,
    ),
    "v1-nested": (
        V1,
        "4:memory:/a/b\n1:cpu,cpuacct:/c\n0::/\n",
        {
            "memory/a/b/memory.limit_in_bytes": GIB,
            "memory/a/b/memory.usage_in_bytes": GIB // 4,
            "memory/memory.limit_in_bytes": 9223372036854771712,
            "cpu,cpuacct/c/cpu.cfs_quota_us": 250000,
            "cpu,cpuacct/c/cpu.cfs_period_us": 100000,
        },
        GIB,
        GIB - GIB // 4,
        2.5,
    ),
    "v1-no-limit": (
        V1,
        "4:memory:/a\n",
        {"memory/a/memory.limit_in_bytes": 9223372036854771712, "cpu,cpuacct/cpu.cfs_quota_us": -1},
        0,
        0,
        0,
    ),
    "v1-container": (  # which sees its own part of the tree, under the host's name for it
        "35 31 0:32 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
        "4:memory:/docker/x/inner\n",
        {"memory/inner/memory.limit_in_bytes": GIB},
        GIB,
        GIB,
        0,
    ),
    "another-place": (
        "24 23 0:22 / /my\\040groups rw - cgroup2 cgroup2 rw\n",
        "0::/a\n",
        {"/my groups/a/memory.max": GIB},
        GIB,
        GIB,
        0,
    ),
    "a-name-that-begins-alike": (
        "24 23 0:22 /ab /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "0::/abc\n",
        {"memory.max": GIB},
        0,
        0,
        0,
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_f66_the_tightest_limit_of_all_groups_counts(name: str) -> None:
    mounts, groups, files, memory, free, cores = GROUPS[name]
    texts = {"/proc/self/mountinfo": mounts, "/proc/self/cgroup": groups}
    texts |= {
        path if path.startswith("/") else f"/sys/fs/cgroup/{path}": f"{value}\n"
        for path, value in files.items()
    }
    found = _core.group_limits(lambda path: texts.get(path, ""))
    assert (found["memory_bytes"], found["cores"]) == (memory, cores)
    assert not memory or found["memory_free_bytes"] == free


def test_f66_probe_and_engine_have_one_answer() -> None:
    """In a group of 1 GiB, where such a one can be made."""
    folders = _core.group_folders(_read, "memory") or _core.group_folders(_read, "")
    group = Path(folders[0] if folders else "/nowhere") / f"sublimate-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no control group can be made here")
    limit = group / "memory.limit_in_bytes"
    code = (
        "import os, sys; open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()))\n"
        "from sublimate import _core\n"
        "from sublimate.probe.machine import machine_of\n"
        "from sublimate.probe.source import HostSource\n"
        "found = machine_of(HostSource())\n"
        "print(_core.probe()['memory_bytes'], found.memory.total_bytes,\n"
        "      found.limits.group_memory_bytes)\n"
    )
    try:
        inner = group / "inner"
        inner.mkdir()
        (limit if limit.exists() else group / "memory.max").write_text(str(GIB))
        command = [sys.executable, "-c", code, str(inner)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.stdout.split() == [str(GIB)] * 3, done.stderr
    except OSError:
        pytest.skip("no limit can be set here")
    finally:
        for folder in (group / "inner", group):
            if folder.is_dir():
                folder.rmdir()


def _read(path: str) -> str:
    return HostSource().read(path)


def test_nothing_is_told_of_what_is_not_there() -> None:
    empty = Recording(process=recording("amx").process)
    found = machine_of(RecordedSource(empty))
    assert found.memory.total_bytes == 0 and found.cpu.name == "" and found.load == 0.0
    assert found.limits.group_memory_bytes is None and found.gpus.devices == ()
    assert best_of(backends_of(found)) == "cpu-portable"


def cpu_of(name: str, **changes: object) -> machine.Cpu:
    return msgspec.structs.replace(machine_of(source(name)).cpu, **changes)


def test_remedies_name_what_stands_in_the_way() -> None:
    hidden = named(cpu_backends(cpu_of("avx512")), "cpu-amx")
    assert "This model of CPU has AMX" in hidden.remedy
    refused = named(cpu_backends(cpu_of("amx", has_tile_state=False)), "cpu-amx")
    assert refused.verdict == NO and "seccomp" in refused.remedy
    virtual = named(cpu_backends(cpu_of("no-avx2", is_virtual=True)), "cpu-avx2")
    assert "fma" in virtual.reason and "passes through" in virtual.remedy
    assert named(cpu_backends(cpu_of("no-avx2")), "cpu-avx2").remedy == "", "it is what it is"
    foreign = named(cpu_backends(cpu_of("aarch64")), "cpu-portable")
    assert "this is aarch64" in foreign.reason


def test_what_the_extension_found_outweighs_the_flags() -> None:
    cpu = cpu_of("amx", isas=("ref", "portable", "avx2"))
    found = cpu_backends(cpu)
    assert tuple(one.verdict for one in found) == CPUS["avx2"]
    assert all(one.reason and one.remedy for one in found if one.verdict == NO)


def test_the_flags_say_what_the_extension_finds_here() -> None:
    """The two ways to a verdict agree on this machine."""
    asked = machine_of(HostSource()).cpu
    by_flags = msgspec.structs.replace(asked, isas=())
    assert {isa for isa in asked.isas} == set(_core.probe()["isas"])
    assert cpu_backends(by_flags) == cpu_backends(asked)


GPU_CASES = {
    "driver not loaded": ({"error_code": 9, "error": "the driver is not loaded"}, "modprobe"),
    "no library": ({"error_code": 12, "error": "not installed"}, "driver, 570"),
    "versions": ({"error_code": 18, "error": "of different versions"}, "Restart the machine"),
    "other": ({"error_code": 999, "error": "error 999"}, "dmesg"),
}


@pytest.mark.parametrize("case", GPU_CASES)
def test_a_driver_that_does_not_answer_comes_with_a_remedy(case: str) -> None:
    changes, remedy = GPU_CASES[case]
    found = machine_of(source("h100-sxm"))
    assert found.gpus.nvml is not None
    answer = msgspec.structs.replace(found.gpus.nvml, gpus=(), **changes)
    gpus = msgspec.structs.replace(found.gpus, nvml=answer)
    told = named(backends_of(msgspec.structs.replace(found, gpus=gpus)), "cuda-sm90")
    assert told.verdict == NO and remedy in told.remedy and str(changes["error"]) in told.reason


def test_a_gpu_cut_into_instances_is_no_whole_one() -> None:
    found = machine_of(source("h100-sxm"))
    assert found.gpus.nvml is not None
    gpu = msgspec.structs.replace(found.gpus.nvml.gpus[0], mig="on")
    answer = msgspec.structs.replace(found.gpus.nvml, gpus=(gpu,))
    gpus = msgspec.structs.replace(found.gpus, nvml=answer)
    told = named(backends_of(msgspec.structs.replace(found, gpus=gpus)), "cuda-sm90")
    assert told.verdict == NO and told.remedy == "nvidia-smi -i 0 -mig 0"


def test_a_hot_gpu_is_noticed(tmp_path: Path) -> None:
    found = {one.topic: one for one in report("a100", tmp_path).findings}["gpu 0"]
    assert found.verdict == "notice" and "software_thermal" in found.text
    assert "86 degrees" in found.text and "nvidia-smi" in found.advice
    cool = {one.topic: one for one in report("h100-sxm", tmp_path).findings}["gpu 0"]
    assert cool.verdict == "good" and "70 of 700 W" in cool.text


def test_what_is_too_small_is_noticed(tmp_path: Path) -> None:
    files = {"/proc/sys/net/core/somaxconn": "128\n", "/proc/sys/net/core/rmem_max": "4194304\n"}
    files["/proc/sys/net/core/wmem_max"] = "4194304\n"
    settings = Settings(server=ServerSettings(port=0, cache_dir=str(tmp_path)))
    small = recording("amx")
    limited = msgspec.structs.replace(small.process, open_files_max=1024, usable_cores=1)
    kept = msgspec.structs.replace(small, process=limited, files={**small.files, **files})
    found = {one.topic: one for one in examine(settings, RecordedSource(kept)).findings}
    assert found["kernel"].verdict == "notice" and "somaxconn=1024" in found["kernel"].advice
    assert found["limits"].verdict == "notice" and "ulimit -Hn 4096" in found["limits"].advice
    assert found["cores"].verdict == "notice" and "share it" in found["cores"].text
    tiny = msgspec.structs.replace(small.process, shared_memory_bytes=1 << 20)
    kept = msgspec.structs.replace(small, process=tiny)
    found = {one.topic: one for one in examine(settings, RecordedSource(kept)).findings}
    assert "--shm-size" in found["limits"].advice and "rmem_max" in found["kernel"].advice


# ---- at start ------------------------------------------------------------------------------------
def test_a_start_is_refused_with_finding_and_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = tmp_path / "x.gguf"
    model.write_bytes(bytes(1000))
    monkeypatch.setenv(FACTS_VARIABLE, str(FOLDER / "aarch64.json"))
    with pytest.raises(HardwareError, match="x86_64; this is aarch64"):
        check_hardware("", str(model))
    monkeypatch.setenv(FACTS_VARIABLE, str(FOLDER / "avx2.json"))
    check_hardware("", str(model))
    check_hardware("ref", str(model))
    check_hardware("avx2", str(tmp_path / "absent.gguf"))
    with pytest.raises(HardwareError, match="cannot run amx: The CPU does not show avx512f"):
        check_hardware("amx", str(model))


def test_a_model_larger_than_memory_is_refused() -> None:
    small = source("avx2", **{"/proc/meminfo": "MemTotal:  1024 kB\nMemAvailable: 512 kB\n"})
    assert check_fit(small, "", 1 << 20) == ""
    finding = check_fit(small, "", (1 << 20) + 1)
    assert "1,048,576 bytes" in finding and "smaller model" in finding


def test_nonsense_is_no_machine() -> None:
    with pytest.raises(ValueError, match="no instruction set"):
        check_fit(source("amx"), "sse9", 0)
    with pytest.raises(ValueError, match="less than nothing"):
        check_fit(source("amx"), "", -1)
    with pytest.raises(ValueError, match="a thread or more"):
        read_bytes_per_s(0, 1 << 40)
    assert read_bytes_per_s(1, 1 << 20) == 0.0, "no memory for it"
    nowhere = msgspec.structs.replace(recording("amx").process, usable_cores=0)
    with pytest.raises(ValueError, match="core to run on"):
        machine.cpu_of(source("amx"), nowhere)


def test_a_recording_is_replayed_as_it_was(tmp_path: Path) -> None:
    kept = RecordingSource(HostSource())
    with pytest.raises(ValueError, match="nothing was asked"):
        kept.save(tmp_path / "machine.json")
    found = machine_of(kept)
    kept.save(tmp_path / "machine.json")
    again = source_of({FACTS_VARIABLE: str(tmp_path / "machine.json")})
    assert machine_of(again) == found and not isinstance(source_of({}), RecordedSource)
    with pytest.raises(ConfigError, match=FACTS_VARIABLE):
        source_of({FACTS_VARIABLE: str(tmp_path / "absent.json")})


WITHOUT_EXTENSION = """
import sys
sys.modules["sublimate._core"] = None  # an import of it fails
from sublimate.config import ServerSettings, Settings
from sublimate.probe.report import examine
report = examine(Settings(server=ServerSettings(port=0)))
print(report.backend, [f.advice for f in report.findings if f.topic == "extension"])
"""


def test_a_probe_needs_no_extension() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_EXTENSION], capture_output=True, text=True, check=True
    )
    best = [isa for isa in _core.probe()["isas"] if isa != "ref"][-1]
    assert done.stdout.startswith(f"cpu-{best} [") and "make build" in done.stdout
