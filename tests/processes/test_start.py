"""The first moments of a start: processes that are begun before anybody knows what for are used, or
are gone with the command that began them; an edge that is ready has loaded what it needs."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from servers import Server, alive, wait_until

from sublimate.control import birth
from sublimate.control.run_record import RunRecord, record_of

EDGE, ENGINE = "sublimate.edge", "sublimate.engine"

FEW = {
    *("numpy", "llguidance", "tokenizers", "prometheus_client"),
    *("grpc", "aioquic", "cryptography", "opentelemetry"),
}
"""What an edge loads for requests that ask for it, or when it has nothing to do."""
MARK = "SUBLIMATE_LEGACY_TEST_MARK"
"""A variable that the settings pass over."""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.json"
    path.write_text('{"answers":[[[],[300]]],"vocabulary":49152}')
    return path


def marked(mark: str) -> list[int]:
    """Processes that live, with that mark in their environment: also orphans of orphans."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environment = (path / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"{MARK}={mark}".encode() in environment and alive(int(path.name)):
            found.append(int(path.name))
    return found


def command(*arguments: str) -> list[str]:
    return ["-m", "sublimate", "serve", "--port", "0", "--json", *arguments]


TOLD = """
import sys
from sublimate.cli import entry
from sublimate.control import birth

take, end = birth.take, birth.end_unused

def told_take(module):
    child = take(module)
    print("took", module, child[0].pid if child else 0, file=sys.stderr, flush=True)
    return child

def told_end():
    for module, (process, _) in birth._ahead.items():
        print("ends", module, process.pid, file=sys.stderr, flush=True)
    end()

birth.take, birth.end_unused, entry.end_unused = told_take, told_end, told_end
entry.main()
"""


def told(*arguments: str) -> list[str]:
    """The command, which tells on standard error what becomes of those that it begins ahead."""
    return ["-c", TOLD, *command(*arguments)[2:]]


