"""The commands that talk to a server: each works with a strict contract and says what is wrong."""

import http.server
import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from harness import Served, serve
from sublimate.cli import chat, debug, doctor, guard_check, launch, peer
from sublimate.client.validation import Expected
from sublimate.config import EdgeSettings, ServerSettings, Settings
from sublimate.errors import ExitCode, PeerError

SUBLIMATE = [sys.executable, "-m", "sublimate"]
SECONDS = 60.0


@pytest.fixture(scope="module")
def strict() -> Iterator[Served]:
    with serve(settings=EdgeSettings(profile_contract="strict")) as served:
        yield served


def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "XDG_DATA_HOME": str(tmp_path), "TERM": "xterm"}  # fmt: skip


# ---- a strict contract ---------------------------------------------------------------------------
def test_f52_debug_doctor_guard_and_chat_name_a_profile(
    strict: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = peer.Peer(strict.url)
    assert asked.profile == "high-throughput"
    body: dict[str, Any] = {"model": "tiny", "max_tokens": 4, "stream": True}
    body["messages"] = [{"role": "user", "content": "say hello"}]
    code = debug.call(asked, body, verbose=False, as_json=False, perfetto=None)
    assert code == ExitCode.OK, capsys.readouterr()
    assert guard_check.check_server(asked, "tiny", 1, Expected()).checked == 1
    settings = Settings(server=ServerSettings(port=strict.port))
    topics = {
        finding.topic: finding
        for finding in doctor.diagnose(settings, asked, must_answer=True).findings
    }
    assert "two turns" in topics, topics
    talk = chat.Conversation(asked, {"model": "tiny", "max_tokens": 8})
    talk.ask("say hello")
    assert talk.messages[-1]["role"] == "assistant"


def test_f52_bench_names_a_profile(strict: Served, tmp_path: Path) -> None:
    command = [*SUBLIMATE, "bench", strict.url, "--requests", "2", "--concurrency", "1"]
    done = subprocess.run(
        [*command, "--prompt", "16", "--generate", "4", "--rounds", "1"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=environment(tmp_path),
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_f52_agents_are_started_with_a_profile(strict: Served) -> None:
    asked = peer.Peer(strict.url)
    for name, agent in launch.AGENTS.items():
        start = agent.start(asked, asked.model())
        told = " ".join((*start.flags, *start.variables.values()))
        assert "x-execution-profile" in told and "high-throughput" in told, name


# ---- chat ----------------------------------------------------------------------------------------
def run_chat(
    tmp_path: Path,
    *arguments: str,
    stdin: str | None = "",
    stdout: IO[str] | int = subprocess.PIPE,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*SUBLIMATE, "chat", *arguments],
        input=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=SECONDS,
        env=environment(tmp_path),
        check=False,
    )


def test_f59_a_pipe_and_an_argument_get_one_answer_and_nothing_else(
    shared: Served, tmp_path: Path
) -> None:
    for arguments, stdin in (
        (("say hello",), ""),
        ((), "say hello\n"),
        (("say",), "hello"),
        ((), "one line\nsay hello"),
    ):
        done = run_chat(tmp_path, "--url", shared.url, *arguments, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.endswith("\n") and done.stdout.strip()
        assert "Talking" not in done.stdout and ">" not in done.stdout
    with Path("/dev/full").open("w") as full:
        done = run_chat(tmp_path, "--url", shared.url, "say hello", stdout=full)
    assert done.returncode == 2 and "No space left" in done.stderr
    nothing = run_chat(tmp_path, "--url", shared.url)
    assert nothing.returncode == 2 and "nothing to say" in nothing.stderr


class Terminal:
    """A program at a terminal of its own."""

    def __init__(self, command: list[str], variables: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=variables,
            start_new_session=True,
        )
        os.close(theirs)
        self._unread = b""

    def read_until(self, text: str) -> str:
        """What the program wrote since the last call, up to and with the text."""
        end = time.monotonic() + SECONDS
        while text.encode() not in self._unread:
            left = end - time.monotonic()
            assert left > 0, f"{text!r} does not come: {self._unread!r}"
            if select.select([self._ours], [], [], left)[0]:
                self._unread += os.read(self._ours, 4096)
        seen, found, self._unread = self._unread.partition(text.encode())
        return (seen + found).decode(errors="replace")

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def close(self) -> int:
        """Its exit status."""
        try:
            return self.process.wait(SECONDS)
        finally:
            self.process.kill()
            os.close(self._ours)


def test_bytes_that_are_not_utf_8_are_asked_as_replacements(shared: Served, tmp_path: Path) -> None:
    for arguments, stdin in (([], b"say hello\xff\xfe\n"), ([b"say hello\xff"], b"")):
        done = subprocess.run(
            [*SUBLIMATE, "chat", "--url", shared.url, *arguments],
            input=stdin,
            capture_output=True,
            timeout=SECONDS,
            env=environment(tmp_path),
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b"")


def test_f59_a_terminal_has_history_and_editing(shared: Served, tmp_path: Path) -> None:
    terminal = Terminal([*SUBLIMATE, "chat", "--url", shared.url], environment(tmp_path))
    terminal.read_until("> ")
    # Home goes to the start of the line, so that a word can be put before the others.
    terminal.type(b"hello\x1b[Hsay \r")
    terminal.read_until("Hello there!")
    terminal.read_until("> ")
    terminal.type(b"\x1b[A\r")  # the line before
    again = terminal.read_until("Hello there!")
    assert "say hello" in again and "^[[A" not in again
    terminal.read_until("> ")
    terminal.type(b"\x04")
    assert terminal.close() == 0
    assert "say hello" in (tmp_path / "sublimate/chat-history").read_text()


class Page(http.server.BaseHTTPRequestHandler):
    """Some other server, whose errors are pages."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/readyz" else 404)
        self.end_headers()
        self.wfile.write(b"<html><body><h1>Not here</h1>" + b"x" * 5000)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None: ...


def test_f71_another_kind_of_server_is_one_sentence() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(PeerError, match="404 with a page instead of JSON") as refused:
            chat.Conversation(peer.Peer(url), {}).ask("hi")
        assert "<" not in str(refused.value)
        server.shutdown()
