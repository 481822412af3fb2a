"""`sublimate run`: programs and what they start, unchanged, over our transport."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from harness import Served, serve
from sublimate.cli.run import environment
from sublimate.client import http_client
from sublimate.client.injected import inject_path
from sublimate.config import EdgeSettings

SOURCES = Path(__file__).parents[2] / "src"
PROGRAM = """
import anthropic, asyncio, os, subprocess, sys
USER = {"role": "user", "content": "say hello"}
asked = {"model": "tiny", "max_tokens": 64, "messages": [USER]}
client = anthropic.Anthropic()
print(client.messages.create(**asked).content[0].text)
with client.messages.stream(**asked) as stream:
    print("".join(stream.text_stream))
async def main():
    async with anthropic.AsyncAnthropic() as other:
        for _ in range(2):
            events = await other.messages.create(**asked, stream=True)
            print(len([event async for event in events]) > 3)
asyncio.run(main())
print(client.timeout, client._client.follow_redirects, client._client.report().requests)
if len(sys.argv) == 1:
    sys.exit(subprocess.run([sys.executable, __file__, "inner"]).returncode + 3)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serve() as served:
        yield served
        assert served.idle()


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SUBLIMATE_")}
    given = {**clean, "PYTHONPATH": str(SOURCES), "ANTHROPIC_API_KEY": "x", **variables}
    line = [sys.executable, "-m", "sublimate", "run", "--", *command]
    return subprocess.run(line, env=given, capture_output=True, text=True, timeout=60, check=False)


def test_a_program_and_its_child_use_frames_and_its_status_is_told(
    server: Served, tmp_path: Path
) -> None:
    program = tmp_path / "app.py"
    program.write_text(PROGRAM)
    before = server.server.metrics.streams.copy()
    done = run(sys.executable, str(program), ANTHROPIC_BASE_URL=server.url)
    assert done.returncode == 3, done.stderr
    lines = done.stdout.splitlines()
    assert lines == lines[:5] * 2 and lines[:4] == ["Hello there!"] * 2 + ["True"] * 2
    assert "read=600" in lines[4] and "True {'http/1.1': 1, 'frames': 1}" in lines[4]
    made = server.server.metrics.streams - before
    assert made == {"application/octet-stream": 4, "text/event-stream": 2}


def test_f52_a_strict_server_is_told_a_profile(tmp_path: Path) -> None:
    program = tmp_path / "app.py"
    program.write_text(PROGRAM)
    with serve(settings=EdgeSettings(profile_contract="strict")) as strict:
        done = run(sys.executable, str(program), ANTHROPIC_BASE_URL=strict.url)
        assert done.returncode == 3, done.stderr
        for carriers in (("http/1.1",), ("frames",)):
            made = http_client(carriers=carriers, execution_profile="low-latency")
            asked: Any = {"model": "tiny", "max_tokens": 8}
            asked["messages"] = [{"role": "user", "content": "say hello"}]
            with anthropic.Anthropic(base_url=strict.url, api_key="x", http_client=made) as client:
                assert client.messages.create(**asked).content


def test_without_anthropic_it_says_once_that_it_does_nothing() -> None:
    """In the interpreter that the virtual environment was made from."""
    bare = sys._base_executable
    look = "import importlib.util as u; print(u.find_spec('anthropic'))"
    found = subprocess.run([bare, "-c", look], capture_output=True, text=True, check=True)
    if found.stdout.strip() != "None":
        pytest.skip("anthropic is installed for all environments of this machine")
    child = "import subprocess, sys; print('ran'); subprocess.run([sys.executable, '-c', ''])"
    done = run(bare, "-c", child)
    assert done.returncode == 0 and done.stdout == "ran\n"
    assert done.stderr.count("anthropic cannot be imported") == 1
    assert done.stderr.rstrip().endswith("nothing is changed")


def test_there_is_no_such_program() -> None:
    done = run("no-such-program-anywhere")
    assert done.returncode == 2 and "no-such-program-anywhere" in done.stderr


def test_the_path_of_others_stays() -> None:
    made = environment({"PYTHONPATH": f"a{os.pathsep}{inject_path()}", "X": "1"}, 7)
    assert made == {
        "PYTHONPATH": f"{inject_path()}{os.pathsep}a",
        "X": "1",
        "SUBLIMATE_RUN_PARENT": "7",
    }


def test_another_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the other one')")
    both = os.pathsep.join([str(SOURCES), str(tmp_path)])
    done = run(sys.executable, "-c", "print('done')", PYTHONPATH=both)
    assert done.stdout.splitlines()[-2:] == ["the other one", "done"]
