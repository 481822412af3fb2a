"""The four figures: their arithmetic, tables and picture; what wrong options are told; and a short
run of each against servers of one's own."""

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import house
from sublimate.bench import tax_engine, tax_ledger
from sublimate.bench.figures import Spread
from sublimate.bench.http import Exchange
from sublimate.bench.picture import draw
from sublimate.bench.tax import Plan, Tail, Workbench, numbered
from sublimate.bench.tax_ceiling import OURS, TWIN, Ceiling, Idle, measure_ceiling, without_engine
from sublimate.bench.tax_engine import Side, Tax, Waves, ratios
from sublimate.bench.tax_interference import Interference, fair_share, measure_interference
from sublimate.bench.tax_ledger import Ledger, Stage, measure_ledger
from sublimate.bench.tax_report import Report, tables
from sublimate.config import Settings, cache_folder
from sublimate.edge.observe.timing import STAGES
from sublimate.engine.inprocess import Engine
from sublimate.engine.results import Completion
from sublimate.errors import ConfigError, EngineError, ModelError
from sublimate.model.files import fetch
from test_cli import run

SVG = "{http://www.w3.org/2000/svg}"


def plan(**changes: Any) -> Plan:
    small: dict[str, Any] = {
        "model_path": "m.gguf",
        "model_name": "m",
        "engine": {"kv_memory": 256 << 20},
        "figures": (1, 2, 3, 4),
        "prompt_tokens": 16,
        "generate_tokens": 6,
        "rounds": 1,
        "seconds": 0.2,
        "ceiling_concurrencies": (1, 3),
        "tax_concurrencies": (2,),
        "interference_concurrency": 2,
        "busy_processes": 1,
        "twin": None,
        "seed": 1,
    }
    return Plan(**{**small, **changes})


# ---- arithmetic --------------------------------------------------------------------------------
def test_the_tax_is_a_ratio_quantile_by_quantile() -> None:
    tax = ratios(Tail(11.0, 20.0, 30.0), Tail(10.0, 20.0, 40.0))
    assert (tax.p50, tax.p99, tax.p999) == (pytest.approx(0.1), 0.0, -0.25)
    assert ratios(Tail(1, 1, 1), Tail(0, 0, 0)) == Tail(0, 0, 0)


def frame(text: str = "", **fields: Any) -> bytes:
    event = {"type": "content_block_delta", "delta": {"text": text}, **fields}
    return b"data: " + msgspec.json.encode(event) + b"\n\n"


def answer(tokens: int, begin: float, gap: float, request_id: str = "") -> Exchange:
    """A stream of one word a token; the first at `begin` seconds, then every `gap`."""
    arrivals = [(begin + n * gap, frame(" w")) for n in range(tokens)]
    usage = {"output_tokens": tokens, "input_tokens": 5, "cache_read_input_tokens": 2}
    arrivals.append((arrivals[-1][0], frame(usage=usage)))
    return Exchange(started_seconds=0.0, status=200, request_id=request_id, arrivals=arrivals)


def test_a_side_counts_tokens_and_takes_times_from_sending() -> None:
    answers = [answer(5, 0.1, 0.01), answer(5, 0.3, 0.03)]
    side = tax_engine.side_of_answers(answers, lambda text: len(text.split()), 5)
    assert (side.requests, side.tokens, side.cached_tokens) == (2, 10, 2)
    assert side.first_token_ms.p50 == pytest.approx(200)
    assert side.per_token_ms.p50 == pytest.approx(20)
    assert side.gap_ms.p999 == pytest.approx(30, abs=0.1)
    with pytest.raises(EngineError, match="5 tokens"):
        tax_engine.side_of_answers(answers, len, 6)
    broken = Exchange(started_seconds=0.0, status=500, arrivals=[(1.0, b"no")])
    with pytest.raises(EngineError, match="500"):
        tax_engine.side_of_answers([broken], len, 5)


