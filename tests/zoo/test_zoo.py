"""Each broken file gets one line that says why, whatever reads it, at little cost.

Cases that begin with R are of cases/reliability.jsonl.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from animals import ANIMALS
from house import ROOT
from keeper import WAYS, Seen

PEAK_BYTES_MAX = 200_000_000
CPU_SECONDS_MAX = 2.0
ANIMALS_MIN = 60


def environment() -> dict[str, str]:
    folders = [str(Path(__file__).parent), *(path for path in sys.path if path)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "NO_COLOR": "1"}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """What the keeper saw, by name."""
    keeper = Path(__file__).with_name("keeper.py")
    done = subprocess.run(
        [sys.executable, str(keeper), str(tmp_path_factory.mktemp("zoo"))],
        capture_output=True,
        env=environment(),
        cwd=ROOT,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]
    lines = done.stdout.splitlines()
    return {one.name: one for one in map(msgspec.json.Decoder(Seen).decode, lines)}


def test_there_are_enough() -> None:
    assert len(ANIMALS) >= ANIMALS_MIN


@pytest.mark.timeout(250)
@pytest.mark.parametrize("name", ANIMALS)
def test_a_broken_file_gets_one_line_that_says_why(seen: dict[str, Seen], name: str) -> None:
    animal, one = ANIMALS[name], seen[name]
    assert one.status == 0, f"it ended with the status {one.status}"
    assert set(one.ways) == set(WAYS)
    for way, said in one.ways.items():
        assert said.code != 1, "\n".join(said.reasons)
        told = [line for line in said.reasons if line]
        if way == "show" and animal.to_serve:
            assert said.code == 0 and not told, "there is nothing wrong with it"
            continue
        if way == "engine" and animal.of_text:
            assert said.code == 0, told
            continue
        assert len(told) == 1 or (way == "show" and said.code == 0), (way, told)
        assert any(re.search(animal.says, line) for line in told), (way, told)
        assert all(line.isprintable() for line in told), (way, told)
        assert way == "show" or said.code in (3, 4), (way, said.code)
    assert one.peak_bytes < PEAK_BYTES_MAX
    assert one.cpu_seconds < CPU_SECONDS_MAX


@pytest.mark.parametrize(
    ("name", "code"),
    [("cut_in_the_data", 3), ("template_unreadable", 3), ("more_layers", 4), ("pipe", 3)],
)
def test_serve_ends_with_that_line(tmp_path: Path, name: str, code: int) -> None:
    """The whole command, with its processes: what the header, the edge and the engine refuse."""
    model = ANIMALS[name].make(tmp_path)
    command = [sys.executable, "-m", "sublimate", "serve", "--port", "0", "--model", model]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=environment(),
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert len(errors) == 1 and re.search(ANIMALS[name].says, errors[0]), done.stderr
