"""Codex and OpenCode themselves against a server: run by `make test-clients`, where loopback is all
the network there is. Each reads a file by a tool of its own and goes on in a second turn.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness import Served, serve
from sublimate.cli.launch import AGENTS
from sublimate.cli.peer import Peer
from tiny_model import ids

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

PROGRAMS = Path(__file__).parent / "node_modules/.bin"
CONTEXT_TOKENS = 131_072
PAGES = 24_576
SECRET = "zebra-4711"
ASKED = "read notes.txt aloud"
CLIENT_SECONDS = 240
FREE = "--dangerously-bypass-approvals-and-sandbox"


def call_text(name: str, **arguments: Any) -> str:
    written = json.dumps(arguments, separators=(", ", ": "))
    return f'<tool_call>\n{{"name": "{name}", "arguments": {written}}}\n</tool_call>'


def run(name: str, served: Served, folder: Path, *words: str) -> str:
    """What the agent prints, as `sublimate launch` starts it."""
    peer = Peer(served.url)
    start = AGENTS[name].start(peer, peer.model())
    home = folder.parent / "home"
    (home / ".codex").mkdir(parents=True, exist_ok=True)
    variables = {**start.variables, "HOME": str(home), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [str(PROGRAMS / name), *start.flags, *words],
        env=variables,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=CLIENT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


AGENT_TURNS: list[tuple[str, str, list[str], list[str]]] = [
    (
        "codex",
        call_text("exec_command", cmd="cat notes.txt"),
        ["exec", "--skip-git-repo-check", FREE, ASKED],
        ["exec", "resume", "--last", "--skip-git-repo-check", FREE, "say hello"],
    ),
    (
        "opencode",
        call_text("bash", command="cat notes.txt", description="reads"),
        ["run", ASKED],
        ["run", "--continue", "say hello"],
    ),
]


@pytest.mark.parametrize(
    ("name", "call", "first", "second"),
    [pytest.param(*turns, id=f"F21-{turns[0]}") for turns in AGENT_TURNS],
)
def test_an_agent_reads_a_file_and_goes_on(
    tmp_path: Path, name: str, call: str, first: Sequence[str], second: Sequence[str]
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "notes.txt").write_text(f"{SECRET}\n")
    answers = [
        (ids("say hello"), ids("Hello again.")),
        (ids(SECRET), ids("The file says so.")),
        (ids(ASKED), ids(f"I read it.\n{call}")),
    ]
    with serve(
        answers={}, extra_script=answers, context_tokens=CONTEXT_TOKENS, pages=PAGES
    ) as served:
        assert "The file says so." in run(name, served, folder, *first)
        assert "Hello again." in run(name, served, folder, *second)
        metrics = httpx.get(f"{served.url}/metrics").text
        failed = [line for line in metrics.splitlines() if 'status="4' in line]
        assert not failed, failed
