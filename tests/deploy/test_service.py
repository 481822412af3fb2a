"""The systemd unit, and what the supervisor tells a service manager."""

import errno
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest
from command_line import refusal
from servers import Server
from test_serve import model as model
from test_serve import script as script

from house import ROOT
from sublimate.config import EdgeSettings, load_settings
from sublimate.errors import ExitCode
from sublimate.supervisor.notify import VARIABLE, NotifyingReporter, notify
from sublimate.supervisor.reporter import SilentReporter
from sublimate.supervisor.supervise import DRAIN_GRACE_SECONDS, STOP_SECONDS

SYSTEMD = ROOT / "deploy" / "systemd"
UNIT = SYSTEMD / "sublimate.service"
COMMAND = "/opt/sublimate/bin/sublimate"
EXPOSURE_MAX = {"": 1.8, "without-kernel-state.conf": 1.4, "gpu.conf": 2.0}
"""Of `systemd-analyze security`, by drop-in; docs/deploy.md tells the figures."""


def settings_of(path: Path) -> dict[str, list[str]]:
    """Assignments of a unit file; one name may be there more than once."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if re.match(r"\w+=", line):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


# ---- the unit ------------------------------------------------------------------------------------
@pytest.mark.parametrize("drop_in", EXPOSURE_MAX)
def test_systemd_takes_the_unit(tool: Callable[[str], str], tmp_path: Path, drop_in: str) -> None:
    analyze = tool("systemd-analyze")
    unit = tmp_path / "sublimate.service"
    text = UNIT.read_text()
    assert COMMAND in text
    more = (SYSTEMD / drop_in).read_text() if drop_in else ""
    unit.write_text(text.replace(COMMAND, "/bin/true") + more)
    done = subprocess.run(
        [analyze, "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    done = subprocess.run(
        [analyze, "security", "--offline=true", unit], capture_output=True, text=True, check=True
    )
    exposure = float(re.findall(r"exposure level for \S+: ([\d.]+)", done.stdout)[0])
    assert exposure <= EXPOSURE_MAX[drop_in]
    assert str(exposure) in (ROOT / "docs" / "deploy.md").read_text()


def test_systemd_refuses_a_unit_that_is_wrong(tool: Callable[[str], str], tmp_path: Path) -> None:
    unit = tmp_path / "sublimate.service"
    unit.write_text(UNIT.read_text().replace(COMMAND, "/bin/true-ly").replace("Group=", "Grup="))
    done = subprocess.run(
        [tool("systemd-analyze"), "verify", "--man=no", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "true-ly" in done.stderr and "Grup" in done.stderr


def test_the_unit_agrees_with_the_program() -> None:
    unit = settings_of(UNIT)
    stop = float(unit["TimeoutStopSec"][0])
    assert stop > EdgeSettings().drain_seconds + DRAIN_GRACE_SECONDS + STOP_SECONDS
    never = [int(code) for code in unit["RestartPreventExitStatus"][0].split()]
    assert never == [ExitCode.USAGE, ExitCode.SIGNATURE]
    assert set(unit["AmbientCapabilities"][0].split()) == {
        "CAP_BPF",
        "CAP_PERFMON",
        "CAP_NET_ADMIN",
    }
    assert unit["AmbientCapabilities"] == unit["CapabilityBoundingSet"]
    without = settings_of(SYSTEMD / "without-kernel-state.conf")
    assert without["AmbientCapabilities"] == without["CapabilityBoundingSet"] == [""]
    assert unit["KillMode"] == ["mixed"], "the supervisor ends its own children"
    started, reloaded = unit["ExecStart"][0], unit["ExecReload"][0].replace("$MAINPID", "1")
    for line in (started, reloaded):
        assert line.startswith(COMMAND) and refusal(line.rpartition("/bin/")[2]) == "", line


def test_the_settings_of_the_service_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SUBLIMATE_PORT", "SUBLIMATE_MODEL"):
        monkeypatch.delenv(name, raising=False)
    settings = load_settings({}, config=SYSTEMD / "config.toml").settings
    assert settings.server.stay and settings.server.host == "127.0.0.1"
    users = ConfigParser(allow_no_value=True)
    users.read_string("[all]\n" + (SYSTEMD / "sublimate.sysusers").read_text())
    (line,) = users["all"]
    assert line.split()[1] == settings_of(UNIT)["User"][0]


# ---- sd_notify -----------------------------------------------------------------------------------
@pytest.fixture(params=["path", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    """A service manager's socket, of either kind."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        if request.param == "path":
            sock.bind(str(tmp_path / "notify"))
            monkeypatch.setenv(VARIABLE, str(tmp_path / "notify"))
        else:
            sock.bind("")  # the kernel chooses an abstract name
            monkeypatch.setenv(VARIABLE, "@" + sock.getsockname()[1:].decode())
        sock.settimeout(20)
        yield sock


def test_a_manager_hears_of_each_state(manager: socket.socket) -> None:
    reporter = NotifyingReporter(SilentReporter())
    reporter.loading(0.5)
    reporter.ready("http://127.0.0.1:1", {}, {})
    assert manager.recv(500) == b"READY=1\nSTATUS=Serves on http://127.0.0.1:1"
    reporter.lost("engine", "signal 9\nFAKE=1", 0.5)
    said = manager.recv(500).split(b"\n")
    assert said == [b"STATUS=The engine is restarted in 0.5 s: signal 9 FAKE=1"]
    reporter.unavailable("http://127.0.0.1:1", "hardware_not_supported", "no AVX2")
    assert manager.recv(500).startswith(b"READY=1\nSTATUS=Answers 503")
    reporter.draining(30)
    assert manager.recv(500).startswith(b"STOPPING=1\n")
    reporter.stopped()
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(500)


@pytest.mark.parametrize("address", ["", "vsock:2:1", "/nowhere/notify", "@no-one-listens"])
def test_without_a_manager_nothing_happens(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv(VARIABLE, address)
    assert notify("READY=1") is False


def test_a_reload_that_cannot_be_noted_ends_nothing() -> None:
    told: list[str] = []

    def full(failure: str) -> None:
        told.append(failure)
        raise OSError(errno.ENOSPC, "No space left on device")

    NotifyingReporter(SilentReporter(), full).reloaded("why")
    assert told == ["why"]


def test_where_no_descriptor_is_left_the_manager_is_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the supervisor goes on."""

    def no_descriptor(*_: int) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setenv(VARIABLE, "@somebody")
    monkeypatch.setattr(socket, "socket", no_descriptor)
    assert notify("READY=1") is False


def test_serve_is_ready_when_it_answers_and_says_that_it_stops(
    script: Path, tmp_path: Path
) -> None:
    command = ["-m", "sublimate", "serve", "--port", "0", "--json", "--script", str(script)]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("")
        sock.settimeout(30)
        address = "@" + sock.getsockname()[1:].decode()
        more = ("--data-dir", str(tmp_path), "--log-level", "error")
        with Server([*command, *more], {VARIABLE: address}) as server:
            assert sock.recv(500).startswith(b"READY=1\nSTATUS=Serves on http://127.0.0.1:")
            server.ready()
            assert server.get("/readyz")
            server.signal(signal.SIGTERM)
            assert sock.recv(500).startswith(b"STOPPING=1\n")
            assert server.wait() == 0