def test_the_engines_own_side_takes_the_clock_of_its_records() -> None:
    one = Completion(
        token_ids=[1, 2, 3],
        text=None,
        finish_reason="max_tokens",
        logprobs=[],
        prompt_tokens=4,
        cached_tokens=1,
        first_token_seconds=0.05,
        total_seconds=0.2,
        arrivals_seconds=[0.05, 0.15],
    )
    side = tax_engine.side_of_completions([one])
    assert side.first_token_ms.p50 == pytest.approx(50)
    assert side.per_token_ms.p50 == pytest.approx(50), "two further tokens in 100 ms"
    assert side.gap_ms.p50 == pytest.approx(100) and side.tokens == 3


def test_waves_of_few_are_more() -> None:
    assert [tax_engine.wave_count(n, 2) for n in (1, 8, 16, 32)] == [32, 4, 2, 2]


@pytest.mark.parametrize(
    ("demand", "others", "cores", "share"),
    [
        ([1.0, 1.0], [1.0, 1.0], 2, 0.5),
        ([1.0, 1.0], [], 2, 1.0),
        ([0.5], [1.0], 2, 1.0),
        ([1.0, 1.0], [1.0], 2, 2 / 3),
        # The small one keeps what it asks for; the others share what is left.
        ([1.0, 0.2], [1.0], 2, (0.9 + 0.2) / 1.2),
        ([], [1.0, 1.0, 1.0], 2, 1.0),
    ],
)
def test_a_fair_share(demand: list[float], others: list[float], cores: int, share: float) -> None:
    assert fair_share(demand, others, cores) == pytest.approx(share)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6), st.integers(0, 6), st.integers(1, 4))
def test_a_fair_share_uses_the_cores_up(demand: list[float], busy: int, cores: int) -> None:
    share = fair_share(demand, [1.0] * busy, cores)
    assert 0 < share <= 1
    got = share * sum(demand)
    assert got <= cores + 1e-9
    if sum(demand) + busy <= cores:
        assert share == 1
    assert share >= fair_share(demand, [1.0] * (busy + 1), cores) - 1e-12


def test_a_machine_without_cores_is_a_bug() -> None:
    with pytest.raises(ValueError):
        fair_share([1.0], [], 0)
    with pytest.raises(ValueError):
        fair_share([-1.0], [], 1)


def test_nothing_has_no_figures(report: Report) -> None:
    with pytest.raises(EngineError, match="without answers"):
        tax_engine.side_of_answers([], len, 0)
    with pytest.raises(EngineError, match="needs an answer"):
        measure_ledger([Waves(1, [])], [], lambda text: None)
    empty = msgspec.structs.replace(report, ceiling=[], tax=[], ledger=[], interference=[])
    with pytest.raises(ValueError, match="no figure"):
        draw(empty)
    for bodies in ([], [b"no mark"], [b"twice 000 000"]):
        with pytest.raises(ValueError, match="one place"):
            next(numbered(bodies, b"000"))


def test_numbered_bodies_differ_and_keep_their_length() -> None:
    source = numbered([b"a000000000b", b"c000000000d"], b"000000000")
    bodies = [next(source) for _ in range(100)]
    assert len(set(bodies)) == 100 and {len(body) for body in bodies} == {11}


# ---- the ledger --------------------------------------------------------------------------------
def log_line(request_id: str, stages: dict[str, float]) -> bytes:
    return msgspec.json.encode(
        {"request_id": request_id, "stages_ms": stages, "first_way_ms": 0.5, "status": 200}
    )


def test_a_ledger_that_adds_up() -> None:
    stages = dict.fromkeys(STAGES, 10.0)
    wave = Waves(1, [answer(3, 0.071, 0.02, "req_1")])
    lines = [b"no json", log_line("req_0", {}), log_line("req_1", stages)]
    (ledger,) = measure_ledger([wave], lines, lambda text: None)
    assert [stage.name for stage in ledger.stages] == list(STAGES)
    assert ledger.end_to_end_ms == pytest.approx(111)
    assert ledger.residue == pytest.approx(1 / 111) == ledger.residue_worst
    assert ledger.adds_up and ledger.within == 1
    assert ledger.first_token_ms == pytest.approx(71)
    assert ledger.first_token_stages_ms == pytest.approx(70.5)


