"""With fewer rights: what can be loaded then, and that the rest goes on. As root, by setpriv."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from servers import Server, wait_until
from test_serve import model as model
from test_serve import script as script

from sublimate.control.rights import GIVEN_UP
from sublimate.kernel import reason
from sublimate.kernel.connections import Connections
from sublimate.kernel.reason import REASONS, missing, refused

NOBODY = 65534
SECRET = b"s" * 32
CAN_LOSE = os.geteuid() == 0 and shutil.which("setpriv") is not None
as_root = pytest.mark.skipif(not CAN_LOSE, reason="needs root and setpriv")
BPF, PERFMON, NET_ADMIN = "bpf", "perfmon", "net_admin"
LOADS = """
import json, os
from sublimate import _core
from sublimate.kernel.connections import Connections
from sublimate.kernel.steering import Steering
try:
    _core.load_steering(16)
    asked = "let"
except OSError as error:
    asked = error.strerror
memory, steering = Connections.load(b"s" * 32, 16), Steering.load(16)
print(json.dumps({"user": os.geteuid(), "asked": asked, "steering": steering.reason,
    "memory": memory.reason, "hook": memory.hook, "quic": memory.sees_quic}))
"""


def with_rights(*capabilities: str) -> list[str]:
    """Of nobody, where nobody may read our interpreter; else of root, who has just these."""
    added = [f"+{name}" for name in capabilities]
    sets = ",".join(["-all", *added])
    bounded = ["setpriv", "--bounding-set", sets, "--inh-caps", sets]
    nobody = ["setpriv", "--reuid", str(NOBODY), "--clear-groups", "--bounding-set", sets]
    nobody += ["--inh-caps", sets, *(["--ambient-caps", ",".join(added)] if added else [])]
    tried = subprocess.run([*nobody, sys.executable, "-c", "import sublimate"], capture_output=True)
    return nobody if tried.returncode == 0 else bounded


def loads(*capabilities: str) -> dict[str, Any]:
    command = [*with_rights(*capabilities), sys.executable, "-c", LOADS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@as_root
@pytest.mark.parametrize("capabilities", [(), (BPF,), (BPF, NET_ADMIN), (PERFMON, NET_ADMIN)])
def test_too_few_rights_load_nothing_and_say_so(capabilities: tuple[str, ...]) -> None:
    """Nor does the kernel let anybody who asks: the loader of a skeleton needs both."""
    told = loads(*capabilities)
    assert told["asked"] in ("Operation not permitted", "Invalid argument")
    assert (told["steering"], told["memory"]) == ("no_capability", "no_capability")


@as_root
@pytest.mark.parametrize("more", [(), (NET_ADMIN,)])
def test_two_rights_are_enough_and_a_third_sees_datagrams(more: tuple[str, ...]) -> None:
    if not Connections.load(SECRET, 16).loaded:
        pytest.skip("the memory of connections is not loaded here")
    told = loads(BPF, PERFMON, *more)
    assert (told["steering"], told["memory"]) == ("loaded", "loaded")
    assert told["hook"] == "tracepoints" and told["quic"] == bool(more)


def test_the_reason_is_what_stands_in_the_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    everything = (1 << 41) - 1
    assert missing(release="5.13.19-generic", effective=everything) == "old_kernel"
    assert missing(release="6.1.0", effective=0) == "no_capability"
    assert missing(release="6.1.0", effective=1 << 39) == "no_capability"
    lockdown = tmp_path / "lockdown"
    monkeypatch.setattr(reason, "LOCKDOWN", lockdown)
    lockdown.write_text("none integrity [confidentiality]\n")
    assert missing(release="6.1.0", effective=everything) == "lockdown"
    lockdown.write_text("none [integrity] confidentiality\n")
    assert missing(release="6.1.0", effective=1 << 39 | 1 << 38) is None
    assert missing(release="6.1.0", effective=1 << 21) is None, "CAP_SYS_ADMIN stands for both"
    monkeypatch.setattr(reason, "BTF", tmp_path / "nothing")
    assert missing(release="6.1.0", effective=everything, needs_btf=True) == "no_btf"
    assert refused(OSError(38, "")) == "no_bpf" and refused(OSError(22, "")) == "refused"
    assert all(REASONS.values())


# ---- a server ------------------------------------------------------------------------------------
def metrics(server: Server) -> str:
    with urllib.request.urlopen(server.url + "/metrics", timeout=10) as reply:
        return reply.read().decode()


def number(text: str, name: str, **labels: str) -> float:
    """Of the sample of that name with these labels."""
    for line in text.splitlines():
        told = dict(re.findall(r'(\w+)="([^"]*)"', line))
        if re.match(rf"sublimate_kernel_{name}[{{ ]", line) and labels.items() <= told.items():
            return float(line.rpartition(" ")[2])
    raise AssertionError(f"no {name} with {labels}")


def state(text: str) -> str:
    found = re.search(r'sublimate_kernel_state{[^}]*part="connections",reason="(\w+)"', text)
    assert found is not None
    return found.group(1)


def rights_of(process_id: int, which: str) -> int:
    status = Path(f"/proc/{process_id}/status").read_text()
    return int(status.partition(f"{which}:\t")[2].split()[0], 16)


def started(script: Path, folder: Path, *more: str) -> list[str]:
    return ["-m", "sublimate", "serve", "--port", "0", "--json", "--script", str(script),
            "--data-dir", str(folder), *more]  # fmt: skip


@pytest.fixture
def server(script: Path, tmp_path: Path) -> Iterator[Server]:
    with Server(started(script, tmp_path)) as running:
        running.ready()
        yield running


def converse(url: str, turns: int) -> None:
    """Turns of one conversation over one connection."""
    said = [{"role": "user", "content": "Count the stars. " * 40}]
    with httpx.Client(base_url=url, timeout=20) as client:
        for _ in range(turns):
            body = {"model": "default", "max_tokens": 4, "messages": said}
            answer = client.post("/v1/messages", json=body)
            assert answer.status_code == 200
            said += [{"role": "assistant", "content": answer.json()["content"]}]
            said += [{"role": "user", "content": "And now?"}]


def test_a_server_remembers_its_connections(server: Server) -> None:
    if (found := state(metrics(server))) != "loaded":
        pytest.skip(f"the memory of connections is not loaded here: {found}")
    converse(server.url, turns=3)
    told = metrics(server)
    assert number(told, "cache_lookups_total") == 3 and number(told, "cache_hits_total") == 2
    assert number(told, "cache_hit_ratio") == pytest.approx(2 / 3)
    expected = number(told, "cache_expected_tokens_total")
    assert expected > 200 and number(told, "cache_found_tokens_total") == expected
    assert number(told, "touches_total", hook="receive") >= 2
    wait_until(lambda: number(metrics(server), "cache_entries") == 0, 10)
    if CAN_LOSE:
        check_that_children_cannot_load_programs(server)


def check_that_children_cannot_load_programs(server: Server) -> None:
    mask = sum(1 << capability for capability in GIVEN_UP)
    children = server.children()
    assert set(children) == {"sublimate.edge", "sublimate.engine"}
    for process_id in children.values():
        for which in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"):
            assert not rights_of(process_id, which) & mask, which
        assert rights_of(process_id, "CapEff") & 1 << 1, "root's files can still be read"
    assert rights_of(server.process.pid, "CapEff") & mask


@as_root
def test_a_server_without_the_right_says_so_once_and_works(script: Path, tmp_path: Path) -> None:
    command = started(script, tmp_path)
    without = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"]
    program = f"import os, sys; os.execvp('setpriv', {without!r} + [sys.executable] + {command!r})"
    with Server(["-c", program]) as running:
        running.ready()
        assert state(metrics(running)) == "no_capability"
        converse(running.url, turns=1)
        running.signal(signal.SIGTERM)
        assert running.wait() == 0
        said = [line for line in running.errors if "memory of connections" in line]
    assert len(said) == 1 and "CAP_BPF" in said[0]


def test_it_can_be_switched_off(script: Path, tmp_path: Path) -> None:
    with Server(started(script, tmp_path, "--no-kernel-state")) as running:
        running.ready()
        told = metrics(running)
        assert state(told) == "off" and "sublimate_kernel_cache" not in told
