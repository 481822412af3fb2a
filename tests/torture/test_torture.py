"""The torture's short form: some of all n, of all kinds, on an engine with a model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("SUBLIMATE_BUILD", "build/wheel")
SECONDS = 2
KINDS = 4

pytestmark = pytest.mark.programs("fail_nth")


def torture(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tests/torture/torture.py"), *arguments]
    command += ["--shim", str(BUILD / "cpp_tests/libfail_nth.so")]
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_whatever_fails_the_engine_answers_refuses_or_ends_with_a_message() -> None:
    done = torture("--engine", "model", "--seconds", str(SECONDS))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split("|")[1:-1] for line in done.stdout.splitlines() if "model" in line]
    assert len(rows) == KINDS
    totals = {row[1].strip(): int(row[2]) for row in rows}
    assert totals["allocation"] > 100 and totals["system call"] > 50, done.stdout
    assert all("answered" in row[4] or "refused" in row[4] for row in rows), done.stdout


def test_one_that_fails_is_shown_whole() -> None:
    done = torture("--engine", "model", "--kind", "system call", "--nth", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "'fired': True" in done.stdout and "answered" not in done.stdout
