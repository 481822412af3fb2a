"""The comparison with peers: arithmetic, commands, and whole runs against small stand-ins."""

import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import client
import house
import peer_servers
import shapes
import subjects
from picture import draw
from sublimate.bench.load import Round, Sample
from summary import FIGURES, OURS, Record, summarise, to_markdown
from window import rates

COMMAND = house.ROOT / "bench" / "versus"


def record(number: int, subject: str, **figures: float) -> Record:
    return Record(round=number, section="engine", subject=subject, figures=figures)


# ---- arithmetic ---------------------------------------------------------------------------------
def test_rates_count_only_what_all_streams_ran_together() -> None:
    first = [1.0, 2.0, 3.0, 4.0, 5.0]
    second = [2.0, 3.0, 4.0, 5.0, 6.0]
    found = rates([first, second], 100)
    assert found["prefill"] == 200 / 2.0
    assert found["all"] == 10 / 6.0
    assert found["decode"] == 6 / 3.0  # three tokens of each in (2, 5]


def test_streams_that_never_ran_together_have_no_decode_rate() -> None:
    assert "decode" not in rates([[1.0, 2.0], [2.0, 3.0]], 10)
    assert "decode" not in rates([[1.0]], 10)


def test_the_engine_is_asked_for_every_shape() -> None:
    asked: list[tuple[int, int, int]] = []

    def run(streams: int, prompt: int, generate: int) -> dict[str, float]:
        asked.append((streams, prompt, generate))
        return {"prefill": 1.0 * prompt, "decode": 2.0 * streams, "all": 3.0 * streams}

    figures = shapes.engine_figures(run, quick=False)
    assert asked[1:] == [(1, 512, 1), (1, 2048, 1), (1, 128, 64), (32, 128, 64)]
    assert figures == {
        "prefill_512": 512,
        "prefill_2048": 2048,
        "decode_1": 2,
        "decode_32": 64,
        "generate_32": 96,
    }
    assert set(shapes.engine_figures(run, quick=True)) == {"prefill_512", "decode_1"}


def test_ratios_pair_the_rounds_and_know_which_way_is_better() -> None:
    records = [
        record(0, OURS, decode_1=300, served_1_first_ms=10),
        record(1, OURS, decode_1=100, served_1_first_ms=20),
        record(0, "peer", decode_1=100, served_1_first_ms=40),
        record(1, "peer", decode_1=50, served_1_first_ms=20),
        record(2, "peer", decode_1=60),
    ]
    lines = {(line.figure, line.subject): line for line in summarise(records)}
    peer = lines["decode_1", "peer"]
    assert (peer.median, peer.least, peer.greatest, peer.rounds) == (60, 50, 100, 3)
    assert peer.ratios == [3, 2]
    assert lines["served_1_first_ms", "peer"].ratios == [4, 1]
    assert lines["decode_1", OURS].ratios == []


def test_the_table_has_a_row_per_figure_and_subject() -> None:
    rows = to_markdown(summarise([record(0, OURS, decode_1=1234.5), record(0, "p", decode_1=617)]))
    assert "| engine | decode, 1 stream after 128 tokens | sublimate | 1,234 tok/s" in rows
    assert "| 2.00 (2.00 to 2.00) |" in rows
    assert len(rows.splitlines()) == 4


def test_the_picture_is_well_formed_and_holds_every_bar() -> None:
    from xml.etree import ElementTree

    records = [record(0, OURS, decode_1=10, kept=0.5), record(0, "a<b", decode_1=5, kept=0.0)]
    picture = ElementTree.fromstring(draw(summarise(records)))  # noqa: S314 - made here
    bars = [e for e in picture if e.get("class") in ("ours", "peer")]
    assert len(bars) == 4
    assert float(bars[0].get("width", 0)) == 2 * float(bars[1].get("width", 0)) > 0


