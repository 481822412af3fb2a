"""What is committed of the programs for the kernel is what their sources compile to."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "core/bpf/generated"
NAMES = ("connections.lskel.h", "packets.lskel.h", "steering.lskel.h")


def versions() -> str:
    """As generate.sh writes them; empty where a tool is missing."""
    told = ""
    for tool, ask in (("clang", "--version"), ("bpftool", "version")):
        if shutil.which(tool) is None:
            return ""
        said = subprocess.run([tool, ask], capture_output=True, text=True, check=True)
        told += said.stdout.splitlines()[0] + "\n"
    return told


def test_skeletons_are_current(tmp_path: Path) -> None:
    if not Path("/usr/include/bpf/bpf_helpers.h").exists():
        pytest.skip("libbpf's headers are not installed")
    wanted = (COMMITTED / "made-with").read_text()
    if versions() != wanted:
        pytest.skip(f"they are made with {' and '.join(wanted.splitlines())}")
    subprocess.run([ROOT / "core/bpf/generate.sh", tmp_path], check=True)
    stale = [
        name for name in NAMES if (tmp_path / name).read_bytes() != (COMMITTED / name).read_bytes()
    ]
    assert not stale, "run `make bpf` and commit what it writes"


def test_no_program_writes_to_what_it_sees() -> None:
    """R165: they observe and steer. Nothing redirects, changes or drops a byte on its way."""
    sources = sorted((ROOT / "core/bpf").glob("*.bpf.c"))
    assert [path.name for path in sources] == ["connections.bpf.c", "steering.bpf.c"]
    for source in sources:
        text = source.read_text()
        for forbidden in ("redirect", "SOCKMAP", "SOCKHASH", "store_bytes", "SK_DROP"):
            assert forbidden not in text, f"{source.name}: {forbidden}"
