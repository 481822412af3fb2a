"""A test that fails, hangs or ends its process never takes the report of the others with it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from house import ROOT

FIRST = """
import os, time, pytest
def test_passes(): pass
def test_late(): pass
def test_after_late(): pass
def test_too_long():
    try:
        time.sleep(60)
    except BaseException:
        time.sleep(60)
def test_after_too_long(): pass
def test_ends_its_process(): os._exit(3)
def test_after_the_end(): pass
"""
SECOND = """
import pytest
@pytest.mark.parametrize("number", range(5))
def test_other(number): pass
"""
HOOK = """
import os, time
late = ["test_late"] if "PYTEST_XDIST_WORKER" in os.environ else []
def pytest_runtest_logreport(report):
    if report.when == "call" and report.nodeid.split("::")[1] in late:
        late.clear()
        time.sleep(60)
"""
FAILING = {"test_late", "test_too_long", "test_ends_its_process"}


def test_f64_what_breaks_off_is_one_failure(tmp_path: Path) -> None:
    """With the settings and hooks of all tests, and shorter limits."""
    settings = (ROOT / "pyproject.toml").read_text()
    settings = settings.replace("\ntimeout = 120", "\ntimeout = 2")
    settings = settings.replace("\nfaulthandler_timeout = 3600", "\nfaulthandler_timeout = 6")
    (tmp_path / "pyproject.toml").write_text(settings)
    tests = tmp_path / "tests"
    tests.mkdir()
    for name in ("conftest.py", "run_guard.py"):
        shutil.copy(ROOT / "tests" / name, tests)
    for name, text in (("test_first", FIRST), ("test_second", SECOND), ("hook", HOOK)):
        (tests / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "-p", "hook"]
    command += ["-p", "no:cacheprovider", f"--basetemp={tmp_path / 'run'}"]
    environment = {key: value for key, value in os.environ.items() if "PYTEST" not in key}
    environment["PYTHONPATH"] = str(tests)
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=110
    )
    assert "INTERNALERROR" not in ran.stdout, ran.stdout
    lines = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    assert {line.split("::")[1].split(" ")[0] for line in lines} == FAILING, ran.stdout
    assert "10 passed" in ran.stdout, ran.stdout
