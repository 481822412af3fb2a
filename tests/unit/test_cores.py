"""How engines share a machine's cores, on machines that are folders like those of /sys."""

import os
from pathlib import Path

import pytest

from sublimate import _core
from sublimate.errors import ConfigError
from sublimate.supervisor.cores import (
    Core,
    Share,
    name_cores,
    read_cores,
    share_machine,
    split_cores,
    split_threads,
)


def write_machine(root: Path, siblings: list[str], nodes: list[str]) -> Path:
    """siblings: per CPU, as the kernel lists them; nodes: per memory node its CPUs."""
    for cpu, text in enumerate(siblings):
        folder = root / "cpu" / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(text + "\n")
    for node, text in enumerate(nodes):
        folder = root / "node" / f"node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(text + "\n")
    return root


# Two sockets of four cores of two threads, numbered as usual: the second threads at the end.
SIBLINGS = [f"{core},{core + 8}" for core in range(8)] * 2
NODES = ["0-3,8-11", "4-7,12-15"]


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    return write_machine(tmp_path, SIBLINGS, NODES)


def test_engines_get_whole_cores_of_one_node(machine: Path) -> None:
    cores = read_cores(range(16), machine)
    assert cores[0] == Core(0, (0, 8)) and cores[-1] == Core(1, (7, 15)) and len(cores) == 8
    assert split_cores(cores, 1) == [tuple(range(16))]
    assert split_cores(cores, 2) == [(0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)]
    assert split_cores(cores, 4)[1] == (2, 3, 10, 11)
    assert split_cores(cores, 8)[3] == (3, 11)


@pytest.mark.parametrize("count", range(1, 17))
def test_every_cpu_goes_to_one_engine_and_none_is_left_out(machine: Path, count: int) -> None:
    shares = split_cores(read_cores(range(16), machine), count)
    given = [cpu for share in shares for cpu in share]
    assert sorted(given) == list(range(16)) and len(shares) == count
    sizes = [len(share) for share in shares]
    assert min(sizes) >= 1 and max(sizes) - min(sizes) <= (2 if count <= 8 else 1)
    if count <= 8:  # no core has threads of two engines
        assert all((cpu + 8) % 16 in share for share in shares for cpu in share)


def test_more_engines_than_cpus_have_none_of_their_own(machine: Path) -> None:
    assert split_cores(read_cores(range(16), machine), 17) == [()] * 17
    assert split_cores([], 1) == [()]
    with pytest.raises(ValueError, match="engine"):
        split_cores([], 0)


def test_only_what_the_process_may_use_is_given(machine: Path) -> None:
    """A container's cpuset: of one core a single thread, and nothing of the first node's rest."""
    cores = read_cores({3, 4, 5, 12, 13}, machine)
    assert cores == [Core(0, (3,)), Core(1, (4, 12)), Core(1, (5, 13))]
    assert split_cores(cores, 3) == [(3,), (4, 12), (5, 13)]
    assert split_cores(cores, 5) == [(3,), (4,), (12,), (5,), (13,)]


def test_without_a_topology_each_cpu_is_a_core(tmp_path: Path) -> None:
    assert read_cores({2, 0}, tmp_path) == [Core(0, (0,)), Core(0, (2,))]
    broken = write_machine(tmp_path / "broken", ["x", "3-1", "0-99999999"], [])
    assert read_cores(range(3), broken) == [Core(0, (cpu,)) for cpu in range(3)]


def test_cores_and_nodes_by_name(machine: Path) -> None:
    everything = range(16)
    assert name_cores("0-3:4,6-7", 2, everything, machine) == [(0, 1, 2, 3), (4, 6, 7)]
    assert name_cores("node1:node0", 2, everything, machine)[0] == (4, 5, 6, 7, 12, 13, 14, 15)
    assert name_cores("node1", 1, {0, 5, 12}, machine) == [(5, 12)]


@pytest.mark.parametrize(
    ("text", "count", "says"),
    [
        ("0-3", 2, "1 lists for 2 workers"),
        ("0-3:x", 2, '"x" names no cores'),
        ("node7", 1, '"node7" names no cores'),
        ("nodex", 1, '"nodex" names no cores'),
        ("0-16", 1, "may not use"),
        ("", 1, '"" names no cores'),
        ("3-1", 1, '"3-1" names no cores'),
        ("-1", 1, '"-1" names no cores'),
        ("0-99999999", 1, "names no cores"),
    ],
)
def test_what_names_no_cores_is_told(machine: Path, text: str, count: int, says: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.worker_cpus") as error:
        name_cores(text, count, range(16), machine)
    assert says in str(error.value)


def test_this_machine_is_shared() -> None:
    """One engine is left alone; several have as many threads together as there are cores."""
    allowed = sorted(os.sched_getaffinity(0))
    usable = int(_core.probe()["cores"])
    assert share_machine("auto", 1) == [Share()] == share_machine("none", 1)
    first = share_machine(str(allowed[0]), 1)
    assert first == [Share((allowed[0],), 0)]
    for count in (2, 3, 16):
        shares = share_machine("auto", count)
        assert len(shares) == count
        threads = [share.threads or len(share.cpus) for share in shares]
        assert sum(threads) <= max(usable, count)
        given = [cpu for share in shares for cpu in share.cpus]
        assert len(set(given)) == len(given) and set(given) <= set(allowed)
        apart = [share.threads for share in share_machine("none", count)]
        assert sum(apart) == max(usable, count) and max(apart) - min(apart) <= 1


@pytest.mark.parametrize(
    ("sizes", "usable", "threads"),
    [
        ([2, 3], 5, [0, 0]),  # one on each: none is left out
        ([4, 1], 5, [0, 0]),
        ([2, 3], 3, [1, 2]),  # a quota on processor time
        ([8, 8], 8, [4, 4]),
        ([1, 4], 4, [0, 2]),
        ([0, 0], 5, [2, 3]),  # nobody is bound to a core
        ([0, 0, 0], 2, [1, 1, 1]),
    ],
)
def test_no_core_is_left_without_a_thread(
    sizes: list[int], usable: int, threads: list[int]
) -> None:
    assert split_threads(sizes, usable) == threads