def test_a_ledger_that_does_not_is_told() -> None:
    stages = dict.fromkeys(STAGES, 5.0)
    wave = Waves(1, [answer(3, 0.071, 0.02, "req_1")])
    (ledger,) = measure_ledger([wave], [log_line("req_1", stages)], lambda text: None)
    assert not ledger.adds_up and ledger.residue > 0.4 and ledger.within == 0
    with pytest.raises(EngineError, match="no stages of req_1"):
        measure_ledger([wave], [], lambda text: None)


def test_stages_of_the_ledger_are_those_of_the_edge() -> None:
    assert set(STAGES) > tax_ledger.TO_FIRST_TOKEN


# ---- tables and picture ------------------------------------------------------------------------
def ceiling(server: str, concurrency: int) -> Ceiling:
    engine = {"engine": 20.0} if server == OURS else {}
    costs = {"edge": 9.0, **engine, "total": 9.0 + sum(engine.values())}
    return Ceiling(
        server=server,
        concurrency=concurrency,
        rounds=2,
        requests_per_s=Spread(900.0, 800.0, 1000.0),
        request_us=costs,
        tokens_per_s=Spread(5e4, 4e4, 6e4),
        tokens_per_event=1.5,
        token_us=costs,
        event_us=costs,
        event_spread_us=Spread(9.0, 8.0, 10.0),
        paced_events_per_s=200.0,
        client_cores=0.2,
    )


def side(factor: float = 1.0) -> Side:
    return Side(
        first_token_ms=Tail(80 * factor, 90.0, 99.0),
        per_token_ms=Tail(3.0, 4.0, 5.0),
        gap_ms=Tail(3.0, 9.0, 27.0),
        requests=16,
        tokens=1024,
        cached_tokens=0.0,
    )


def interference(server: str) -> Interference:
    return Interference(
        server=server,
        concurrency=8,
        busy_processes=2,
        cores=2,
        quiet_tokens_per_s=Spread(500.0, 490.0, 510.0),
        busy_tokens_per_s=Spread(250.0, 240.0, 260.0),
        kept=0.5,
        fair_share=0.52,
        kept_of_fair_share=0.96,
        cpu_kept=0.5,
        first_token_p50_ratio=2.0,
        first_token_p99_ratio=2.5,
        quiet_first_token_p99_ms=100.0,
        busy_first_token_p99_ms=250.0,
    )


@pytest.fixture
def report() -> Report:
    tax = Tax(
        concurrency=1,
        prompt_tokens=146.0,
        generate_tokens=64,
        first_token=Tail(0.02, 0.01, -0.01),
        per_token=Tail(0.027, 0.0, 0.0),
        gap=Tail(0.0, 0.0, 1.0),
        server=side(1.02),
        in_process=side(),
        peer=side(3.0),
    )
    stages = [Stage(name=name, mean_ms=10.0**n / 1e5, share=0.1) for n, name in enumerate(STAGES)]
    ledger = Ledger(
        concurrency=1,
        requests=16,
        stages=stages,
        end_to_end_ms=350.0,
        residue=0.0006,
        residue_worst=-0.0017,
        adds_up=True,
        within=1.0,
        first_token_ms=96.5,
        first_token_stages_ms=96.2,
        first_way_ms=0.4,
    )
    return Report(
        version="0",
        cpu="A <CPU> & more",
        cores=2,
        model="m",
        engine={"isa": "avx512"},
        prompt_tokens=128,
        generate_tokens=64,
        rounds=2,
        ceiling=[ceiling(name, n) for n in (1, 512) for name in (OURS, TWIN)],
        idle=Idle(cpu_share=0.0003, native_ns_per_token=295.0),
        tax=[tax],
        ledger=[ledger],
        interference=[interference(OURS), interference("http://127.0.0.1:8080")],
    )


