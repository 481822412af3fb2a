"""Each point of the switch for injected faults (docs/faults.md), and what a whole server does."""

import contextlib
import json
import os
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from servers import Server, wait_until

from house import ROOT
from sublimate import _core
from sublimate.config import Settings, cache_folder
from sublimate.control.faults import POINTS, VARIABLE, FaultFolder, open_faults
from sublimate.errors import ConfigError
from sublimate.guard.edge_watch import EDGE_HUNG_SECONDS_MIN
from sublimate.model.files import fetch

ENGINE, EDGE = "sublimate.engine", "sublimate.edge"
ANSWER_TOKENS, STEP_US = 20, 1000
EDGE_DELAY = "sublimate_edge_heartbeat_delay_seconds"
JSON, MULTIPART = "application/json", "multipart/form-data; boundary=x"
UPLOAD = (
    b'--x\r\ncontent-disposition: form-data; name="file"; filename="a.txt"\r\n\r\nabc\r\n--x--\r\n'
)


class Faults:
    """A server with its folder of faults."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server, self.folder = server, folder

    def begin(self, point: str, number: int = 0) -> Path:
        """Takes effect whole: no process sees a file without its number."""
        written = self.folder / "written"
        written.write_text(str(number))
        return written.rename(self.folder / point)

    @contextlib.contextmanager
    def lasting(self, point: str, number: int = 0) -> Iterator[None]:
        """For the time of a with block."""
        file = self.begin(point, number)
        try:
            yield
        finally:
            file.unlink()

    def happened(self, point: str) -> None:
        """Waits for the process that takes it."""
        wait_until(lambda: not (self.folder / point).exists())

    def post(self, path: str, data: bytes, content_type: str) -> tuple[int, bytes]:
        """Status and body."""
        headers = {"content-type": content_type}
        request = urllib.request.Request(self.server.url + path, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def ask(self, stream: bool = False) -> tuple[int, bytes]:
        return self.post("/v1/messages", message(stream), JSON)

    def upload(self) -> tuple[int, bytes]:
        return self.post("/v1/files", UPLOAD, MULTIPART)

    def answers(self) -> bool:
        try:
            return self.ask()[0] == 200
        except OSError:
            return False

    def connect(self) -> socket.socket:
        host, _, port = self.server.url.removeprefix("http://").partition(":")
        return socket.create_connection((host, int(port)), timeout=5)


def message(stream: bool) -> bytes:
    body = {"model": "default", "max_tokens": 99, "stream": stream}
    return json.dumps({**body, "messages": [{"role": "user", "content": "Hello"}]}).encode()


def is_alive(sock: socket.socket) -> bool:
    try:
        sock.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        return b" 200 " in sock.recv(4096)
    except ConnectionError:
        return False


def limit_of(pid: int, name: str) -> int:
    found = re.search(rf"{name}\s+(\d+)", Path(f"/proc/{pid}/limits").read_text())
    return int(found[1]) if found else -1


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    folder = tmp_path_factory.mktemp("faults")
    folder.chmod(0o700)
    model = fetch("default", cache_folder(Settings()))
    vocabulary = len(_core.Gguf(str(model.path)).metadata["tokenizer.ggml.tokens"])
    script = folder / "script.json"
    body = {"answers": [[[], [1000 + n for n in range(ANSWER_TOKENS)]]], "vocabulary": vocabulary}
    script.write_bytes(msgspec.json.encode({**body, "step_delay_us": STEP_US}))
    command = ["-m", "sublimate", "serve", "--port", "0", "--json", "--log-level", "error"]
    command += ["--script", str(script), "--watchdog-seconds", "1.5"]
    command += ["--data-dir", str(tmp_path_factory.mktemp("data"))]
    with Server(command, {VARIABLE: str(folder)}) as server:
        server.ready()
        yield Faults(server, folder)


def test_both_processes_say_loudly_that_faults_are_injected(faults: Faults) -> None:
    wait_until(lambda: sum("faults are injected" in line for line in faults.server.errors) == 2)
    assert faults.answers()


def test_a_step_that_hangs_ends_in_an_error_and_the_engine_is_restarted(faults: Faults) -> None:
    engine = faults.server.children()[ENGINE]
    with faults.lasting("engine.step.hung"):
        began = time.monotonic()
        status, body = faults.ask(stream=True)
        assert status == 200 and b"event: error" in body and b"message_stop" not in body
        assert time.monotonic() - began < 3
        assert "stood still" in faults.server.event("lost")["why"]
    wait_until(faults.answers, 10)
    assert faults.server.children()[ENGINE] != engine


def test_a_slow_step_is_slow_and_no_more(faults: Faults) -> None:
    with faults.lasting("engine.step.slow", 30):
        began = time.monotonic()
        assert faults.ask()[0] == 200
        assert time.monotonic() - began > ANSWER_TOKENS * 0.03


def test_an_engine_that_aborts_is_told_and_comes_back_also_when_loading_fails_once(
    faults: Faults,
) -> None:
    faults.begin("engine.load")
    faults.begin("engine.abort")
    status, body = faults.ask()
    assert status in (500, 503) and json.loads(body)["error"]["type"]
    assert "SIGABRT" in faults.server.event("lost")["why"]
    wait_until(faults.answers, 10)
    assert any("an injected fault" in line for line in faults.server.errors)
    assert not (faults.folder / "engine.load").exists()


def test_a_broken_region_is_replaced_and_no_process_goes(faults: Faults) -> None:
    children = faults.server.children()
    url, headers = f"{faults.server.url}/v1/messages", {"content-type": JSON}
    asked = urllib.request.Request(url, message(True), headers)
    with faults.lasting("engine.step.slow", 20), urllib.request.urlopen(asked) as response:
        response.read(200)
        faults.begin("engine.region.broken")
        assert b"event: error" in response.read()
    wait_until(faults.answers, 10)
    assert faults.server.children() == children


def test_a_fault_with_a_number_waits_for_its_number(tmp_path: Path) -> None:
    """`echo 300 > edge.hung` makes an empty file first. One of all that look takes it."""
    faults, point = FaultFolder(tmp_path), tmp_path / "edge.hung"
    point.touch()
    assert faults.take_number("edge.hung") is None and point.exists()
    point.write_text("300\n")
    with ThreadPoolExecutor(8) as threads:
        taken = list(threads.map(lambda _: faults.take_number("edge.hung"), range(8)))
    assert sorted(taken, key=str) == [300, *[None] * 7] and not point.exists()


def test_an_event_loop_that_stands_still_goes_on(faults: Faults) -> None:
    faults.begin("edge.hung", 300)
    faults.happened("edge.hung")
    began = time.monotonic()
    assert faults.server.get("/livez")
    assert time.monotonic() - began > 0.15
    assert faults.answers()


def test_without_descriptors_open_connections_are_served_and_new_ones_are_not(
    faults: Faults,
) -> None:
    pid = faults.server.children()[EDGE]
    limit = limit_of(pid, "Max open files")
    with faults.connect() as kept:
        assert is_alive(kept)
        with faults.lasting("edge.descriptors"):
            wait_until(lambda: limit_of(pid, "Max open files") < limit)
            with faults.connect() as refused:
                assert not is_alive(refused)
            assert is_alive(kept)
        wait_until(lambda: limit_of(pid, "Max open files") == limit)
        with faults.connect() as late:
            assert is_alive(late) and is_alive(kept)
    assert faults.answers()


def test_a_disk_that_takes_nothing_fails_what_writes_and_nothing_else(faults: Faults) -> None:
    assert faults.upload()[0] == 200
    pid = faults.server.children()[EDGE]
    with faults.lasting("edge.writes"):
        wait_until(lambda: limit_of(pid, "Max file size") == 0)
        status, body = faults.upload()
        assert status >= 500 and json.loads(body)["error"]["type"], body
        assert faults.answers(), "who writes nothing does not notice"
    wait_until(lambda: faults.upload()[0] == 200)


def test_an_edge_that_aborts_comes_back_beside_the_same_engine(faults: Faults) -> None:
    engine = faults.server.children()[ENGINE]
    faults.begin("edge.abort")
    faults.happened("edge.abort")
    wait_until(faults.answers, 10)
    assert faults.server.children()[ENGINE] == engine


def test_the_document_and_the_points_agree() -> None:
    told = re.findall(r"^\| `([a-z.]+)`", (ROOT / "docs/faults.md").read_text(), re.M)
    assert told == list(POINTS)
    looking = ("core/engine/injected_faults.h", "src/sublimate/edge/faults.py")
    text = "".join((ROOT / path).read_text() for path in looking)
    text += (ROOT / "src/sublimate/engine/process.py").read_text()
    assert all(f'"{point}"' in text for point in POINTS)


def test_a_folder_that_others_could_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert open_faults() is None
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="No such file"):
        open_faults()
    tmp_path.chmod(0o720)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with pytest.raises(ConfigError, match="only this user"):
        open_faults()


# ---- an edge that stands still -------------------------------------------------------------------
def edge_samples(server: Server) -> dict[str, float]:
    """The watchdog's metrics of the edge that answers."""
    with urllib.request.urlopen(server.url + "/metrics", timeout=20) as response:
        lines = response.read().decode().splitlines()
    named = [line for line in lines if line.startswith(("sublimate_edge_watchdog", EDGE_DELAY))]
    return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in named}


