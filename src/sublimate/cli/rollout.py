"""`sublimate rollout scan`, `quic`, `metrics` and `rehearse`.

Exit status 1 where something was found that needs a person: a call that breaks, a server that
HTTP/3 does not reach, a version that cannot be gone back to.

defines: rollout_app
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ..config import load_settings
from . import options as flags
from .output import errors, out, print_plain, run_guarded

PROBLEM = 1

rollout_app = typer.Typer(help="Move to this server, and back.", no_args_is_help=True)


def _end(code: int) -> None:
    if code:
        sys.exit(code)


def _own_certificate(name: str) -> Path | None:
    """What other commands trust of themselves, too: of a server of this user's own."""
    from .peer import own_certificate_of

    is_here = name in ("localhost", "::1") or name.startswith("127.")
    return own_certificate_of(load_settings()) if is_here else None


@rollout_app.command()
def scan(
    path: Annotated[Path, typer.Argument(help="A file, or a folder with all below it.")],
    json: flags.Json = False,
) -> None:
    """Find imports, calls, addresses, headers and metrics in sources that a move breaks."""

    def action() -> int:
        from ..rollout.scan import scan_tree

        found = scan_tree(path)
        if json:
            print_plain(msgspec.json.encode(found).decode())
        else:
            for one in found.findings:
                out.print(f"{one.path}:{one.line}: {one.rule}: {one.what}", soft_wrap=True)
                print_plain(f"    {one.found}")
                out.print(f"    → {one.do}", style="dim", soft_wrap=True)
            count = len(found.findings)
            out.print(f"{found.files} files, {count} findings, {found.breaking} of them will break")
        return PROBLEM if found.findings else 0

    _end(run_guarded(action))


@rollout_app.command()
def quic(
    host: Annotated[str, typer.Argument(help="HOST, HOST:PORT or URL of the server.")],
    certificate: Annotated[
        Path | None,
        typer.Option(
            "--cacert",
            "--certificate",
            help="PEM file to trust in place of the system's; for this machine, else the one of "
            "`serve --tls`.",
        ),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Trust any certificate.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.")] = 3.0,
    json: flags.Json = False,
) -> None:
    """Check whether HTTP/3 gets through from here: handshake, version, path, 0-RTT."""

    def action() -> int:
        from ..rollout.quic import check_quic, parse_target

        name, port = parse_target(host)
        found = check_quic(
            name,
            port,
            certificate=certificate or _own_certificate(name),
            insecure=insecure,
            timeout_seconds=timeout,
        )
        if json:
            print_plain(msgspec.json.encode(found).decode())
        else:
            from rich.table import Table

            table = Table.grid(padding=(0, 2))
            for field, value in msgspec.structs.asdict(found).items():
                shown = f"{value:.1f}" if isinstance(value, float) else str(value)
                if value not in ("", 0.0) or isinstance(value, bool):
                    table.add_row(field.replace("_", " "), shown)
            out.print(table)
        return 0 if found.reachable and found.status else PROBLEM

    _end(run_guarded(action))


@rollout_app.command()
def metrics(json: flags.Json = False) -> None:
    """Print names of metrics, old to new, and what is new."""

    def action() -> int:
        from ..rollout.metrics import MIGRATIONS, NEW_HERE

        if json:
            body = {"migrations": MIGRATIONS, "new": NEW_HERE}
            print_plain(msgspec.json.encode(body).decode())
            return 0
        from rich.table import Table

        table = Table(title="Old names to new", title_justify="left")
        for name in ("from", "old", "new", "note"):
            table.add_column(name, overflow="fold")
        for one in MIGRATIONS:
            table.add_row(one.source, one.old, one.new, one.note)
        out.print(table)
        new = Table(title="New here, with the prefix sublimate_", title_justify="left")
        new.add_column("name", overflow="fold")
        new.add_column("what it is", overflow="fold")
        for name, text in NEW_HERE.items():
            new.add_row(name, text)
        out.print(new)
        return 0

    _end(run_guarded(action))


@rollout_app.command()
def rehearse(
    serve: Annotated[
        list[str] | None, typer.Argument(help="After --: arguments of `sublimate serve`.")
    ] = None,
    wheel: Annotated[str, typer.Option(help="Wheel file of the version to go back to.")] = "",
    version: Annotated[str, typer.Option(help="Or a version of the package index.")] = "",
    fetch: Annotated[
        bool, typer.Option("--fetch", help="Get dependencies from the index, too.")
    ] = False,
    json: flags.Json = False,
) -> None:
    """Install the previous version in a scratch environment, start it, ask it, time it."""

    def action() -> int:
        from ..rollout.rehearse import rehearse as run

        def progress(text: str) -> None:
            if not json:
                errors.print(text, style="dim")

        found = run(wheel or version, serve or [], fetch=fetch, note=progress)
        if json:
            print_plain(msgspec.json.encode(found).decode())
        else:
            from rich.table import Table

            table = Table(title=f"Rehearsal of {found.wheel}", title_justify="left")
            table.add_column("step")
            table.add_column("seconds", justify="right")
            table.add_column("", overflow="fold")
            for step in found.steps:
                table.add_row(step.name, f"{step.seconds:.2f}", step.said)
            out.print(table)
            told = f"version {found.version} starts and answers here"
            out.print(found.why or f"It can be gone back to: {told}.", soft_wrap=True)
        return PROBLEM if found.why else 0

    _end(run_guarded(action))