def shown(report: Report, width: int = 100) -> str:
    file = io.StringIO()
    console = Console(width=width, file=file)
    for table in tables(report):
        console.print(table)
    return file.getvalue()


def test_tables_say_what_was_found(report: Report) -> None:
    text = shown(report)
    for words in (
        "9 (20)",
        "0.03% of a core",
        "295 ns",
        "+2.0%",
        "peer",
        "residue",
        "yes",
        "96.0%",
    ):
        assert words in text, words
    for number in (1, 2, 3, 4):
        assert f"{number}. " in text
    assert without_engine({"edge": 1.0, "engine": 2.0, "total": 3.0}) == 1.0


def test_json_comes_back_as_it_went(report: Report) -> None:
    raw = msgspec.json.encode(report)
    assert msgspec.json.decode(raw, type=Report) == report


def test_the_picture_is_whole(report: Report) -> None:
    root = ElementTree.fromstring(draw(report))  # noqa: S314 - our own
    words = ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]
    assert any("A <CPU> & more" in text for text in words)
    for expected in ("512 at once, uvicorn", "+2.0%", "first token", "peer, kept", "50%"):
        assert expected in words, expected
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for rectangle in root.iter(f"{SVG}rect"):
        right = float(rectangle.attrib["x"]) + float(rectangle.attrib["width"])
        bottom = float(rectangle.attrib["y"]) + float(rectangle.attrib["height"])
        assert right <= width and bottom <= height and float(rectangle.attrib["width"]) > 0
    style = root.find(f"{SVG}style")
    assert style is not None and "prefers-color-scheme: dark" in (style.text or "")


def test_the_picture_of_a_part(report: Report) -> None:
    whole = draw(report)
    part = draw(msgspec.structs.replace(report, ceiling=[], tax=[], ledger=[]))
    assert "Throughput kept" in part and "mock engine" not in part and len(part) < len(whole)
    none = Report(**{**msgspec.structs.asdict(report), "interference": [], "tax": [], "ledger": []})
    assert "mock engine" in draw(none)
    assert list(tables(msgspec.structs.replace(none, ceiling=[]))) == []


