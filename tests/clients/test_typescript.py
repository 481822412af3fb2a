"""The TypeScript client: its own tests, under Node and in Chromium, against a scripted server."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cases_tools import thinking_model
from harness import ANSWERS, serve
from house import ROOT
from test_blocks_served import ANSWERS as CALLS

PACKAGE = ROOT / "clients" / "typescript"
pytestmark = pytest.mark.typescript
THOUGHTS: dict[str, str | bytes] = {"ferret": "<think>\nHm, 2?\n</think>\n\nTwo."}


def test_the_client_against_a_server() -> None:
    node = shutil.which("node")
    assert node, "node 20 or newer is needed"
    answers = {**ANSWERS, **CALLS, **THOUGHTS}
    with serve(
        answers=answers, model=thinking_model(), constrains=False, step_delay_us=200
    ) as served:
        tests = sorted(map(str, (PACKAGE / "test").glob("*.test.mjs")))
        done = subprocess.run(
            [node, "--test", "--test-reporter=tap", *tests],
            cwd=PACKAGE,
            env={**os.environ, "SUBLIMATE_URL": served.url},
            capture_output=True,
            text=True,
            timeout=110,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr
        assert int(re.findall(r"(?m)^# pass (\d+)$", done.stdout)[0]) >= 20
        if Path("/usr/bin/chromium").exists():
            assert re.findall(r"(?m)^# skipped (\d+)$", done.stdout) == ["0"], "Chromium ran too"
        served.call(lambda: None)
        assert served.idle() and served.engine.audit() == ""


def test_generated_types_are_current(tmp_path: Path) -> None:
    plugin = PACKAGE / "node_modules" / ".bin" / "protoc-gen-es"
    compiler = [sys.executable, "-m", "grpc_tools.protoc", "-I", "proto"]
    options = [f"--plugin=protoc-gen-es={plugin}", f"--es_out={tmp_path}"]
    options.append("--es_opt=target=ts,import_extension=js")
    proto = "proto/sublimate/v1/frames.proto"
    subprocess.run([*compiler, *options, proto], cwd=ROOT, check=True)
    made = next(tmp_path.rglob("*_pb.ts"))
    committed = PACKAGE / "src" / "gen" / made.relative_to(tmp_path)
    assert committed.read_text() == made.read_text(), "run `make proto-typescript`"
