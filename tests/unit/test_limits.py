"""What the machine gives at most, as `sublimate limits` measures and tells it."""

import asyncio
import io

import msgspec
import pytest
from rich.console import Console

from harness import serve
from sublimate import _core
from sublimate.bench import machine
from sublimate.bench.machine import Machine, Reached, machine_table, measure, reached
from sublimate.cli.limits import describe
from sublimate.errors import PeerError
from test_bench import reply, serving
from test_cli import run

MEGABYTE = 1 << 20


def shown(found: Machine) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(machine_table(found))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def found() -> Machine:
    return measure([3 * MEGABYTE], threads=2)


def test_everything_is_measured_with_one_thread_and_with_all(found: Machine) -> None:
    assert [read.threads for read in found.reads] == [1, 2]
    for read in found.reads:
        assert abs(read.working_set_bytes - 3 * MEGABYTE) < 1024
        assert 1e8 < read.bytes_per_s < 1e13
        assert 0 <= read.huge_pages_share <= 1
    assert {one.name for one in found.computes} == set(machine.COMPUTE_NAMES)
    assert {one.threads for one in found.computes} == {1, 2}


def test_a_rate_is_there_exactly_where_its_instruction_is(found: Machine) -> None:
    probe = _core.probe()
    runs = set(probe["isas"])
    needs = {"fma_f32": "avx2", "dot_int8": "avx512"}
    for one in found.computes:
        isa = needs.get(one.name, "amx")
        assert (one.ops_per_s > 0) == (isa in runs), one
        assert one.ops_per_s < 1e15
    assert found.isa == ("avx512" if "avx512" in runs else "avx2" if "avx2" in runs else "portable")


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
def test_each_instruction_set_up_to_the_one_asked_for(isa: str) -> None:
    if isa not in _core.probe()["isas"]:
        pytest.skip(f"{isa} does not run here")
    limits = _core.measure_limits([MEGABYTE], threads=1, isa=isa)
    assert limits["isa"] == isa
    assert limits["reads"][0]["bytes_per_s"] > 1e8
    rates = {row["name"]: row["ops_per_s"] for row in limits["computes"]}
    assert (rates["fma_f32"] > 0) == (isa != "portable")
    assert rates["tile_bf16"] == rates["tile_int8"] == 0


@pytest.mark.parametrize(
    ("working_sets", "more", "why"),
    [
        ([0], {}, "working_sets"),
        ([1 << 60], {}, "working_sets"),
        ([MEGABYTE], {"threads": -1}, "threads"),
        ([MEGABYTE], {"threads": 1000}, "threads"),
        ([MEGABYTE], {"isa": "sse9"}, "isa"),
    ],
)
def test_nonsense_is_refused(working_sets: list[int], more: dict[str, object], why: str) -> None:
    with pytest.raises(_core.CoreError, match=why):
        _core.measure_limits(working_sets, **more)  # type: ignore[arg-type]


def test_a_working_set_smaller_than_a_block_has_no_rate() -> None:
    limits = _core.measure_limits([100], threads=1)
    assert limits["reads"] == [
        {"working_set_bytes": 0, "threads": 1, "bytes_per_s": 0.0, "huge_pages_share": 0.0}
    ]


def test_the_table_says_what_is_not_here(found: Machine) -> None:
    text = shown(found)
    assert "1 thread " in text and "2 threads" in text and "read 3 MB" in text
    assert ("not on this machine" in text) == any(one.ops_per_s == 0 for one in found.computes)


def test_a_server_tells_what_its_load_reached() -> None:
    with serve() as served:
        assert asyncio.run(reached(served.url)) == Reached(now=0, under_load=0)
        served.call(lambda: setattr(served.server.metrics, "load_utilization_ppm", 640_000))
        assert asyncio.run(reached(served.url)).under_load == pytest.approx(0.64)
        seconds, tokens = asyncio.run(machine.native_text(served.url))
        assert seconds == tokens == 0


async def test_what_is_no_sublimate_server_is_told() -> None:
    async def handler(path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(reply(200, b"python_gc 3\n") if path == "/metrics" else reply(404, b""))

    async with serving(handler) as url:
        with pytest.raises(PeerError, match="no Sublimate server"):
            await reached(url)
        with pytest.raises(PeerError, match="gives no /metrics: status 404"):
            await reached(url + "/elsewhere")
    with pytest.raises(PeerError, match="gives no /metrics"):
        await reached(url)


def test_the_sentence_about_a_server() -> None:
    assert "no load" in describe("u", Reached(now=0, under_load=0))
    assert "at rest" in describe("u", Reached(now=0, under_load=0.5))
    assert "50.0%" in describe("u", Reached(now=0.5, under_load=0.4))


def test_the_command_prints_json() -> None:
    result = run("limits", "--json", "--threads", "1")
    told = msgspec.json.decode(result.stdout)
    assert {read["working_set_bytes"] >> 20 for read in told["machine"]["reads"]} <= {96, 1024}
    assert "reached" not in told
    assert run("limits", "--url", "http://127.0.0.1:1", code=6).stderr