def sample(tokens: int = 5, error: str = "") -> Sample:
    return Sample(
        first_token_ms=10.0,
        last_token_ms=50.0,
        gaps_ms=[10.0, 30.0],
        tokens=tokens,
        input_tokens=130,
        claimed_tokens=tokens,
        error=error,
    )


def test_a_round_of_unequal_lengths_has_no_figures() -> None:
    good = client.figures(Round(samples=[sample(), sample()], wall_seconds=2.0), 5)
    assert good == {
        "tok_s": 5,
        "first_ms": 10,
        "prompt_tokens": 130,
        "token_ms": 10,
        "largest_gap_ms": 30,
    }
    for wrong in (sample(tokens=4), sample(tokens=0, error="broken")):
        with pytest.raises(SystemExit, match="1 of 2 streams"):
            client.figures(Round(samples=[sample(), wrong], wall_seconds=2.0), 5)


# ---- commands -----------------------------------------------------------------------------------
PEERS = subjects.Peers(
    model="m.gguf",
    threads=2,
    llama="/l",
    openvino="/o/python",
    openvino_models=["/m/int4", "/m/int8"],
    vllm="/v/vllm",
    vllm_model="/m/bf16",
)


def test_peers_without_a_path_are_not_asked() -> None:
    alone = subjects.Peers(model="m.gguf", threads=2)
    assert {job.subject for job in subjects.engine_jobs(alone)} == {OURS}
    assert alone.missing == ["llama.cpp", "openvino", "vllm"] and PEERS.missing == []
    everyone = [job.subject for job in subjects.engine_jobs(PEERS)]
    assert list(dict.fromkeys(everyone)) == [OURS, "llama.cpp", "int4", "int8"]


def test_figures_of_llama_programs_get_our_names() -> None:
    jobs = [job for job in subjects.engine_jobs(PEERS) if job.subject == "llama.cpp"]
    prefill, decode, batched = jobs
    assert prefill.read(
        '[{"n_prompt": 512, "n_gen": 0, "avg_ts": 7.5}, '
        '{"n_prompt": 2048, "n_gen": 0, "avg_ts": 6.5}]'
    ) == {"prefill_512": 7.5, "prefill_2048": 6.5}
    assert decode.read('[{"n_prompt": 0, "n_gen": 64, "avg_ts": 3}]') == {"decode_1": 3}
    row = '{"pl": 32, "tg": 64, "speed_tg": 9.0, "t": 8.0}'
    assert batched.read(f"\n{row}\n") == {"decode_32": 9, "generate_32": 256}


def test_every_served_figure_has_a_title() -> None:
    for section in ("served", "interference"):
        for subject in (OURS, subjects.LLAMA, subjects.VLLM):
            steps = subjects.served_steps(PEERS, section, subject, "http://h")
            named = [name for names, _ in steps for name in names.values()]
            assert named and all(n in FIGURES or n.startswith("first_") for n in named)
            wanted = "messages" if subject == OURS else "openai"
            assert all(command[command.index("--api") + 1] == wanted for _, command in steps)


def test_vllm_is_known_by_what_its_server_shows() -> None:
    shown = {"first_512_ms": 256.0, "first_2048_ms": 2048.0, "served_1_token_ms": 20.0}
    wanted = {"prefill_512": 2000, "prefill_2048": 1000, "decode_1": 50}
    assert subjects.vllm_engine(shown) == wanted


