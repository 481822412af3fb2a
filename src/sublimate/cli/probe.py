"""`sublimate probe`.

defines: findings_table, backends_table, probe
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.table import Table

from ..config import Effective
from ..errors import ConfigError, ExitCode
from ..probe.backends import Backend
from ..probe.report import Finding, examine
from ..probe.source import RecordingSource, source_of
from .output import out

BACKEND_MARKS = {"runs": "[green]ok[/green]", "not built": "[dim]--[/dim]", "unsupported": "no"}
MARKS = {"good": "[green]ok[/green]", "notice": "[yellow]note[/yellow]", "problem": "[red]no[/red]"}


def findings_table(findings: Sequence[Finding]) -> Table:
    """For a person: one row each, with what to do about it."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for finding in findings:
        text = finding.text + (f"\n-> {finding.advice}" if finding.advice else "")
        table.add_row(MARKS[finding.verdict], finding.topic, text)
    return table


def backends_table(backends: Sequence[Backend]) -> Table:
    """For a person: one row each, fastest last among those of the CPU."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for backend in backends:
        text = backend.reason + (f"\n-> {backend.remedy}" if backend.remedy else "")
        table.add_row(BACKEND_MARKS[backend.verdict], backend.name, text)
    return table


def probe(
    effective: Effective, as_json: bool, measure: bool = False, record: Path | None = None
) -> ExitCode:
    """Exit code ENGINE if something prevents serving. Raises ConfigError."""
    source = source_of(os.environ)
    if record is not None:
        source = RecordingSource(source)
    report = examine(effective.settings, source, measure=measure)
    if isinstance(source, RecordingSource) and record is not None:
        try:
            source.save(record)
        except OSError as error:
            raise ConfigError(f"--record {record}: {error.strerror}.") from None
    if as_json:
        out.print_json(msgspec.json.encode(report).decode())
    else:
        out.print(backends_table(report.backends))
        out.print()
        out.print(findings_table(report.findings))
        out.print("This machine can serve." if report.fits else "This machine cannot serve yet.")
    return ExitCode.OK if report.fits else ExitCode.ENGINE
