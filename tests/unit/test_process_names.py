"""A process may call itself anything: bytes that are no text in another's name are nobody's end."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from sublimate.bench.processes import _family
from sublimate.cli.reload import _edges
from sublimate.kernel.objects import _eldest

NAMED = (
    "import ctypes, sys; ctypes.CDLL(None).prctl(15, bytes([0xd0, 0x20, 0x29])); print(flush=True);"
    "sys.stdin.read()"
)


@pytest.fixture
def stranger() -> Iterator[int]:
    command = [sys.executable, "-c", NAMED]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        with open(f"/proc/{process.pid}/comm", "rb") as comm:
            assert comm.read() == b"\xd0 )\n"
        yield process.pid
        process.kill()


def test_processes_are_found_beside_one_whose_name_is_no_text(stranger: int) -> None:
    assert stranger in {each.pid for each in _family(os.getpid(), "tests")}
    assert _edges(os.getpid()) == set()
    assert _eldest({os.getpid(), stranger}) == {os.getpid()}