def became(said: list[str]) -> set[tuple[str, str, int]]:
    """(what, module, process id) of all that it has told."""
    lines = [line.split() for line in said if line.startswith(("took ", "ends "))]
    return {(what, module, int(number)) for what, module, number in lines}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("--no-such-flag",), 2), (("--workers", "x"), 2), (("--model", "./no-such-file"), 3)],
    ids=["flag", "value", "model"],
)
def test_settings_that_are_refused_leave_nothing_behind(
    tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    mark = secrets.token_hex(8)
    with Server(told(*arguments, "--data-dir", str(tmp_path)), {MARK: mark}) as server:
        assert server.wait() == code
        assert marked(mark) == []
    ended = became(server.errors)
    assert {(what, module) for what, module, _ in ended} == {("ends", EDGE), ("ends", ENGINE)}
    assert list((tmp_path / "runs").glob("*")) == []


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_who_asks_for_help_begins_nothing(flag: str) -> None:
    command = [sys.executable, *told(flag)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0 and "--model" in shown.stdout
    assert became(shown.stderr.splitlines()) == set()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Tests that a shell runs in the background ignore Ctrl-C, and so would what they start."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_in_the_first_moment_leaves_nothing_behind(
    script: Path, number: signal.Signals
) -> None:
    mark = secrets.token_hex(8)
    with Server(command("--script", str(script)), {MARK: mark}) as server:
        wait_until(server.children)  # the first of them: the command imports nothing as yet
        server.signal(number)
        server.wait()
        wait_until(lambda: marked(mark) == [])


def test_what_was_begun_ahead_serves_and_is_of_the_run(script: Path, tmp_path: Path) -> None:
    with Server(told("--script", str(script), "--data-dir", str(tmp_path))) as server:
        server.ready()
        children = server.children()
        assert became(server.errors) == {
            ("took", EDGE, children[EDGE]),
            ("took", ENGINE, children[ENGINE]),
        }
        [record] = (tmp_path / "runs").iterdir()
        assert {record_of(process_id) for process_id in children.values()} == {record}
        server.signal(signal.SIGTERM)
        assert server.wait() == 0


def test_a_file_of_settings_may_name_another_data_folder(script: Path, tmp_path: Path) -> None:
    """Nobody has read it when they are begun: others take their place."""
    config = tmp_path / "config.toml"
    config.write_text(f'data_dir = "{tmp_path}/other"\n')
    mark = secrets.token_hex(8)
    arguments = command("--script", str(script), "--config", str(config))
    with Server(arguments, {MARK: mark}) as server:
        server.ready()
        [record] = (tmp_path / "other/runs").iterdir()
        assert {record_of(each) for each in server.children().values()} == {record}
        assert len(marked(mark)) == 3


def test_several_workers_take_what_is_there(script: Path) -> None:
    with Server(command("--script", str(script), "--workers", "2")) as server:
        server.ready()
        assert {module: len(pids) for module, pids in server.pids().items()} == {EDGE: 2, ENGINE: 2}


# ---- what is begun ahead, by itself --------------------------------------------------------------
def test_who_is_not_taken_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(birth.RUN_VARIABLE, "")
    birth.begin_ahead([ENGINE, EDGE], str(tmp_path / "0.run"))
    process, control = birth.take(ENGINE) or pytest.fail("it was begun")
    assert birth.take(ENGINE) is None, "only once"
    with control:
        birth.end_unused()
        assert birth.take(EDGE) is None
        assert process.poll() is None, "that one is somebody's"
    assert process.wait(10) == 0, "the end of its channel tells it"


def test_one_that_has_ended_is_of_no_use(tmp_path: Path) -> None:
    birth.begin_ahead(["no_such_module"], str(tmp_path / "0.run"))
    child = birth._ahead["no_such_module"][0]  # pyright: ignore[reportPrivateUsage]
    child.wait()
    assert birth.take("no_such_module") is None


def test_the_record_is_where_they_were_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(birth.RUN_VARIABLE, "")
    for folder, is_there in ((tmp_path, True), (tmp_path / "other", False)):
        birth.begin_ahead([ENGINE], str(tmp_path / "12.run"))
        try:
            record = RunRecord(folder)
            assert (record.path == tmp_path / "12.run") == is_there
            assert record.path.parent == folder
            record.close()
            child = birth.take(ENGINE)
            assert (child is not None) == is_there
            if child is not None:
                child[1].close()
                child[0].wait()
        finally:
            birth.end_unused()


@pytest.mark.parametrize("arguments", [[], ["--control-fd"], ["--control-fd", "x"], ["--help"]])
def test_a_child_is_not_started_by_hand(arguments: list[str]) -> None:
    command = [sys.executable, "-m", ENGINE, *arguments]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert told.returncode == 1 and "by itself" in told.stderr


# ---- what an edge that is ready has loaded -------------------------------------------------------
SERVES_ONE = """
import asyncio, json, socket, sys, threading
import uvloop
from sublimate import _core
from sublimate.api.routes import ROUTES
from sublimate.config import EdgeSettings
from sublimate.edge import process
from sublimate.edge.server import create_server
from tiny_model import STOP, ids, tiny_model

async def serve_one():
    model = tiny_model()
    answers = [(ids("hello"), ids("there"))]
    size = {"vocabulary": len(model.tokenizer), "context_length": 512, "kv_pages": 64}
    engine = _core.LoopEngine.with_script(answers, stop_token=STOP, **size)
    region = _core.Region.create(len(model.tokenizer))
    engine.attach(region)
    loop = threading.Thread(target=engine.run)
    loop.start()
    sock = socket.create_server(("127.0.0.1", 0))
    info, attached = {"context_length": 512, "kv_pages": 64}, _core.Region.attach(*region.fds)
    settings = EdgeSettings(data_dir=sys.argv[1])
    server = await create_server(
        settings, model, ROUTES, sock, region=attached, engine_info=info
    )
    ready = set(sys.modules)
    reader, writer = await asyncio.open_connection(*sock.getsockname())
    turns = [{"role": "user", "content": "hello"}]
    body = json.dumps({"model": "tiny", "max_tokens": 8, "messages": turns}).encode()
    head = f"POST /v1/messages HTTP/1.1\\r\\nhost: localhost\\r\\nconnection: close\\r\\n"
    writer.write(f"{head}content-length: {len(body)}\\r\\n\\r\\n".encode() + body)
    answer = await reader.read()
    writer.close()
    server.close()
    await server.wait_closed()
    engine.stop()
    loop.join()
    assert b"200 OK" in answer and b"there" in answer, answer
    return [sorted({name.partition(".")[0] for name in names}) for names in (ready, sys.modules)]

print(json.dumps(uvloop.run(serve_one())))
"""


def test_an_edge_that_is_ready_has_not_loaded_what_few_requests_need(tmp_path: Path) -> None:
    """Nor does a plain request make it."""
    paths = [path for path in sys.path if path]  # with those of the tests
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", SERVES_ONE, str(tmp_path)]
    told = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
    for loaded in map(set, msgspec.json.decode(told.stdout)):
        assert {"msgspec", "minijinja", "uvloop"} <= loaded, "it has begun"
        assert loaded & FEW == set()
