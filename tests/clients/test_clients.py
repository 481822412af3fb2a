"""Real clients, each in a process of its own, against the default model on loopback: text, stream,
a forced call and the turn with its result, a schema, an error and a cancel.

`make test-sdk` installs what they need below .venv/clients; here a client that is not
installed fails, so that none is passed over in silence.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from servers import Server, wait_until

from house import ROOT

pytestmark = pytest.mark.sdk

HERE = Path(__file__).parent
INSTALLED = ROOT / ".venv" / "clients"
CLIENT_SECONDS = 60
CITIES = {"Bern", "Rome"}

BAD = "BadRequestError"
# (client, driver, folder of its packages: empty for the test environment's, its class for a 400)
PYTHON = [
    ("anthropic-python-0", "anthropic_sdk.py", "anthropic-0", BAD),
    ("anthropic-python-1", "anthropic_sdk.py", "anthropic-1", BAD),
    ("anthropic-python-2", "anthropic_sdk.py", "", BAD),
    ("openai-python", "openai_sdk.py", "", BAD),
    ("langchain-anthropic", "langchain_client.py", "frameworks", "AnthropicInvalidRequestError"),
    ("pydantic-ai", "pydantic_ai_client.py", "frameworks", "ModelRequestRejectedError"),
]
NODE = [
    ("anthropic-typescript-0", "anthropic_sdk.mjs", "@anthropic-ai/sdk-0", BAD),
    ("anthropic-typescript-1", "anthropic_sdk.mjs", "@anthropic-ai/sdk", BAD),
    ("openai-typescript", "openai_sdk.mjs", "", BAD),
    ("vercel-ai-sdk", "ai_sdk.mjs", "anthropic", "APICallError"),
    ("F22-vercel-ai-sdk-responses", "ai_sdk.mjs", "responses", "APICallError"),
    ("F21-vercel-ai-sdk-chat", "ai_sdk.mjs", "chat", "APICallError"),
]
FRAMEWORKS = [
    *("langchain-openai:chat", "langchain-openai:responses", "langchain-openai:completions"),
    *("litellm:openai", "litellm:ollama", "ollama:", "openai-agents:responses"),
    "openai-agents:chat",
]
FIELD = re.compile(
    r"(max_tokens|max_completion_tokens|top_k): expected an integer of at least 0"
    r"|temperature: expected a number from 0"
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = ["-m", "sublimate", "serve", "--port", "0", "--json", "--log-level", "error"]
    with Server([*command, "--kv-memory", "512MiB"]) as running:
        yield running.event("ready", 90)["url"]


def run_python(script: str, folder: str, url: str, *words: str) -> Any:
    paths = [str(HERE / "python"), *([str(INSTALLED / folder)] if folder else [])]
    if folder:
        assert (INSTALLED / folder).is_dir(), "run `make test-sdk`, which installs it"
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(reversed(paths))}
    return run([sys.executable, str(HERE / "python" / script), url, *words], variables, HERE)


def run_node(script: str, package: str, url: str) -> Any:
    node = shutil.which("node")
    assert node, "node 20 or newer is needed"
    folder = INSTALLED / "node"
    assert (folder / "node_modules").is_dir(), "run `make test-sdk`, which installs it"
    for path in (HERE / "node").glob("*.mjs"):
        shutil.copy(path, folder)
    return run([node, script, url, *([package] if package else [])], dict(os.environ), folder)


def run(command: list[str], variables: dict[str, str], folder: Path) -> Any:
    done = subprocess.run(
        command, env=variables, cwd=folder, capture_output=True, text=True, timeout=CLIENT_SECONDS
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def metric(url: str, name: str) -> float:
    """The sum of all metrics whose names begin so."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def check(url: str, found: dict[str, Any], kind: str, cancelled: float) -> None:
    assert len(found["text"]) > 10
    assert found["text"] == found["stream"] == found["folded"]
    assert found["call"]["stop"] in ("tool_use", "tool_calls", "tool-calls", "tool_call")
    assert isinstance(found["call"]["input"]["city"], str)
    assert found["answer"].strip()
    schema = json.loads(found["schema"])
    assert schema["city"] in CITIES and isinstance(schema["count"], int)
    error = found["error"]
    assert (error["status"], error["kind"]) == (400, kind)
    assert FIELD.search(error["text"]), error
    assert found["idle"], "a cancelled answer still ran"
    assert metric(url, "sublimate_cancelled_in_") > cancelled


@pytest.mark.parametrize(
    ("script", "folder", "kind"), [pytest.param(*c[1:], id=c[0]) for c in PYTHON]
)
def test_a_python_client(url: str, script: str, folder: str, kind: str) -> None:
    before = metric(url, "sublimate_cancelled_in_")
    check(url, run_python(script, folder, url), kind, before)


@pytest.mark.parametrize(
    ("script", "package", "kind"), [pytest.param(*c[1:], id=c[0]) for c in NODE]
)
def test_a_node_client(url: str, script: str, package: str, kind: str) -> None:
    before = metric(url, "sublimate_cancelled_in_")
    check(url, run_node(script, package, url), kind, before)


@pytest.mark.parametrize("framework", [pytest.param(f, id=f"F21-{f}") for f in FRAMEWORKS])
def test_a_framework(url: str, framework: str) -> None:
    found = run_python("openai_frameworks.py", "openai-frameworks", url, framework)
    check_some(found)


@pytest.mark.parametrize(
    ("script", "api"),
    [
        pytest.param("ollama_client.mjs", "", id="F21-ollama"),
        pytest.param("ai_sdk.mjs", "completion", id="F21-vercel-ai-sdk-completion"),
    ],
)
def test_a_node_client_of_less(url: str, script: str, api: str) -> None:
    check_some(run_node(script, api, url))


def check_some(found: dict[str, Any]) -> None:
    """What a client has of it: not all of them force calls or take schemas."""
    assert len(found["text"]) > 10 and found["text"] == found["stream"]
    assert found.get("answer", "said").strip()
    if call := found.get("call"):
        assert call["name"] == "get_weather" and isinstance(call["input"]["city"], str)
    if schema := found.get("schema"):
        value = json.loads(schema)
        assert value["city"] in CITIES and isinstance(value["count"], int)


def test_instructor(url: str) -> None:
    found = run_python("instructor_client.py", "frameworks", url)
    for text in (found["schema"], found["partial"]):
        value = json.loads(text)
        assert value["city"] in CITIES and isinstance(value["count"], int)


def test_nothing_is_left(url: str) -> None:
    wait_until(lambda: metric(url, "sublimate_num_requests_running") == 0)
    wait_until(lambda: metric(url, "sublimate_num_requests_waiting") == 0)
    with contextlib.closing(httpx.Client(base_url=url)) as client:
        assert client.get("/readyz").status_code == 200
