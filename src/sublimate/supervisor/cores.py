"""Which cores each of several engines gets. By default all that this process may use are split
evenly: hardware threads of one core stay together, and so do cores of one memory node.

Memory needs no policy of its own: what an engine's threads touch first lies on their node.

defines: Core, Share, read_cores, split_cores, name_cores, share_machine, split_threads
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from .. import _core
from ..errors import ConfigError

SYSTEM = Path("/sys/devices/system")
NODE = "node"
ENGINES_APART = ":"
CPUS_MAX = 1 << 16
"""No machine has more; a list that says so is none."""


class Core(NamedTuple):
    """One core with the hardware threads of it that may be used."""

    node: int
    cpus: tuple[int, ...]


class Share(NamedTuple):
    """Of one engine."""

    cpus: tuple[int, ...] = ()
    """Empty: it runs wherever it may."""
    threads: int = 0
    """0: one for each of them."""
    node: int = 0
    """Where its weights lie: the memory node of the first of them."""


def read_cores(allowed: Collection[int], system: Path = SYSTEM) -> list[Core]:
    """The machine's cores by node and number, as far as `allowed` has them: an affinity mask, which
    a control group's cpuset has cut already. Where the kernel tells nothing, each CPU is a core."""
    node_of = {cpu: node for node, cpus in _read_nodes(system).items() for cpu in cpus}
    found: dict[tuple[int, ...], Core] = {}
    for cpu in sorted(allowed):
        folder = system / "cpu" / f"cpu{cpu}" / "topology"
        siblings = _read_list(folder / "thread_siblings_list") or (cpu,)
        usable = tuple(each for each in siblings if each in allowed)
        found[usable] = Core(node_of.get(cpu, 0), usable)
    return sorted(found.values())


def split_cores(cores: Sequence[Core], count: int) -> list[tuple[int, ...]]:
    """The CPUs of each of `count` engines: as many cores for each, or one more for some. Where
    there are fewer cores than engines hardware threads are split, and where there are fewer of
    those no engine has any of its own (empty)."""
    if count < 1:
        raise ValueError("there is an engine at least")
    cpus = [cpu for core in cores for cpu in core.cpus]
    if len(cpus) < count:
        return [()] * count
    pieces = [core.cpus for core in cores]
    if len(pieces) < count:
        pieces = [(cpu,) for cpu in cpus]
    borders = [len(pieces) * i // count for i in range(count + 1)]
    return [
        tuple(sorted(cpu for piece in pieces[first:last] for cpu in piece))
        for first, last in pairwise(borders)
    ]


def name_cores(
    text: str, count: int, allowed: Collection[int], system: Path = SYSTEM
) -> list[tuple[int, ...]]:
    """What a person has chosen: for each engine a list as the kernel writes them ("0-3,8") or a
    memory node ("node1"), with a colon between engines. Raises ConfigError."""
    names = text.split(ENGINES_APART)
    if len(names) != count:
        raise ConfigError(
            f"server.worker_cpus: {len(names)} lists for {count} workers. Give one for each, with "
            'a colon between them, such as "0-3:4-7" or "node0:node1".'
        )
    nodes = _read_nodes(system)
    chosen: list[tuple[int, ...]] = []
    for name in names:
        if name.startswith(NODE):
            cpus = nodes.get(_number(name.removeprefix(NODE)), ())
            cpus = tuple(cpu for cpu in cpus if cpu in allowed)
        else:
            cpus = _parse(name)
        if not cpus or not set(cpus) <= set(allowed):
            usable = ",".join(str(cpu) for cpu in sorted(allowed))
            raise ConfigError(
                f'server.worker_cpus: "{name}" names no cores, or some that this process may not '
                f"use. It may use {usable}."
            )
        chosen.append(cpus)
    return chosen


def share_machine(text: str, count: int) -> list[Share]:
    """What `server.worker_cpus` gives to each of `count` engines here: "auto", "none" or as for
    name_cores. Raises ConfigError."""
    allowed = os.sched_getaffinity(0)
    match text:
        case "none":
            chosen: list[tuple[int, ...]] = [()] * count
        case "auto":
            cores = read_cores(allowed)
            chosen = split_cores(cores, count) if count > 1 else [()]
        case _:
            chosen = name_cores(text, count, allowed)
    if count == 1:
        return [Share(chosen[0])]
    threads = split_threads([len(cpus) for cpus in chosen], int(_core.probe()["cores"]))
    return [
        Share(cpus, number, _node_of(cpus)) for cpus, number in zip(chosen, threads, strict=True)
    ]


def split_threads(sizes: Sequence[int], usable: int) -> list[int]:
    """How many threads each engine has on so many CPUs of its own (0: on those of all); 0 for one
    on each of them. usable: CPUs, or fewer where there is a quota on processor time, which is one
    for all of them."""
    if all(sizes) and sum(sizes) <= usable:
        return [0] * len(sizes)
    borders = [usable * i // len(sizes) for i in range(len(sizes) + 1)]
    even = [max(1, last - first) for first, last in pairwise(borders)]
    return [0 if 0 < size <= most else most for size, most in zip(sizes, even, strict=True)]


def _node_of(cpus: tuple[int, ...]) -> int:
    nodes = _read_nodes(SYSTEM)
    return next((node for node, those in nodes.items() if cpus and cpus[0] in those), 0)


def _read_nodes(system: Path) -> dict[int, tuple[int, ...]]:
    """CPUs of each memory node; empty where the kernel tells nothing."""
    return {
        _number(path.parent.name.removeprefix(NODE)): _read_list(path)
        for path in system.glob("node/node[0-9]*/cpulist")
    }


def _read_list(path: Path) -> tuple[int, ...]:
    try:
        return _parse(path.read_text().strip())
    except OSError:
        return ()


def _parse(text: str) -> tuple[int, ...]:
    """ "0-3,8" to its numbers; empty if it is no such list."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = _number(first), _number(last or first)
        if not 0 <= low <= high or high >= CPUS_MAX:
            return ()
        numbers.update(range(low, high + 1))
    return tuple(sorted(numbers))


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else -1
