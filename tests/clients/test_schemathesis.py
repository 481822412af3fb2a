"""No request that the OpenAPI document allows, and few that it forbids, gets a 5xx.

SUBLIMATE_EXAMPLES: requests tried for each operation, besides those that cover its schema.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import msgspec
import pytest
from servers import Server

from house import ROOT
from sublimate import _core
from sublimate.config import Settings, cache_folder
from sublimate.model.files import fetch

pytestmark = [pytest.mark.sdk, pytest.mark.timeout(1800)]

PACKAGES = ROOT / ".venv" / "clients" / "schemathesis"
EXAMPLES = os.environ.get("SUBLIMATE_EXAMPLES", "5")
ANSWER = [1000 + index % 500 for index in range(40)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose model costs nothing: every answer is the same."""
    file = fetch("default", cache_folder(Settings()))
    vocabulary = len(_core.Gguf(str(file.path)).metadata["tokenizer.ggml.tokens"])
    script = tmp_path_factory.mktemp("script") / "script.json"
    script.write_bytes(msgspec.json.encode({"answers": [[[], ANSWER]], "vocabulary": vocabulary}))
    command = ["-m", "sublimate", "serve", "--port", "0", "--json", "--log-level", "error"]
    with Server([*command, "--script", str(script)]) as running:
        yield running.event("ready", 60)["url"]


def test_no_request_is_a_5xx(url: str, tmp_path: Path) -> None:
    document = httpx.get(f"{url}/openapi.json").json()
    for schema in document["components"]["schemas"].values():
        if "model" in schema.get("properties", {}):  # else nearly every request would be a 404
            schema["properties"]["model"] = {"type": "string", "enum": ["default"]}
    del document["paths"]["/v1/debug/events"]  # a stream that does not end by itself
    path = tmp_path / "openapi.json"
    path.write_bytes(msgspec.json.encode(document))
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"),
            *("run", str(path), "--url", url, "--checks", "not_a_server_error", "--no-color"),
            *("--phases", "examples,coverage,fuzzing", "--generation-deterministic"),
            *("--max-examples", EXAMPLES, "--request-timeout", "20"),
        ],
        env={**os.environ, "PYTHONPATH": str(PACKAGES)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert httpx.get(f"{url}/readyz").status_code == 200
