"""locust and k6 against a scripted server: they pass, and they fail when a threshold is broken."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import Served, serve, wait_until
from house import ROOT

pytestmark = pytest.mark.deploy
LOCUSTFILE = ROOT / "deploy" / "locust" / "locustfile.py"
K6 = ROOT / "deploy" / "k6" / "sublimate.ts"
NODE = ROOT / "tests" / "deploy" / "node"
PROFILES = ("low-latency", "high-throughput", "long-context")
LENIENT = ("--first-byte-p99", "8000", "--deviation", "20", "--max-tokens", "8")
SECONDS = 60


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """Ten milliseconds an answer."""
    answers: dict[str, str | bytes] = {"largest": "one two three"}
    with serve(answers=answers, step_delay_us=1000) as server:
        yield server
        wait_until(server.idle)
        assert server.engine.audit() == ""


def run(program: list[str], **variables: str) -> tuple[int, str]:
    """Exit status and what was printed."""
    done = subprocess.run(
        program,
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.returncode, done.stdout


def locust(program: str, url: str, *more: str) -> tuple[int, str]:
    options = ["--headless", "--only-summary", "--host", url, *LENIENT, *more]
    return run([program, "-f", str(LOCUSTFILE), *options])


# ---- locust --------------------------------------------------------------------------------------
def test_locust_passes_a_server_that_does_well(served: Served, tool: Callable[[str], str]) -> None:
    before = served.stats()["finished"]
    code, said = locust(tool("locust"), served.url, "--stages", "1:1s,4:3s")
    assert code == 0, said
    assert "BROKEN" not in said and said.count("holds ") == 4
    rows = dict(re.findall(r"(?m)^(\S+) +(\d+) +0 +[\d.]+ +[\d.]+ +[\d.]+$", said))
    assert set(rows) == set(PROFILES), said
    assert sum(map(int, rows.values())) <= served.stats()["finished"] - before
    waited = served.client.get("/metrics").text
    for profile in PROFILES:
        found = re.findall(
            rf'queue_wait_seconds_count\{{.*profile="{profile}".*\}} ([\d.]+)', waited
        )
        assert float(found[0]) >= int(rows[profile]), "the server was told the profile"


def test_locust_fails_when_a_threshold_is_broken(
    served: Served, tool: Callable[[str], str]
) -> None:
    more = ("--stages", "2:2s", "--api", "openai", "--tags", "low-latency")
    code, said = locust(tool("locust"), served.url, *more, "--first-byte-p99", "0.01")
    assert code == 1, said
    assert re.findall(r"(?m)^BROKEN (.*?):", said) == ["first byte p99, ms"]
    assert re.search(r"(?m)^low-latency +[1-9]", said) and "high-throughput  " not in said


def test_locust_fails_where_nobody_answers(tool: Callable[[str], str]) -> None:
    code, said = locust(tool("locust"), "http://127.0.0.1:9", "--stages", "1:1s")
    assert code == 1, said
    broken = re.findall(r"(?m)^BROKEN (.*?):", said)
    assert broken == ["first byte p99, ms", "failures", "availability", "deviation of p99"]


def test_what_locust_makes_of_streams_and_times(tool: Callable[[str], str]) -> None:
    interpreter = Path(tool("locust")).resolve().parent / "python"
    checks = Path(__file__).with_name("locust_functions.py")
    assert run([str(interpreter), str(checks), str(LOCUSTFILE)]) == (0, "right\n")


# ---- k6 ------------------------------------------------------------------------------------------
def test_the_types_of_the_k6_script_hold(tmp_path: Path) -> None:
    compiler = NODE / "node_modules" / ".bin" / "tsc"
    if not compiler.exists():
        pytest.skip("the compiler is not installed: make test-deploy")
    code, said = run([str(compiler), "-p", str(NODE)])
    assert (code, said) == (0, "")
    wrong = tmp_path / "wrong.ts"
    wrong.write_text(K6.read_text().replace("rate: 1,", "rates: 1,"))
    settings = (NODE / "tsconfig.json").read_text().replace("../../../deploy/k6/sublimate.ts", "W")
    settings = settings.replace('"W"', f'"{wrong}"').replace(
        "./node_modules", f"{NODE}/node_modules"
    )
    (tmp_path / "tsconfig.json").write_text(settings)
    code, said = run([str(compiler), "-p", str(tmp_path)])
    assert code != 0 and "rates" in said


def test_k6_passes_and_fails_as_it_should(served: Served, tool: Callable[[str], str]) -> None:
    command = [tool("k6"), "run", "--quiet", str(K6)]
    common = {"URL": served.url, "STAGES": "1s:2,2s:3", "MAX_TOKENS": "8"}
    code, said = run(command, **common, FIRST_BYTE_P99="8000")
    assert code == 0, said
    assert "BROKEN" not in said and all(f"profile:{profile}" in said for profile in PROFILES)
    code, said = run(command, **common, API="openai", FIRST_BYTE_P99="0.001")
    assert code == 99, said
    assert "BROKEN first_byte p(99)<=0.001" in said and "holds  failures" in said
