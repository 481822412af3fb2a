"""`sublimate limits`: what this machine gives at most, and what a server made of it.

defines: limits
"""

from __future__ import annotations

import asyncio

import msgspec

from ..bench.machine import Machine, Reached, machine_table, measure, reached
from ..errors import ExitCode
from .output import errors, out, print_plain


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """The command's JSON."""

    machine: Machine
    url: str = ""
    reached: Reached | None = None


def limits(url: str, api_key: str, threads: int, as_json: bool) -> ExitCode:
    """Measure, and ask the server of `url` if there is one. Raises PeerError."""
    # First the server: while this measures, no server reaches anything.
    share = asyncio.run(reached(url, api_key)) if url else None
    if not as_json:
        errors.print("Measuring some seconds on all cores ...")
    machine = measure(threads=threads)
    if as_json:
        print_plain(msgspec.json.encode(Report(machine, url, share)).decode())
        return ExitCode.OK
    out.print(machine_table(machine))
    if share is not None:
        out.print(describe(url, share), soft_wrap=True)
    return ExitCode.OK


def describe(url: str, share: Reached) -> str:
    """What the server reached, in a sentence."""
    if not share.under_load:
        return f"{url} has had no load for a whole second yet, so there is no share to tell."
    figure = "of its measured roofline (the figure of X-Engine-Utilization)"
    if share.now:
        return f"{url} reaches {share.now:.1%} {figure} now."
    return f"{url} is at rest. Its last second under load reached {share.under_load:.1%} {figure}."
