"""`sublimate rollout scan`: a tree of other people's sources, for what a move breaks.

defines: Scan, scan_tree
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..errors import ConfigError
from .rules import BREAKS
from .sources import Finding, scan_lines, scan_python

PYTHON = frozenset((".py", ".pyi"))
OTHERS = frozenset(
    (
        *(".js", ".jsx", ".ts", ".tsx", ".mjs", ".cjs", ".go", ".rs", ".java", ".kt", ".rb"),
        *(".sh", ".bash", ".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".conf", ".env"),
        *(".tf", ".tpl", ".service", ".ipynb"),
    )
)
NAMES = frozenset(("Dockerfile", "Makefile", "Procfile", "Pipfile", ".env", "docker-compose"))
REQUIREMENTS = re.compile(r"(requirements|constraints)[\w.-]*\.(txt|in)")
PASSED_OVER = frozenset(
    (
        *(".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", "dist", "build"),
        *(".tox", ".mypy_cache", ".ruff_cache", ".pytest_cache", "site-packages", "vendor"),
    )
)
FILE_BYTES_MAX = 2 << 20


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """What was found."""

    files: int
    """That were read."""
    findings: list[Finding]

    @property
    def breaking(self) -> int:
        return sum(one.severity == BREAKS for one in self.findings)


def scan_tree(root: Path) -> Scan:
    """A file, or a folder with what is below it; links are not followed. Raises ConfigError if
    there is nothing at the path."""
    if not root.exists():
        raise ConfigError(f"{root}: there is nothing to scan.")
    files = 0
    findings: list[Finding] = []
    for path in _files(root):
        try:
            if path.stat().st_size > FILE_BYTES_MAX:
                continue
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue  # no source
        files += 1
        name = str(path.relative_to(root)) if root.is_dir() else str(path)
        findings += scan_python(name, text) if path.suffix in PYTHON else scan_lines(name, text)
    return Scan(files=files, findings=sorted(findings))


def _files(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - PASSED_OVER)
        for name in sorted(names):
            path = Path(folder, name)
            known = path.suffix in PYTHON | OTHERS or name.partition(".")[0] in NAMES
            if (known or name in NAMES or REQUIREMENTS.fullmatch(name)) and not path.is_symlink():
                yield path
