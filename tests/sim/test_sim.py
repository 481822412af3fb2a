"""Short runs of the simulator: the real loop, a virtual clock, a model that hashes its context.

The long run is `make sim ARGS="--seeds 200000"`; a failing seed prints the command that replays it.
"""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("SUBLIMATE_BUILD", "build/wheel")
SANITIZED = "SUBLIMATE_BUILD" in os.environ
SECONDS_MAX = 600
SEEDS = 100 if SANITIZED else 4000
PLANTED_SEEDS = 2000

pytestmark = pytest.mark.programs("simulators")


def simulate(program: str, *arguments: str) -> str:
    """The output of a run; fails the test when something did not hold."""
    path = BUILD / "simulators" / program
    assert path.is_file(), f"{program} is not built"
    command = [path, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS_MAX, cwd=ROOT, check=False
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return done.stdout


@pytest.mark.timeout(SECONDS_MAX + 10)
def test_no_seed_fails() -> None:
    assert simulate("sublimate_sim", "--seeds", str(SEEDS), "--steps", "200")


@pytest.mark.skipif(SANITIZED, reason="a planted fault may be a memory error")
@pytest.mark.timeout(SECONDS_MAX + 10)
def test_every_planted_fault_is_seen() -> None:
    """At least twenty of them, each within 2,000 seeds: the simulator can tell right from wrong."""
    faults = simulate("sublimate_sim_faults", "--list-faults").split()
    assert len(faults) >= 20
    simulate("sublimate_sim_faults", "--planted", "--seeds", str(PLANTED_SEEDS))
