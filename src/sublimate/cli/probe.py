"""`sublimate probe`.

defines: findings_table, probe
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.table import Table

from ..config import Effective
from ..errors import ExitCode
from ..probe.report import Finding, examine
from .output import out

MARKS = {"good": "[green]ok[/green]", "notice": "[yellow]note[/yellow]", "problem": "[red]no[/red]"}


def findings_table(findings: Sequence[Finding]) -> Table:
    """For a person: one row each, with what to do about it."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for finding in findings:
        text = finding.text + (f"\n-> {finding.advice}" if finding.advice else "")
        table.add_row(MARKS[finding.verdict], finding.topic, text)
    return table


def probe(effective: Effective, as_json: bool) -> ExitCode:
    """Exit code ENGINE if something prevents serving."""
    report = examine(effective.settings)
    if as_json:
        out.print_json(msgspec.json.encode(report).decode())
    else:
        out.print(findings_table(report.findings))
        out.print("This machine can serve." if report.fits else "This machine cannot serve yet.")
    return ExitCode.OK if report.fits else ExitCode.ENGINE
