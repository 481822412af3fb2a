"""Several workers: what one's death takes with it, and a reload that loses nothing."""

import asyncio
import os
import signal
import time
import urllib.request
from collections.abc import Iterator

import msgspec
import pytest
from servers import Server
from test_serve import EDGE, ENGINE, Stream, load_and, serving

from sublimate import _core
from sublimate.config import Settings, cache_folder
from sublimate.model.files import fetch

WORKERS = 2
ANSWER_TOKENS = 100
STEP_MICROSECONDS = 4000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = fetch("default", cache_folder(Settings()))
    vocabulary = len(_core.Gguf(str(model.path)).metadata["tokenizer.ggml.tokens"])
    folder = tmp_path_factory.mktemp("workers")
    script = {
        "answers": [[[], [1000 + index % 500 for index in range(ANSWER_TOKENS)]]],
        "vocabulary": vocabulary,
        "step_delay_us": STEP_MICROSECONDS,
    }
    (folder / "script.json").write_bytes(msgspec.json.encode(script))
    flags = ("--script", str(folder / "script.json"), "--data-dir", str(folder))
    with serving(*flags, "--workers", str(WORKERS), "--drain-seconds", "20") as running:
        running.ready()
        yield running


def samples(server: Server, name: str, label: str) -> dict[str, float]:
    """Of one metric by one of its labels."""
    with urllib.request.urlopen(server.url + "/metrics", timeout=5) as response:
        lines = response.read().decode().splitlines()
    found: dict[str, float] = {}
    for line in lines:
        if line.startswith(f"sublimate_{name}{{"):
            of = line.partition(f'{label}="')[2].partition('"')[0]
            found[of] = found.get(of, 0.0) + float(line.rpartition(" ")[2])
    return found


def test_there_are_so_many_of_each_and_each_engine_is_used(server: Server) -> None:
    pids = server.pids()
    assert {module: len(those) for module, those in pids.items()} == {
        ENGINE: WORKERS,
        EDGE: WORKERS,
    }
    streams = asyncio.run(load_and(server.url, lambda: None, 20))
    assert all(stream.whole for stream in streams)
    finished = samples(server, "prompt_tokens_total", "engine")
    assert set(finished) == {"0", "1"} and min(finished.values()) > 0, "both have computed"


def test_a_killed_engine_takes_its_own_requests_with_it_and_no_others(server: Server) -> None:
    engines = server.pids()[ENGINE]

    def kill() -> None:
        os.kill(engines[0], signal.SIGKILL)

    streams = asyncio.run(load_and(server.url, kill, ANSWER_TOKENS))
    failed = [stream for stream in streams if stream.failed]
    # Which share was there is the router's choice: by what runs, equal ones get as many each.
    assert len(streams) / 4 <= len(failed) <= 3 * len(streams) / 4
    assert all(b"event: error" in stream.body for stream in failed), "they are told"
    assert all(stream.whole for stream in streams if stream not in failed)
    lost = server.event("lost")
    assert lost["who"] in ("engine 0", "engine 1") and lost["why"] == "signal SIGKILL"
    # Meanwhile the other one serves: nobody is refused.
    again = Stream()
    asyncio.run(again.run(server.url, 5))
    assert again.whole
    server.ready()
    assert engines[1] in server.pids()[ENGINE]


def test_a_killed_edge_closes_its_own_connections_and_no_others(server: Server) -> None:
    before = server.pids()

    def kill() -> None:
        os.kill(before[EDGE][1], signal.SIGKILL)

    streams = asyncio.run(load_and(server.url, kill, ANSWER_TOKENS))
    failed = [stream for stream in streams if stream.failed]
    assert 0 < len(failed) < len(streams)
    assert all(stream.whole for stream in streams if stream not in failed)
    server.ready()
    assert server.pids()[ENGINE] == before[ENGINE] and before[EDGE][0] in server.pids()[EDGE]


async def steady_load(url: str, until: asyncio.Event) -> list[Stream]:
    """Short and long streams, each client's next as soon as one has ended."""
    ended: list[Stream] = []

    async def client(number: int) -> None:
        while not until.is_set():
            stream = Stream(framed=number % 2 == 1)
            await stream.run(url, ANSWER_TOKENS if number % 3 == 0 else 5)
            ended.append(stream)

    async with asyncio.TaskGroup() as group:
        clients = [group.create_task(client(number)) for number in range(12)]
    assert len(clients) == 12
    return ended


def test_a_reload_replaces_every_edge_and_loses_no_request(server: Server) -> None:
    before = server.pids()

    async def reload_under_load() -> list[Stream]:
        until = asyncio.Event()
        load = asyncio.create_task(steady_load(server.url, until))
        await asyncio.sleep(0.2)
        server.signal(signal.SIGUSR2)
        event = await asyncio.to_thread(server.event, "reloaded", 60.0)
        assert event["failure"] == ""
        await asyncio.sleep(0.2)
        until.set()
        return await load

    begin = time.monotonic()
    streams = asyncio.run(reload_under_load())
    assert len(streams) > 20
    assert [stream.status for stream in streams if not stream.whole] == []
    after = server.pids()
    assert after[ENGINE] == before[ENGINE], "nothing of theirs has changed"
    assert set(after[EDGE]).isdisjoint(before[EDGE]) and len(after[EDGE]) == WORKERS
    print(f"reload took {time.monotonic() - begin:.1f} s, {len(streams)} requests, none lost")
