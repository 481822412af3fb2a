"""Several workers: what one's death takes with it, and a reload that loses nothing."""

import asyncio
import contextlib
import os
import shutil
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import httpx
import msgspec
import pytest
from servers import Server, wait_until
from test_serve import EDGE, ENGINE, Stream, load_and, serving

from http3_client import Client
from sublimate import _core
from sublimate.config import Settings, cache_folder
from sublimate.model.files import fetch
from sublimate.v1 import frames_pb2
from sublimate.v1.messages_pb2 import CreateMessageRequest

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
    # Without the kernel's memory of addresses its hash spreads the connections of one client.
    tls = ("--tls", "--tls-port", "0", "--grpc-port", "0", "--no-kernel-state")
    with serving(*flags, *tls, "--workers", str(WORKERS), "--drain-seconds", "20") as running:
        edge = running.ready()["edge"]
        running.https, running.grpc = edge["https"], edge["grpc"]
        running.data = folder
        yield running


@pytest.fixture
def certificate(server: Server) -> Path:
    return server.data / "tls" / "certificate.pem"


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


async def reload_under_load(server: Server) -> list[Stream]:
    until = asyncio.Event()
    load = asyncio.create_task(steady_load(server.url, until))
    await asyncio.sleep(0.2)
    server.signal(signal.SIGUSR2)
    event = await asyncio.to_thread(server.event, "reloaded", 60.0)
    assert event["failure"] == ""
    await asyncio.sleep(0.2)
    until.set()
    return await load


def test_a_reload_replaces_every_edge_and_loses_no_request(server: Server) -> None:
    before = server.pids()
    begin = time.monotonic()
    streams = asyncio.run(reload_under_load(server))
    assert len(streams) > 20
    assert [stream.status for stream in streams if not stream.whole] == []
    after = server.pids()
    assert after[ENGINE] == before[ENGINE], "nothing of theirs has changed"
    assert set(after[EDGE]).isdisjoint(before[EDGE]) and len(after[EDGE]) == WORKERS
    print(f"reload took {time.monotonic() - begin:.1f} s, {len(streams)} requests, none lost")


def test_a_reload_to_another_model_replaces_everything_and_loses_no_request(
    server: Server, tmp_path: Path
) -> None:
    """Only the file's time changes here: what is asked is told by its stamp."""
    model = tmp_path / "model.gguf"
    shutil.copyfile(fetch("default", cache_folder(Settings())).path, model)
    script, flags = str(server.data / "script.json"), ("--grpc", "off", "--no-kernel-state")
    more = ("--workers", str(WORKERS), "--drain-seconds", "20", "--data-dir", str(tmp_path))
    with serving("--model", str(model), "--script", script, *flags, *more) as running:
        running.ready()
        before = running.pids()
        os.utime(model, (1, 1))
        streams = asyncio.run(reload_under_load(running))
        assert [stream.status for stream in streams if not stream.whole] == []
        after = running.pids()
        for module in (ENGINE, EDGE):
            assert set(after[module]).isdisjoint(before[module]) and len(after[module]) == WORKERS


# ---- what several edges share --------------------------------------------------------------------
def message(stream: bool = False) -> dict[str, Any]:
    return {
        "model": "default",
        "max_tokens": 5,
        "stream": stream,
        "messages": [{"role": "user", "content": "hello"}],
    }


def asked(server: Server, method: str, path: str, count: int = 8, **more: Any) -> list[Any]:
    """Answers to the same request on connections of their own, so on either edge."""
    found: list[httpx.Response] = []
    for _ in range(count):
        with httpx.Client(base_url=server.url, timeout=20) as client:
            found.append(client.request(method, path, **more))
    return found


def test_a_repeat_finds_its_answer_on_whichever_edge(server: Server) -> None:
    for stream in (False, True):
        headers = {"idempotency-key": f"key-{stream}"}
        replies = asked(server, "POST", "/v1/messages", json=message(stream), headers=headers)
        assert {reply.status_code for reply in replies} == {200}
        assert len({reply.text for reply in replies}) == 1
        replayed = [reply.headers.get("idempotency-replayed") for reply in replies]
        assert replayed == [None, *["true"] * 7]


