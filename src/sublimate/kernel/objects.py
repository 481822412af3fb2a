"""What of ours is loaded in this machine's kernel, whichever server loaded it: for who looks at it
from outside. Needs CAP_SYS_ADMIN, as everything does that looks at other processes' programs.

defines: Program, Map, Loaded, find, holders
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from .. import _core
from .connections import COUNTERS, HOOKS, LAST_USE, ROW_WORDS, ROWS, VALUE
from .keys import KEY_BYTES
from .steering import ADDRESS_BYTES, CONNECTION_ID_BYTES, NUMBER, STEERED
from .steering import COUNTERS as DECIDED

PREFIX = "sublimate_"
PROC = Path("/proc")
FDINFO = PROC / "self/fdinfo"
MAP_LINK = "anon_inode:bpf-map"
MAP_ID = re.compile(r"(?m)^map_id:\s*(\d+)$")
REMEMBERING = {
    "connections": (KEY_BYTES, LAST_USE.size),
    "digests": (KEY_BYTES, VALUE.size),
    "addresses": (ADDRESS_BYTES, STEERED.size),
    "connection_ids": (CONNECTION_ID_BYTES, NUMBER.size),
}
"""Maps that remember: bytes of a key and of a value."""
WORD = struct.Struct("=Q")


class Program(msgspec.Struct, frozen=True):
    """run_ns and runs: since it was loaded, while the kernel counted."""

    name: str
    id: int
    run_ns: int
    runs: int


class Map(msgspec.Struct, frozen=True):
    """entries: None for a map that only has a place per number."""

    name: str
    id: int
    entries: int | None
    capacity_entries: int
    memory_bytes: int


class Loaded(msgspec.Struct, frozen=True):
    """One server's memory of connections, or its steering."""

    part: str
    id: int
    """The same for all that was loaded together."""
    programs: list[Program]
    maps: list[Map]
    counters: dict[str, int]

    @property
    def hit_ratio(self) -> float | None:
        """Of lookups; None before the first, and of steering."""
        lookups = self.counters.get("lookups", 0)
        return self.counters["hits"] / lookups if lookups else None

    @property
    def touch_ns(self) -> float | None:
        """Mean of a run of a program; None while the kernel does not count, and of steering, whose
        program runs once per connection and touches none."""
        if self.part == "steering":
            return None
        runs = sum(program.runs for program in self.programs)
        return sum(program.run_ns for program in self.programs) / runs if runs else None


def find(clear: bool = False) -> list[Loaded]:
    """All of it; `clear` empties the maps that remember. Raises OSError."""
    with ExitStack() as opened:
        programs = _core.kernel_objects(True, PREFIX)
        opened.callback(_close, programs)
        groups = sorted({group for _, _, _, group in programs})
        maps = _core.kernel_objects(False, groups=groups) if groups else []
        opened.callback(_close, maps)
        return [_loaded(group, programs, maps, clear) for group in groups]


def holders(found: list[Loaded]) -> dict[int, int]:
    """Id of a group -> the process that holds its maps: of a server's the one that started the
    others. Without those that nobody holds, as behind a pin."""
    groups = {one.id: each.id for each in found for one in each.maps}
    held: dict[int, set[int]] = {}
    for folder in PROC.glob("[0-9]*"):
        for number in _maps_of(folder):
            if (group := groups.get(number)) is not None:
                held.setdefault(group, set()).add(int(folder.name))
    return {group: min(_eldest(processes)) for group, processes in held.items()}


def _maps_of(process: Path) -> Iterator[int]:
    """Ids of the maps that a process holds."""
    with suppress(OSError):
        for link in (process / "fd").iterdir():
            with suppress(OSError):
                if os.readlink(link) == MAP_LINK:
                    told = (process / "fdinfo" / link.name).read_text()
                    yield from map(int, MAP_ID.findall(told))


def _eldest(processes: set[int]) -> set[int]:
    """Those that none of the others has started."""
    with suppress(OSError):
        stats = {
            each: (PROC / str(each) / "stat").read_text(errors="replace") for each in processes
        }
        parents = {each: int(stat.rpartition(")")[2].split()[1]) for each, stat in stats.items()}
        return {each for each in processes if parents[each] not in processes} or processes
    return processes


_Object = tuple[int, int, str, int]
"""Descriptor, id, name, id of the group."""


def _close(found: list[_Object]) -> None:
    for fd, _, _, _ in found:
        os.close(fd)


def _loaded(group: int, programs: list[_Object], maps: list[_Object], clear: bool) -> Loaded:
    mine = [_program(each) for each in programs if each[3] == group]
    counters: dict[str, int] = {}
    told: list[Map] = []
    for fd, number, name, owner in maps:
        if owner != group:
            continue
        told.append(_map(fd, number, name, clear))
        counters.update(_counters(fd, name))
    part = "steering" if any(each.name == "sockets" for each in told) else "connections"
    return Loaded(part, group, mine, told, counters)


def _program(each: _Object) -> Program:
    fd, number, name, _ = each
    run_ns, runs = _core.program_statistics(fd)
    return Program(name, number, run_ns, runs)


def _map(fd: int, number: int, name: str, clear: bool) -> Map:
    about = dict(re.findall(r"(?m)^(\w+):\s*(\d+)$", (FDINFO / str(fd)).read_text()))
    entries = None
    if sizes := REMEMBERING.get(name):
        view = _core.KernelMap(fd, *sizes)
        if clear:
            view.clear()
        entries = len(view.read()[0]) // sizes[0]
    return Map(name, number, entries, int(about["max_entries"]), int(about.get("memlock", 0)))


def _counters(fd: int, name: str) -> dict[str, int]:
    """Of a map that is read from shared memory."""
    if name == "cache":
        words = list(_words(fd, ROWS * ROW_WORDS))
        return {counter: sum(words[at::ROW_WORDS]) for at, counter in enumerate(COUNTERS)}
    names = {"touches": HOOKS, "steered": DECIDED}.get(name, ())
    return dict(zip(names, _words(fd, len(names)), strict=True))


def _words(fd: int, count: int) -> Iterator[int]:
    if not count:
        return
    with mmap.mmap(fd, mmap.PAGESIZE, prot=mmap.PROT_READ) as memory:
        yield from (WORD.unpack_from(memory, at * WORD.size)[0] for at in range(count))
