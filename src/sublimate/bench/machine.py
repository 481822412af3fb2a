"""What this machine gives at most, and what share of it the last load of a server reached.

defines: Read, Compute, Machine, measure, Reached, reached, native_text, machine_table
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
from rich.table import Table

from .. import _core
from ..errors import PeerError
from .http import Target, exchange

MEGABYTE = 1 << 20
GIGA, TERA = 1e9, 1e12
WORKING_SETS = (96 * MEGABYTE, 1024 * MEGABYTE)
"""The first is about the default model's weights, which is what a generated token reads."""
METRICS_SECONDS = 10.0
OK_STATUS = 200
METRIC = re.compile(r"^sublimate_(\w+)\{[^}]*\} ([0-9.eE+-]+)$", re.M)

COMPUTE_NAMES = {
    "fma_f32": "multiply-add, 32-bit floats",
    "dot_int8": "dot products of bytes (VNNI)",
    "tile_bf16": "tiles of bf16 (AMX)",
    "tile_bf16_loads": "tiles of bf16, each loaded from the first cache",
    "tile_int8": "tiles of bytes (AMX)",
}


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """Reading a working set over and over, in parts of one thread each."""

    working_set_bytes: int
    threads: int
    bytes_per_s: float
    """0: there was no memory for it."""
    huge_pages_share: float


class Compute(msgspec.Struct, frozen=True, kw_only=True):
    """One instruction over and over, operands in registers."""

    name: str
    threads: int
    ops_per_s: float
    """A multiply-add is two operations; 0: not on this machine."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of this minute."""

    cpu: str
    cores: int
    isa: str
    reads: list[Read]
    computes: list[Compute]


def measure(working_sets: Sequence[int] = WORKING_SETS, threads: int = 0) -> Machine:
    """Takes some seconds of all cores. A working set that does not fit the memory is left out."""
    probe = _core.probe()
    if not working_sets or min(working_sets) < 1:
        raise ValueError("a working set has at least a byte")
    fitting = [size for size in working_sets if 2 * size <= int(probe["memory_bytes"])]
    found = _core.measure_limits(fitting, threads=threads)
    own = {"cpu": probe["cpu"], "cores": probe["cores"]}
    return msgspec.convert({**found, **own}, Machine)


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the measured roofline, as X-Engine-Utilization gives them."""

    now: float
    """In the last second; 0 at rest."""
    under_load: float
    """In the last whole second that had load; 0: there was none since the server started."""


async def reached(url: str, api_key: str = "") -> Reached:
    """What a running server says. Raises PeerError."""
    found = await _metrics(url, api_key)
    if "engine_utilization_under_load" not in found:
        raise PeerError(f"{url} is no Sublimate server of this version.")
    return Reached(
        now=found.get("engine_utilization", 0.0),
        under_load=found["engine_utilization_under_load"],
    )


async def native_text(url: str) -> tuple[float, float]:
    """Seconds in native code between the loop's records and ready frames, and tokens in them."""
    found = await _metrics(url, "")
    return found.get("text_seconds_total", 0.0), found.get("text_tokens_total", 0.0)


async def _metrics(url: str, api_key: str) -> dict[str, float]:
    """Name without our prefix -> value. Raises PeerError."""
    target = Target.parse(url)
    headers = {"x-api-key": api_key} if api_key else {}
    path = target.path + "/metrics"
    result = await exchange(target, "GET", path, b"", headers, METRICS_SECONDS)
    if result.status != OK_STATUS:
        why = result.error or f"status {result.status}"
        raise PeerError(f"{url} gives no /metrics: {why}.")
    text = result.body().decode("utf-8", errors="replace")
    return {name: float(value) for name, value in METRIC.findall(text)}


def machine_table(machine: Machine) -> Table:
    """One line per limit, one column per number of threads."""
    counts = sorted({rate.threads for rate in (*machine.reads, *machine.computes)})
    table = Table(title=f"{machine.cpu or 'this machine'}, {machine.cores} cores, {machine.isa}")
    table.add_column("limit")
    for count in counts:
        table.add_column(f"{count} thread{'s' if count > 1 else ''}", justify="right")
    sizes = list(dict.fromkeys(read.working_set_bytes // MEGABYTE for read in machine.reads))
    for size in sizes:
        rows = [read for read in machine.reads if read.working_set_bytes // MEGABYTE == size]
        huge = min(read.huge_pages_share for read in rows)
        cells = {read.threads: _rate(read.bytes_per_s, GIGA, "GB/s") for read in rows}
        title = f"read {size} MB ({huge:.0%} in huge pages)"
        table.add_row(title, *(cells.get(count, "") for count in counts))
    for name, title in COMPUTE_NAMES.items():
        found = [compute for compute in machine.computes if compute.name == name]
        cells = {one.threads: _rate(one.ops_per_s, TERA, "Tops/s") for one in found}
        table.add_row(title, *(cells.get(count, "") for count in counts))
    return table


def _rate(value: float, unit: float, name: str) -> str:
    return f"{value / unit:.2f} {name}" if value else "not on this machine"