# ---- servers ------------------------------------------------------------------------------------
SERVER = """
import http.server, sys, threading
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("content-length", "0"); self.end_headers()
    def log_message(self, *_): pass
def spin():
    while True: pass
if "spin" in sys.argv: threading.Thread(target=spin, daemon=True).start()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[SimpleNamespace]:
    started: list[peer_servers.Server] = []

    def start(*flags: str) -> peer_servers.Server:
        command = [sys.executable, "-c", SERVER, "{port}", *flags]
        # The program's own braces are none to fill in.
        command[2] = command[2].replace("{", "{{").replace("}", "}}")
        started.append(peer_servers.Server("s", command, {}, tmp_path / "log"))
        started[-1].wait_ready("/health")
        return started[-1]

    yield SimpleNamespace(start=start)
    for server in started:
        server.stop()
        assert peer_servers.session_pids(server.session) == []


def wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def state(server: peer_servers.Server) -> str:
    return Path(f"/proc/{server.session}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_server_that_rests_goes_on_and_one_that_spins_is_stopped(
    serving: SimpleNamespace,
) -> None:
    quiet, spinning = serving.start(), serving.start("spin")
    spinning.rest()
    assert spinning.idle_share > peer_servers.IDLE_SHARE_MAX
    wait_for(lambda: state(spinning) == "T")
    spinning.resume()
    wait_for(lambda: state(spinning) != "T")

    def rests() -> bool:  # on a slow machine it may still be starting
        quiet.resume()
        quiet.rest()
        return quiet.idle_share <= peer_servers.IDLE_SHARE_MAX

    wait_for(rests)
    assert state(quiet) == "S"


def test_a_server_that_ends_at_once_is_reported(tmp_path: Path) -> None:
    server = peer_servers.Server("s", [sys.executable, "-c", "exit(3)"], {}, tmp_path / "log")
    with pytest.raises(RuntimeError, match="s ended with 3"):
        server.wait_ready("/health")
    server.stop()


# ---- whole runs ---------------------------------------------------------------------------------
def versus(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(part for part in sys.path if part)
    return subprocess.run(
        [sys.executable, str(COMMAND), *arguments],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path},
    )


def program(folder: Path, name: str, output: str, code: int = 0) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{output}'\nexit {code}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_rounds_are_appended_and_summarised(tmp_path: Path) -> None:
    rows = '[{"n_prompt": 512, "n_gen": 0, "avg_ts": 7}, {"n_gen": 64, "avg_ts": 3}]'
    program(tmp_path, "llama-bench", rows)
    program(tmp_path, "llama-batched-bench", '{"pl": 32, "tg": 64, "speed_tg": 9, "t": 8}')
    records, picture, table = (tmp_path / name for name in ("records", "p.svg", "table.json"))
    common = ["--records", str(records), "--model", "m", "--llama", str(tmp_path)]
    only = ["--sections", "engine", "--subjects", "llama.cpp", "--picture", str(picture)]
    assert versus(*common, *only, "--rounds", "2").returncode == 0
    later = ["--rounds", "1", "--first-round", "2", "--wrap", "env", "--json", str(table)]
    done = versus(*common, *only, *later)
    assert "| engine | prefill, 512 tokens | llama.cpp | 7 tok/s (7 to 7) | 3 |" in done.stdout
    assert "not compared, no path given: openvino" in done.stderr
    lines = {line["figure"]: line for line in msgspec.json.decode(table.read_bytes())}
    assert lines["decode_1"]["median"] == 3 and lines["generate_32"]["rounds"] == 3
    rounds = [msgspec.json.decode(line)["round"] for line in records.read_bytes().splitlines()]
    assert rounds == [0, 1, 2] and picture.read_text().startswith("<svg")


def test_a_command_that_fails_is_a_record_and_the_run_goes_on(tmp_path: Path) -> None:
    program(tmp_path, "llama-bench", "no such model", code=1)
    records = tmp_path / "records"
    arguments = ["--records", str(records), "--model", "m", "--llama", str(tmp_path)]
    done = versus(*arguments, "--sections", "engine", "--subjects", "llama.cpp", "--rounds", "2")
    assert done.returncode == 0
    assert "round 1, engine, llama.cpp: llama-bench ended with 1" in done.stdout
    found = [msgspec.json.decode(line) for line in records.read_bytes().splitlines()]
    assert [one["figures"] for one in found] == [{}, {}]


def test_an_unknown_section_is_refused(tmp_path: Path) -> None:
    done = versus("--records", str(tmp_path / "r"), "--sections", "engines")
    assert done.returncode == 2 and "unknown sections: engines" in done.stderr
