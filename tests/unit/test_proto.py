"""The committed modules of proto/ are those that `make proto` makes of it."""

import subprocess
import sys
from pathlib import Path

import pytest

import house

PROTOS = [path for path in house.tracked_files() if path.endswith(".proto")]
MADE = ("_pb2.py", "_pb2.pyi")


def test_there_are_protos() -> None:
    assert "proto/sublimate/v1/frames.proto" in PROTOS


def test_generated_modules_are_current(tmp_path: Path) -> None:
    compiler = [sys.executable, "-m", "grpc_tools.protoc", "-I", "proto"]
    into = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    subprocess.run([*compiler, *into, *PROTOS], cwd=house.ROOT, check=True)
    for path in sorted(tmp_path.rglob("*_pb2.py*")):
        committed = Path("src") / path.relative_to(tmp_path)
        same = (house.ROOT / committed).read_text() == path.read_text()
        assert same, f"{committed}: run `make proto`"


@pytest.mark.parametrize("suffix", MADE)
def test_each_proto_has_its_modules_and_no_module_is_left_over(suffix: str) -> None:
    expected = {path.replace("proto/", "src/", 1).replace(".proto", suffix) for path in PROTOS}
    generated = [path for path in house.tracked_files() if path.startswith(house.GENERATED)]
    assert {path for path in generated if path.endswith(suffix)} == expected