def replaced(faults: Faults, edge: int) -> dict[str, float]:
    """Waits for the next edge; its metrics."""
    why = f"event loop stood still for {EDGE_HUNG_SECONDS_MIN:.0f} s"
    while why not in faults.server.event("lost", 60)["why"]:
        pass  # of what other tests have done
    wait_until(lambda: faults.server.children().get(EDGE, edge) != edge, 30)
    wait_until(faults.answers, 30)
    return edge_samples(faults.server)


def test_f04_an_edge_whose_loop_is_blocked_is_replaced(faults: Faults) -> None:
    """Its connections are lost; its port is not, and the engine stays."""
    children, before = faults.server.children(), edge_samples(faults.server)
    with faults.connect() as sock:
        assert is_alive(sock)
        faults.begin("edge.hung", 120_000)
        after = replaced(faults, children[EDGE])
        assert sock.recv(1) == b"", "its connections went with it"
    assert faults.server.children()[ENGINE] == children[ENGINE]
    for name in ("trips", "restarts"):
        name = f"sublimate_edge_watchdog_{name}_total"
        assert after[name] == before[name] + 1
    assert EDGE_DELAY in after


def test_f04_a_stopped_edge_is_replaced(faults: Faults) -> None:
    edge = faults.server.children()[EDGE]
    os.kill(edge, signal.SIGSTOP)
    with faults.connect() as waiting:  # the kernel holds it for the next edge
        waiting.settimeout(60)
        waiting.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        replaced(faults, edge)
        assert b" 200 " in waiting.recv(4096)
