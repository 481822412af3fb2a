"""What a run that was killed has left, found and cleaned up when the next one starts.

A kill of the supervisor takes its children with it (PR_SET_PDEATHSIG), and with them their memory
(memfd), sockets and programs in the kernel, none of which has a name to outlive them; a lock ends
with its holder. So usually the run's record is all there is. What did survive is found by it:

    process  a child that still runs, by number and start time: it is killed
    memory   regions that it holds, which end with it, as do
    socket   sockets that it listens on
    gpu      a context that the driver still shows for a child that is gone: nobody but a reset can
             end it, so it is told
    lock     the record itself
    file     half-written files of downloads and of the keys

Nothing of a live process is touched: its run's record is locked, and so are its downloads.

defines: Orphan, Places, places_of, look, by_kind
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from ..config import Settings, cache_folder, data_folder, keys_path
from ..control.run_record import Process, StaleRun, stale_runs
from ..keys import half_written_keys
from ..model.files import abandoned_downloads

if TYPE_CHECKING:
    from ..probe.nvml import NvmlAnswer

RUNS = "runs"
END_SECONDS = 2.0
MILLISECONDS = 1000
LISTENING = "0A"
"""State of a socket in /proc/net/tcp."""

Kind = Literal["process", "memory", "socket", "gpu", "lock", "file"]
Nvml = Callable[[], "NvmlAnswer | None"]


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was left."""

    kind: Kind
    what: str
    is_cleaned: bool = False
    advice: str = ""


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Where runs with the same settings leave something."""

    data: Path
    models: Path
    keys: Path

    @property
    def runs(self) -> Path:
        return self.data / RUNS


def places_of(settings: Settings) -> Places:
    """By the same settings as a server's."""
    return Places(
        data=data_folder(settings.edge),
        models=cache_folder(settings),
        keys=keys_path(settings),
    )


def look(places: Places, nvml: Nvml, *, clean: bool) -> list[Orphan]:
    """What is there; with `clean` also end and remove it. Takes well under a millisecond where
    there is nothing. `nvml` is asked only if a run ended badly."""
    found: list[Orphan] = []
    for run in stale_runs(places.runs):
        try:
            found += _of_run(run, nvml, clean)
        finally:
            run.close()
    for path in (
        *abandoned_downloads(places.models, clean),
        *half_written_keys(places.keys, clean),
    ):
        found.append(Orphan(kind="file", what=f"{path}, half-written", is_cleaned=clean))
    return found


def by_kind(orphans: Sequence[Orphan]) -> tuple[dict[str, int], dict[str, int]]:
    """(how many of each kind were cleaned up, how many were left)."""
    cleaned = Counter(one.kind for one in orphans if one.is_cleaned)
    left = Counter(one.kind for one in orphans if not one.is_cleaned)
    return dict(cleaned), dict(left)


def _of_run(run: StaleRun, nvml: Nvml, clean: bool) -> Iterator[Orphan]:
    supervisor, children = run.processes[:1], run.processes[1:]
    if any(process.state() == "runs" for process in supervisor):
        return  # it lives, and has lost its lock to a filesystem that keeps none
    alive = [child for child in children if child.state() == "runs" and child.is_of(run.path)]
    gone = [child for child in children if child not in alive]
    for child in alive:
        yield from _of_child(child, clean)
    yield from _contexts(gone, nvml)
    who = f"process {supervisor[0].process_id}" if supervisor else "no process that can be read"
    if clean:
        run.remove()
    yield Orphan(kind="lock", what=f"the record of a run by {who}", is_cleaned=clean)


def _of_child(child: Process, clean: bool) -> Iterator[Orphan]:
    """The process and what ends with it."""
    who = f"{child.name} (process {child.process_id})"
    regions, ports = _held(child.process_id)
    ended = clean and _kill(child)
    advice = "" if ended or not clean else f"End it: kill -9 {child.process_id}"
    yield Orphan(kind="process", what=f"{who} still runs", is_cleaned=ended, advice=advice)
    if regions:
        what = f"{regions} regions of shared memory, held by {who}"
        yield Orphan(kind="memory", what=what, is_cleaned=ended)
    for port in ports:
        yield Orphan(kind="socket", what=f"port {port}, taken by {who}", is_cleaned=ended)


def _kill(child: Process) -> bool:
    """Whether it ended. The descriptor names the process, whatever becomes of its number."""
    try:
        descriptor = os.pidfd_open(child.process_id)
    except OSError:
        return child.state() != "runs"
    try:
        if child.state() != "runs":
            return True
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(END_SECONDS * MILLISECONDS))
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _held(process_id: int) -> tuple[int, list[int]]:
    """(regions of memory, ports listened on) of another process, as far as they may be seen."""
    regions: set[int] = set()
    sockets: set[str] = set()
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{process_id}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = os.readlink(entry)
                if target.startswith("/memfd:"):
                    regions.add(entry.stat().st_ino)
                elif target.startswith("socket:["):
                    sockets.add(target[len("socket:[") : -1])
    return len(regions), sorted(set(_ports(process_id, sockets)))


def _ports(process_id: int, sockets: set[str]) -> Iterator[int]:
    for table in ("tcp", "tcp6", "udp", "udp6"):
        try:
            lines = Path(f"/proc/{process_id}/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, *rest = line.split()
            if rest[5] in sockets and (table.startswith("udp") or state == LISTENING):
                yield int(local.rpartition(":")[2], 16)


def _contexts(gone: list[Process], nvml: Nvml) -> Iterator[Orphan]:
    """Contexts on GPUs of children that are gone."""
    former = {child.process_id: child for child in gone}
    answer = nvml() if former else None
    for gpu in answer.gpus if answer else ():
        for context in gpu.processes or ():
            child = former.get(context.process_id)
            if child is None or _number_is_taken(child):
                continue
            advice = f"nvidia-smi --gpu-reset -i {gpu.index} (ends all work on it)"
            if child.state() == "zombie":
                advice = f"Its parent has to take it back: ps -o ppid= -p {child.process_id}"
            what = f"GPU {gpu.index} keeps a context of {child.name} (process {child.process_id})"
            yield Orphan(kind="gpu", what=what, advice=advice)


def _number_is_taken(child: Process) -> bool:
    """By another process, whose context it then is."""
    return child.state() == "gone" and os.path.exists(f"/proc/{child.process_id}")
