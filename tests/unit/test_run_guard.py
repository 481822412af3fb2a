"""A test run leaves no process and no file, also when it is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import run_guard

RUN = r"""
import os, subprocess, sys, tempfile, time
sys.path.insert(0, sys.argv[1])
import run_guard
del os.environ["TMPDIR"]
folder = run_guard.begin()
grandchild = (
    "import subprocess as s\n"
    "p = s.Popen(['sleep', '600'], stdout=s.DEVNULL, start_new_session=True)\n"
    "print(p.pid)"
)
shown = subprocess.run([sys.executable, "-c", grandchild], stdout=subprocess.PIPE, text=True).stdout
child = subprocess.Popen(["sleep", "600"])
print(folder, tempfile.mkdtemp(), child.pid, shown.strip(), flush=True)
time.sleep(600)
"""


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_f70_what_a_killed_run_started_ends() -> None:
    tests = Path(run_guard.__file__).parent
    with subprocess.Popen(
        [sys.executable, "-c", RUN, str(tests)], stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        *folders, child, orphan = run.stdout.readline().split()
        assert all(Path(folder).is_dir() for folder in folders)
        assert not gone(int(child)) and not gone(int(orphan))
        run.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if gone(int(child)) and gone(int(orphan)) and not Path(folders[0]).exists():
            return
        time.sleep(0.02)
    raise AssertionError("what the run started or wrote is still there")


def test_f70_this_run_has_its_guard() -> None:
    guards = [
        words
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if (words := _words(path)) and os.environ[run_guard.MARK] in words
    ]
    assert [words[2] for words in guards] == [str(os.getpid())]


def test_f69_temporary_files_are_in_the_folder_of_the_run(tmp_path: Path) -> None:
    whole = Path(os.environ["TMPDIR"])
    assert whole.name.startswith("sublimate-test-") and tmp_path.is_relative_to(whole)


def _words(path: Path) -> list[str]:
    try:
        return path.read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
