"""`sublimate guard check URL`: whether a server's answers take the direct path.

Exit status 1 where one of them does not.

defines: guard_app and the command check
"""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer

from ..config import load_settings
from . import options as flags
from .output import out, print_plain, run_guarded

MISSED = 1

guard_app = typer.Typer(help="Look at a server from outside.", no_args_is_help=True)


@guard_app.command("check")
def check(
    url: Annotated[str, typer.Argument(help="The server.")],
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="Answers to look at.")] = 5,
    model: Annotated[str, typer.Option("-m", "--model", help="That is asked.")] = "default",
    utilization: Annotated[
        str, typer.Option(help="LEAST:GREATEST share that the engine may tell, as in 0.1:0.95.")
    ] = "0:1",
    any_policy: Annotated[
        bool,
        typer.Option("--any-policy", help="Also with another policy than this installation's."),
    ] = False,
    api_keys: flags.ApiKeys = None,
    cacert: flags.CaCert = None,
    json: flags.Json = False,
    config: flags.ConfigFile = None,
) -> None:
    """Ask a server for a token some times and look whether the answers took the direct path: no
    other server, no fallback, this policy, a utilisation in its window."""

    def action() -> int:
        from .. import _core
        from ..client.validation import Expected
        from .guard_check import check_server, report_table, window_of
        from .peer import configured_peer

        digest = "" if any_policy else _core.POLICY_DIGEST
        expected = Expected(policy_digest=digest, utilization=window_of(utilization))
        chosen = {"api_keys": api_keys} if api_keys else {}
        peer = configured_peer(load_settings(chosen, config=config), url, cacert)
        report = check_server(peer, model, count, expected)
        if json:
            print_plain(msgspec.json.encode(report).decode())
        else:
            out.print(report_table(report))
            direct = report.checked - report.missed
            out.print(f"{direct} of {report.checked} answers took the direct path.")
        return MISSED if report.missed else 0

    if code := run_guarded(action):
        sys.exit(code)