@contextlib.contextmanager
def calls_of(server: Server, certificate: Path) -> Iterator[Any]:
    """Methods of gRPC over a connection of their own, so at either edge."""
    credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
    own = [("grpc.use_local_subchannel_pool", 1)]
    target = server.grpc.partition("//")[2]
    with grpc.secure_channel(target, credentials, options=own) as channel:
        encode, service = CreateMessageRequest.SerializeToString, "/sublimate.v1.Messages/"
        whole, event = frames_pb2.Message.FromString, frames_pb2.StreamEvent.FromString
        yield SimpleNamespace(
            create=channel.unary_unary(f"{service}CreateMessage", encode, whole),
            stream=channel.unary_stream(f"{service}StreamMessage", encode, event),
        )


def test_a_call_that_is_repeated_finds_its_answer_on_whichever_edge(
    server: Server, certificate: Path
) -> None:
    """Its own, and that of a request over HTTP under the same key."""
    request = CreateMessageRequest(json_body=msgspec.json.encode(message()))
    other = CreateMessageRequest(json_body=msgspec.json.encode(message() | {"max_tokens": 6}))
    whole: list[bytes] = []
    streams: list[list[bytes]] = []
    errors: list[tuple[Any, str]] = []
    replayed: list[bool] = []
    for _ in range(8):
        with calls_of(server, certificate) as calls:
            answer, call = calls.create.with_call(
                request, metadata=[("idempotency-key", "called")], timeout=20
            )
            whole.append(answer.SerializeToString(deterministic=True))
            replayed.append(("idempotency-replayed", "true") in call.initial_metadata())
            events = calls.stream(request, metadata=[("idempotency-key", "streamed")], timeout=20)
            streams.append([event.SerializeToString(deterministic=True) for event in events])
            with pytest.raises(grpc.RpcError) as refused:
                calls.create(other, metadata=[("idempotency-key", "called")], timeout=20)
            errors.append((refused.value.code(), refused.value.details()))
    assert len(set(whole)) == 1 and replayed == [False, *[True] * 7]
    assert all(stream == streams[0] for stream in streams) and len(streams[0]) > 5
    assert len(set(errors)) == 1 and errors[0][0] is grpc.StatusCode.INVALID_ARGUMENT
    assert "This idempotency-key was used for another" in errors[0][1]
    headers = {"idempotency-key": "called", "content-type": "application/json"}
    content = request.json_body
    replies = asked(server, "POST", "/v1/messages", 4, content=content, headers=headers)
    assert {reply.json()["id"] for reply in replies} == {frames_pb2.Message.FromString(whole[0]).id}


def test_batches_and_files_are_one_edge_s_and_all_reach_them(server: Server) -> None:
    requests = [{"custom_id": f"c{number}", "params": message()} for number in range(3)]
    made = asked(server, "POST", "/v1/messages/batches", 2, json={"requests": requests})
    paths = [f"/v1/messages/batches/{reply.json()['id']}" for reply in made]
    for path in paths:
        wait_until(
            lambda path=path: (
                asked(server, "GET", path, 1)[0].json()["processing_status"] == "ended"
            ),
            10,
        )
        results = asked(server, "GET", path + "/results")
        assert {len(reply.text.splitlines()) for reply in results} == {3}
    for number in range(4):  # keys of both workers
        headers = {"idempotency-key": f"batch-{number}"}
        sent = {"json": {"requests": requests}, "headers": headers}
        replies = asked(server, "POST", "/v1/messages/batches", **sent)
        assert {reply.status_code for reply in replies} == {200}
        assert len({reply.json()["id"] for reply in replies}) == 1
    content = b"a text " * 50_000
    upload = {"file": ("a.txt", content, "text/plain")}
    files = [reply.json()["id"] for reply in asked(server, "POST", "/v1/files", 4, files=upload)]
    for identifier in files:
        shown = asked(server, "GET", f"/v1/files/{identifier}", 4)
        assert {reply.json()["size_bytes"] for reply in shown} == {len(content)}
        heads = asked(server, "HEAD", f"/v1/files/{identifier}", 4)
        assert {(head.status_code, head.content) for head in heads} == {(200, b"")}
        assert {head.headers["content-length"] for head in heads} == {str(len(shown[0].content))}
    small = {"file": ("b.txt", b"short", "text/plain")}
    uploaded = asked(server, "POST", "/v1/files", 1, files=small)[0].json()
    source = {"type": "file", "file_id": uploaded["id"]}
    body = message()
    body["messages"][0]["content"] = [{"type": "document", "source": source}]
    replies = asked(server, "POST", "/v1/messages", json=body)
    assert {reply.status_code for reply in replies} == {200}