# ---- options -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"figures": (1, 5)}, "--figure 5: there are 1 "),
        ({"figures": ()}, "--figure"),
        ({"ceiling_concurrencies": ()}, "--ceiling"),
        ({"tax_concurrencies": (1, 99999)}, "--concurrency 99999: at most"),
        ({"prompt_tokens": 3}, "--prompt 3: at least 16"),
        ({"generate_tokens": 1}, "--generate 1: at least 2"),
        ({"rounds": 0}, "--rounds 0"),
        ({"seconds": 0.0}, "--seconds"),
        ({"busy_processes": -1}, "--busy"),
        ({"interference_concurrency": 0}, "--streams"),
        ({"twin": Path("absent.py")}, "--twin absent.py: there is no such file"),
    ],
)
def test_a_plan_that_cannot_be_is_told(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        plan(**changes)


def test_a_model_that_is_none_is_told(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"no model")
    with pytest.raises(ModelError, match=r"m\.gguf"):
        Workbench(plan(model_path=str(path)))


@pytest.fixture(scope="session")
def model() -> str:
    return str(fetch("default", cache_folder(Settings())).path)


def test_the_command_tells_wrong_options(model: str) -> None:
    named = ("tax", "--model", model)
    assert "--figure 9" in run(*named, "--figure", "9", code=2).stderr
    assert "--ceiling = '1,x'" in run(*named, "--ceiling", "1,x", code=2).stderr
    assert "--peer-url" in run(*named, "--peer-api", "openai", code=2).stderr
    wrong = run(*named, "--peer-url", "http://127.0.0.1:1", "--peer-api", "opnai", code=2)
    assert "Did you mean 'openai'?" in wrong.stderr
    assert "Nothing answers" in run(*named, "--peer-url", "http://127.0.0.1:1", code=6).stderr
    assert "--out" in run(*named, "--out", model + "/x", code=2).stderr
    help_text = run("tax", "--help").stdout
    assert all(words in help_text for words in ("--peer-url", "--figure", "ledger", "--out"))


# ---- short runs --------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def bench(model: str) -> Workbench:
    return Workbench(plan(model_path=model, twin=house.ROOT / "bench/uvicorn_twin.py"))


def test_the_ceiling_of_both_servers(bench: Workbench) -> None:
    pytest.importorskip("uvicorn")
    notes: list[str] = []
    cells, idle = measure_ceiling(bench, notes.append)
    assert [(cell.server, cell.concurrency) for cell in cells] == [
        (OURS, 1),
        (TWIN, 1),
        (OURS, 3),
        (TWIN, 3),
    ]
    assert len(notes) == 5 and 0 <= idle.cpu_share < 0.5
    assert 1 < idle.native_ns_per_token < 1e6
    for cell in cells:
        assert cell.requests_per_s.median > 1 and cell.tokens_per_s.median > 1
        assert cell.tokens_per_event >= 1 and 0 < cell.client_cores < 1.5
        assert 0 < without_engine(cell.event_us) < 1e4
        # A step of 5 ms gives each stream no more than 200 events a second.
        assert 0 < cell.paced_events_per_s <= 240 * cell.concurrency
        assert ("engine" in cell.event_us) == (cell.server == OURS)
        assert not math.isnan(cell.event_spread_us.median)


def test_no_prompt_comes_twice_and_each_run_has_the_same(bench: Workbench, model: str) -> None:
    def prompts() -> list[str]:
        fresh = Workbench(plan(model_path=model))
        makers = [fresh.prompts() for _ in range(3)]
        return [maker.make() for maker in makers for _ in range(20)]

    first = prompts()
    assert len({prompt.split()[0] for prompt in first}) == 60 and prompts() == first
    assert len(bench.ids(first[0])) > bench.count(first[0]), "the template's own tokens"


@pytest.fixture(scope="module")
def served(bench: Workbench) -> Iterator[Any]:
    with bench.serving("--log-level", "info") as server:
        yield server


def test_the_tax_and_a_ledger_that_adds_up(bench: Workbench, served: Any) -> None:
    with Engine(bench.plan.model_path, kv_memory=256 << 20) as engine:
        (tax,), waves = tax_engine.measure_tax(bench, served.url, engine, None, lambda text: None)
    waves_counted = tax_engine.wave_count(2, 1)
    assert tax.server.requests == tax.in_process.requests == 2 * waves_counted
    assert tax.server.tokens == tax.in_process.tokens == 12 * waves_counted
    assert tax.server.cached_tokens == tax.in_process.cached_tokens, "one state of both caches"
    assert tax.first_token.p50 > -0.9 and tax.peer is None
    (ledger,) = measure_ledger(waves, served.log_lines(), lambda text: None)
    # Contiguous stages: what they leave is never more than the client saw beside them.
    assert [stage.name for stage in ledger.stages] == list(STAGES)
    assert all(stage.mean_ms >= 0 for stage in ledger.stages)
    total = sum(stage.mean_ms for stage in ledger.stages)
    assert total + ledger.residue * ledger.end_to_end_ms == pytest.approx(
        ledger.end_to_end_ms, rel=0.02
    )


def test_interference_is_measured_beside_busy_processes(bench: Workbench, served: Any) -> None:
    (found,) = measure_interference(bench, served, None, lambda text: None)
    assert found.busy_processes == 1 and found.concurrency == 2
    assert found.quiet_tokens_per_s.median > 0 and found.busy_tokens_per_s.median > 0
    assert 0 < found.fair_share <= 1 and found.kept > 0
    assert found.kept_of_fair_share == pytest.approx(found.kept / found.fair_share)
