"""Runs every C++ test program. Each tests/cpp/test_*.cpp is one; it exits with 0 when all holds.

SUBLIMATE_BUILD names the build folder: build/wheel by default, build/asan or build/tsan for the
sanitizers.
"""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("SUBLIMATE_BUILD", "build/wheel")
NAMES = sorted(path.stem for path in Path(__file__).parent.glob("test_*.cpp"))
SECONDS_MAX = 300
FORWARD_THREADED = (
    "threads_do_not_change_bits",
    "two_arithmetics_keep_their_bits_in_one_step",
    "decoding_beside_a_prompt_does_not_change_bits",
    "company_does_not_change_bits",
)
"""Those about what threads share: the others compare values, for minutes under ThreadSanitizer."""
FORWARD_SHORT = (*FORWARD_THREADED, "instruction_sets_agree", "variants_do_not_change_bits")
"""Of a minute under AddressSanitizer, half of it spent in the twins."""


def run_program(path: Path, *arguments: str) -> str:
    """The output of a test program; fails the test when the program is missing or fails."""
    assert path.is_file(), f"{path.name} is not built"
    done = subprocess.run(
        [path, *arguments],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SECONDS_MAX,
        cwd=ROOT,
        check=False,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, f"exit {done.returncode}\n{output[-8000:]}"
    return output


def test_there_are_programs() -> None:
    assert NAMES


@pytest.mark.timeout(SECONDS_MAX + 10)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.programs(name)) for name in NAMES]
)
def test_program(name: str) -> None:
    only: tuple[str, ...] = ()
    if name == "test_forward" and BUILD.name == "tsan":
        only = FORWARD_THREADED
    elif name == "test_forward" and BUILD.name == "asan" and os.environ.get("CI"):
        only = FORWARD_SHORT
    assert run_program(BUILD / "cpp_tests" / name, *only) is not None