def test_what_an_edge_has_made_is_found_by_its_id_on_the_other(server: Server) -> None:
    body: dict[str, Any] = {"model": "default", "input": "hello", "max_output_tokens": 16}
    made = asked(server, "POST", "/v1/responses", json=body)
    for reply in made:
        identifier = reply.json()["id"]
        assert asked(server, "GET", f"/v1/responses/{identifier}", 1)[0].status_code == 200
        again = {**body, "previous_response_id": identifier}
        assert asked(server, "POST", "/v1/responses", 1, json=again)[0].status_code == 200
        story = asked(server, "GET", f"/v1/debug/requests/{reply.headers['x-request-id']}", 1)[0]
        assert story.status_code == 200
    assert len({reply.json()["id"][5:7] for reply in made}) == WORKERS, "both have made some"
    unknown = asked(server, "GET", "/v1/responses/resp_01" + "0" * 22)
    assert {reply.status_code for reply in unknown} == {404}


def test_one_scrape_tells_of_all_workers(server: Server) -> None:
    before = samples(server, "http_responses_total", "worker")
    asked(server, "POST", "/v1/messages", json=message())
    after = samples(server, "http_responses_total", "worker")
    assert set(after) == {"0", "1"} and sum(after.values()) >= sum(before.values()) + 8
    assert samples(server, "kv_pages", "engine") == {"0": 4096.0, "1": 4096.0}
    text = asked(server, "GET", "/metrics", 1)[0].text
    helps = [line for line in text.splitlines() if line.startswith("# HELP")]
    assert len(helps) == len(set(helps)), "each family once"


# ---- HTTP/3 --------------------------------------------------------------------------------------
def test_quic_goes_on_where_its_client_s_address_changes(server: Server, certificate: Path) -> None:
    """A datagram from the new address may come to another edge's socket, which hands it on."""
    port = int(server.https.rpartition(":")[2])
    for seed in range(2):
        client = Client(port, certificate, seed=seed)
        client.run(lambda client=client: client.handshake is not None)
        for _ in range(12):
            client.rebind()
            assert client.ask("GET", "/livez").status == 200
        stream = client.begin("POST", "/v1/messages", msgspec.json.encode(message(stream=True)))
        answer = client.answers[stream]
        client.run(lambda answer=answer: answer.body != b"")
        client.rebind()
        client.quic.send_ping(1)
        client.run(lambda answer=answer: answer.is_complete)
        assert b"message_stop" in answer.body
        client.close()


def test_a_reload_lets_streams_over_quic_finish(server: Server, certificate: Path) -> None:
    port = int(server.https.rpartition(":")[2])
    clients = [Client(port, certificate, seed=seed) for seed in range(4)]
    body = msgspec.json.encode({**message(stream=True), "max_tokens": ANSWER_TOKENS})
    streams: list[int] = []
    for client in clients:
        client.run(lambda client=client: client.handshake is not None)
        streams.append(client.begin("POST", "/v1/messages", body))
        answer = client.answers[streams[-1]]
        client.run(lambda answer=answer: answer.body != b"")
    server.signal(signal.SIGUSR2)
    for client, stream in zip(clients, streams, strict=True):
        client.run(lambda client=client, stream=stream: client.answers[stream].is_complete)
        assert client.answers[stream].status == 200
        assert b"message_stop" in client.answers[stream].body
        client.linger(0.1)
        client.close()
    assert server.event("reloaded", 60.0)["failure"] == ""
    again = Client(port, certificate, seed=9)
    assert again.ask("GET", "/livez").status == 200
    again.close()


def test_f04_an_edge_that_goes_on_in_time_is_reported_and_kept(server: Server) -> None:
    """The edge beside it says so in its log; both count what was found of their own worker."""
    edges = server.pids()[EDGE]
    trips = samples(server, "edge_watchdog_trips_total", "worker")
    logged = len(server.errors)
    os.kill(edges[0], signal.SIGSTOP)
    try:
        wait_until(lambda: any("stands still" in line for line in server.errors[logged:]), 60)
    finally:
        os.kill(edges[0], signal.SIGCONT)
    more = sum(trips.values()) + 1
    wait_until(
        lambda: sum(samples(server, "edge_watchdog_trips_total", "worker").values()) == more, 20
    )
    assert server.pids()[EDGE] == edges
    assert not any(samples(server, "edge_watchdog_restarts_total", "worker").values())
