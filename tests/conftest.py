"""Settings that all tests share: the property tests' effort, which tests may run side by side, what
a run leaves (nothing), the programs that are built for it, and the report of recorded figures."""

import fcntl
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Generator
from functools import partial
from pathlib import Path

import pytest
from _pytest.runner import call_and_report
from hypothesis import HealthCheck, settings

import run_guard

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build/wheel"
UNBUILT = pytest.StashKey[str]()  # what the build of C++ programs said when it failed

# On shared machines a deadline per example measures the neighbours; the time limit per test stays.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# `make test` runs files side by side. A test marked `alone` keeps every core busy, which would
# spoil the times of any other: it has the room for itself, and all others share it. Who waits for
# the room stands in the door, lest those who share it never leave it empty.
ROOM, DOOR = Path(__file__), Path(__file__).parents[1] / "pyproject.toml"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, bool, bool]:
    """Waits for the room, outside of the test's time limit: that one starts further inside.

    Whatever goes wrong around a test, such as a time limit that is reached while its report is
    made, is a failure of that test alone: an error here would end the run without a report.
    """
    if not hasattr(item.config, "workerinput"):  # this process is the only one
        return (yield from _contained(item, nextitem))
    how = fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
    with ROOM.open() as room:
        with DOOR.open() as door:
            fcntl.flock(door, fcntl.LOCK_EX)
            fcntl.flock(room, how)
        return (yield from _contained(item, nextitem))


def _contained(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, bool, bool]:
    try:
        return (yield)
    except pytest.exit.Exception:
        raise
    except (Exception, pytest.fail.Exception) as error:
        call = pytest.CallInfo.from_call(partial(_raise, error), "call")
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
        item.ihook.pytest_runtest_logreport(report=report)
        call_and_report(item, "teardown", nextitem=nextitem)
        return True


def _raise(error: BaseException) -> None:
    raise error


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test whose C++ program could not be built fails with the compiler's words. A test that has
    ended its process is begun again in another one, with the rest of its file: it fails there, so
    that the rest runs."""
    if UNBUILT in item.config.stash and item.get_closest_marker("programs"):
        pytest.fail(item.config.stash[UNBUILT], pytrace=False)
    if not hasattr(item.config, "workerinput"):
        return
    name = hashlib.sha256(item.nodeid.encode()).hexdigest()
    of_worker: Path = item.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    folder = of_worker.parent / "begun"
    folder.mkdir(exist_ok=True)
    try:
        (folder / name).touch(exist_ok=False)
    except FileExistsError:
        pytest.fail("its process has ended in it", pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """What a run starts and writes goes with it. --basetemp=FOLDER keeps the files of tests."""
    is_part = hasattr(config, "workerinput")
    folder = run_guard.begin(own_folder=not is_part)
    if not is_part and not config.option.basetemp:
        config.option.basetemp = f"{folder}/tests"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Builds the C++ programs that the chosen tests run, unless SUBLIMATE_BUILD names others. One
    that cannot be built fails the tests that run programs, and no other."""
    marks = (mark for item in session.items for mark in item.iter_markers("programs"))
    targets = sorted({mark.args[0] for mark in marks})
    if not targets or session.config.option.collectonly or "SUBLIMATE_BUILD" in os.environ:
        return
    try:
        cache = (BUILD / "CMakeCache.txt").read_text()
    except OSError:
        text = "There is no build folder for C++ programs: run `make build`."
        session.config.stash[UNBUILT] = text
        return
    cmake = re.findall("^CMAKE_COMMAND:INTERNAL=(.*)", cache, re.M)[0]
    with (BUILD / "CMakeCache.txt").open() as lock:  # several processes have these tests
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = [cmake, "--build", BUILD, "--target", *targets]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        session.config.stash[UNBUILT] = f"{done.stdout[-4000:]}{done.stderr[-4000:]}"


@pytest.fixture(scope="session", autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Servers of tests share no data with each other's processes or with the person's own server,
    and read no keys or settings of that person's. Models may be in the usual cache."""
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        os.environ[name] = str(tmp_path_factory.mktemp(name))
    tempfile.tempdir = str(tmp_path_factory.mktemp("t"))  # pytest removes old ones


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stand-in for the library of NVIDIA's driver, with one GPU."""
    source = Path(__file__).parent / "fixtures/probe/nvml.cpp"
    path = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    subprocess.run(["c++", "-shared", "-fPIC", "-o", str(path), str(source)], check=True)
    return path


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what tests recorded as properties, such as the checks per 1000 lines."""
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid.rpartition('::')[2]}: {name} = {value}")
