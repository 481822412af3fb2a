"""`sublimate verify` and `sublimate sign`: whether an installation is what was signed, and signing.

defines: Report, examine, verify, sign
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from rich.table import Table

from ..errors import ExitCode
from ..policy.signature import PIN_VARIABLE, findings, provenance
from .output import complain, note, out, print_plain

PASSWORD_VARIABLE = "SUBLIMATE_KEY_PASSWORD"  # noqa: S105  (its name)
KINDS = {
    "release": "Release",
    "dev": "Development build, signed with a key that was made with it",
    "unsigned": "Development, unsigned: a checkout of the sources",
}


class FileFinding(msgspec.Struct, frozen=True):
    path: str
    problem: str
    """changed, missing, or unknown (a module that the manifest does not name)."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`verify --json`."""

    kind: str
    """release, dev, unsigned."""
    version: str
    fingerprint: str
    """Of the key; empty: unsigned."""
    files: int
    findings: list[FileFinding]


def examine(folders: list[str], pin: str) -> Report:
    """Raises InvalidSignatureError for a manifest that cannot be trusted."""
    who, files = provenance(folders, pin)
    found = [FileFinding(*finding) for finding in findings(folders, files)]
    return Report(
        kind=who.kind,
        version=who.version,
        fingerprint=who.fingerprint,
        files=len(files),
        findings=found,
    )


def verify(package: Path | None, pin: str, as_json: bool) -> int:
    """This installation, or the package in a folder of another. Exit status 7 if it is not as it
    was signed."""
    import sublimate

    folders = [str(package)] if package else list(sublimate.__path__)
    report = examine(folders, pin or os.environ.get(PIN_VARIABLE, ""))
    if as_json:
        print_plain(msgspec.json.encode(report).decode())
    else:
        _show(report)
    return int(ExitCode.SIGNATURE if report.findings else ExitCode.OK)


def _show(report: Report) -> None:
    out.print(f"{KINDS[report.kind]}.")
    if report.fingerprint:
        out.print(f"Version {report.version}, key {report.fingerprint}", soft_wrap=True)
    if report.findings:
        table = Table()
        table.add_column("file", overflow="fold")
        table.add_column("")
        for finding in report.findings:
            table.add_row(finding.path, finding.problem)
        out.print(table)
        complain(f"{len(report.findings)} files are not as they were signed.")
    elif report.files:
        out.print(f"{report.files} files are as they were signed.")


def sign(wheel: Path, key: Path) -> int:
    """Raises ConfigError."""
    from ..policy.sign import load_key, sign_wheel

    password = os.environ.get(PASSWORD_VARIABLE, "")
    mark = sign_wheel(wheel, load_key(key, password.encode() or None))
    print_plain(mark)
    note(f"{wheel.name} is signed. Pin the key where it is installed: {PIN_VARIABLE}={mark}")
    return int(ExitCode.OK)
