"""Batches over the wire, by the official SDK and by raw requests."""

import contextlib
import logging
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import msgspec
import pytest

from harness import Served, body, serve, wait_until
from sublimate.api.batches import runner
from sublimate.api.batches.inner import InnerExchange
from sublimate.api.batches.store import BatchStore
from sublimate.config import EdgeSettings
from sublimate.edge.errors import ApiError
from sublimate.edge.exchange import Exchange
from sublimate.edge.quota import NOBODY
from sublimate.keys import KeyLimits, add_key, remove_key
from test_errors import check_error

PATH = "/v1/messages/batches"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serve(settings=EdgeSettings(data_dir=str(tmp_path))) as running:
        yield running


def requests(*contents: str, **fields: Any) -> dict[str, Any]:
    return {
        "requests": [
            {"custom_id": f"r{i}", "params": body(content, **fields)}
            for i, content in enumerate(contents)
        ]
    }


def ended(served: Served, identifier: str, key: str = "") -> dict[str, Any]:
    """The batch, once it has ended."""
    headers = {"x-api-key": key}

    def get() -> Any:
        return served.client.get(f"{PATH}/{identifier}", headers=headers).json()

    wait_until(lambda: get()["processing_status"] == "ended")
    return get()


def is_ended(folder: Path, identifier: str) -> bool:
    """Read beside a server that may not tell it."""
    with contextlib.closing(sqlite3.connect(folder / "batches" / "batches.sqlite")) as file:
        found = file.execute("SELECT ended FROM batches WHERE id = ?", (identifier,)).fetchone()
    return found[0] is not None


def lines(served: Served, identifier: str, key: str = "") -> dict[str, Any]:
    reply = served.client.get(f"{PATH}/{identifier}/results", headers={"x-api-key": key})
    assert reply.status_code == 200 and reply.headers["content-type"] == "application/x-jsonl"
    decoded = [msgspec.json.decode(line) for line in reply.text.splitlines()]
    assert len({line["custom_id"] for line in decoded}) == len(decoded)
    return {line["custom_id"]: line["result"] for line in decoded}


def test_the_official_client_runs_a_batch(served: Served, client: anthropic.Anthropic) -> None:
    params: Any = body("say hello")
    batch = client.messages.batches.create(requests=[
        {"custom_id": "one", "params": params},
        {"custom_id": "two", "params": {**params, "temperature": 9}},
    ])  # fmt: skip
    assert batch.processing_status == "in_progress" and batch.results_url is None
    ended(served, batch.id)
    batch = client.messages.batches.retrieve(batch.id)
    assert batch.request_counts.succeeded == 1 and batch.request_counts.errored == 1
    assert batch.ended_at is not None and batch.expires_at > batch.created_at
    results = {line.custom_id: line.result for line in client.messages.batches.results(batch.id)}
    first, second = results["one"], results["two"]
    assert first.type == "succeeded" and first.message.content[0].type == "text"
    assert first.message.content[0].text == "Hello there!"
    assert second.type == "errored" and second.error.error.type == "invalid_request_error"
    assert second.error.error.message.startswith("temperature:")
    listed = list(client.messages.batches.list(limit=1))
    assert [entry.id for entry in listed] == [batch.id]
    cancelled = client.messages.batches.cancel(batch.id)
    assert cancelled.cancel_initiated_at is None, "it had ended"
    assert client.messages.batches.delete(batch.id).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        client.messages.batches.retrieve(batch.id)


def test_a_result_is_the_answer_that_a_request_gets(served: Served) -> None:
    direct = served.message("say utf8", seed=1, temperature=0).json()
    made = served.client.post(PATH, json=requests("say utf8", seed=1, temperature=0, stream=True))
    ended(served, made.json()["id"])
    message = lines(served, made.json()["id"])["r0"]["message"]
    volatile = {"id", "usage"}
    assert {k: v for k, v in message.items() if k not in volatile} == {
        k: v for k, v in direct.items() if k not in volatile
    }


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ({"requests": []}, "requests: must not be empty"),
        ({}, "requests: field required"),
        ({"requests": [{"custom_id": "a b", "params": {}}]}, "requests.0.custom_id: expected"),
        ({"requests": [{"custom_id": "a", "params": []}]}, "requests.0.params: expected an"),
        ({"requests": [{"custom_id": "a", "params": {}}] * 2}, "requests.1.custom_id: another"),
        ({"requests": [{"params": {}}]}, "requests.0.custom_id: field required"),
    ],
)
def test_what_is_no_batch_is_400_with_its_path(served: Served, sent: Any, text: str) -> None:
    check_error(served.client.post(PATH, json=sent), 400, text)
    assert served.client.get(PATH).json()["data"] == []


def test_cancel_ends_what_runs_and_what_waits(tmp_path: Path) -> None:
    settings = EdgeSettings(data_dir=str(tmp_path), batch_concurrency=2)
    with serve(settings=settings, step_delay_us=5000) as served:
        sent = requests(*["count"] * 20, max_tokens=3000)
        identifier = served.client.post(PATH, json=sent).json()["id"]
        wait_until(lambda: served.region.stats()["running"] == 2)
        check_error(served.client.get(f"{PATH}/{identifier}/results"), 400, "This batch has not")
        check_error(served.client.delete(f"{PATH}/{identifier}"), 400, "This batch has not")
        batch = served.client.post(f"{PATH}/{identifier}/cancel").json()
        assert batch["request_counts"]["canceled"] == 20 and batch["cancel_initiated_at"]
        wait_until(served.idle)
        assert {result["type"] for result in lines(served, identifier).values()} == {"canceled"}


def test_live_requests_come_first(tmp_path: Path) -> None:
    settings = EdgeSettings(data_dir=str(tmp_path), batch_concurrency=4)
    with serve(settings=settings, step_delay_us=2000) as served:
        request = body("count", stream=True, max_tokens=1000)
        with served.client.stream("POST", "/v1/messages", json=request) as reply:
            assert reply.status_code == 200
            wait_until(lambda: served.region.stats()["running"] == 1)
            sent = requests(*["count"] * 12, max_tokens=100)
            identifier = served.client.post(PATH, json=sent).json()["id"]
            wait_until(lambda: served.region.stats()["running"] == 2)
            seen = 0
            for _ in range(20):
                seen = max(seen, served.region.stats()["running"])
                time.sleep(0.01)
            assert seen == 2, "one beside the live one"
        wait_until(lambda: served.region.stats()["running"] == 4)
        ended(served, identifier)


def test_tenants_and_limits_are_those_of_the_key(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    alice = add_key(path, "alice", KeyLimits(requests_per_minute=60))
    bob = add_key(path, "bob", KeyLimits())
    settings = EdgeSettings(data_dir=str(tmp_path), keys_file=str(path))
    with serve(settings=settings) as served:
        headers = {"x-api-key": alice}
        made = served.client.post(PATH, json=requests(*["say hello"] * 3), headers=headers)
        identifier = made.json()["id"]
        ended(served, identifier, alice)
        assert len(lines(served, identifier, alice)) == 3
        for method, more in (("GET", ""), ("GET", "/results"), ("POST", "/cancel"), ("DELETE", "")):
            reply = served.client.request(
                method, f"{PATH}/{identifier}{more}", headers={"x-api-key": bob}
            )
            check_error(reply, 404, "There is no message batch")
        assert served.client.get(PATH, headers={"x-api-key": bob}).json()["data"] == []
        reply = served.client.post("/v1/messages", json=body(), headers=headers)
        assert int(reply.headers["anthropic-ratelimit-requests-remaining"]) <= 57


def test_a_key_with_one_place_runs_its_batch_without_a_pause(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    alice = add_key(path, "alice", KeyLimits(concurrency=1))
    bob = add_key(path, "bob", KeyLimits())
    settings = EdgeSettings(data_dir=str(tmp_path), keys_file=str(path), batch_concurrency=4)
    with serve(settings=settings, step_delay_us=500) as served:
        sent = requests(*["say hello"] * 100)
        first = served.client.post(PATH, json=sent, headers={"x-api-key": alice}).json()["id"]
        second = served.client.post(PATH, json=sent, headers={"x-api-key": bob}).json()["id"]
        ended(served, second, bob)
        ended(served, first, alice)
        assert len(lines(served, first, alice)) == len(lines(served, second, bob)) == 100
        assert served.server.metrics.responses["429"] == 0, "none was begun without a place"


@pytest.mark.parametrize("concurrency", [1, 3])
def test_live_requests_are_refused_by_live_ones_alone(tmp_path: Path, concurrency: int) -> None:
    path = tmp_path / "keys.toml"
    headers = {"x-api-key": add_key(path, "alice", KeyLimits(concurrency=concurrency))}
    settings = EdgeSettings(data_dir=str(tmp_path), keys_file=str(path), batch_concurrency=8)
    with serve(settings=settings, step_delay_us=1000) as served:
        sent = requests(*["count"] * 8, max_tokens=150)
        made = served.client.post(PATH, json=sent, headers=headers).json()["id"]
        spare = max(1, concurrency - 1)
        wait_until(lambda: served.region.stats()["running"] == spare)
        asked = body("count", max_tokens=400, stream=True)
        with contextlib.ExitStack() as open_streams:
            for _ in range(concurrency):
                reply = open_streams.enter_context(
                    served.client.stream("POST", "/v1/messages", json=asked, headers=headers)
                )
                assert reply.status_code == 200
            refused = served.client.post("/v1/messages", json=asked, headers=headers)
            check_error(refused, 429, f"This key's limit of {concurrency} requests")
            wait_until(lambda: served.region.stats()["running"] == concurrency)
        counts = ended(served, made, headers["x-api-key"])["request_counts"]
        assert counts["succeeded"] == 8, "what gave way ran again"


def test_a_request_of_a_batch_answers_once_and_not_after_its_cancel() -> None:
    told: list[bytes] = []

    def asked() -> InnerExchange:
        return InnerExchange("/v1/messages", b"{}", NOBODY, lambda body, _: told.append(body))

    answered = asked()
    answered.send(200, [], b"one")
    answered.send(200, [], b"two")
    assert told == [b"one"]
    cancelled = asked()
    cancelled.cancel()
    cancelled.send(200, [], b"three")
    assert told == [b"one"]


def test_log_lines_of_a_batch_name_it(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="sublimate.request"):
        made = served.client.post(PATH, json=requests("say hello")).json()["id"]
        ended(served, made)
        served.message()

        def answers() -> list[dict[str, Any]]:
            found = [getattr(record, "fields", {}) for record in caplog.records]
            return [fields for fields in found if "output_tokens" in fields]

        wait_until(lambda: len(answers()) == 2)
    assert [fields.get("batch") for fields in answers()] == [made, None]


def test_nobody_else_reads_the_folders(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("batches", "files")]
    for folder in folders:  # as earlier versions left them
        folder.mkdir(mode=0o755)
        database = folder / f"{folder.name}.sqlite"
        database.touch(mode=0o644)
        database.chmod(0o644)
    with serve(settings=EdgeSettings(data_dir=str(tmp_path))) as served:
        made = served.client.post(PATH, json=requests("say hello")).json()["id"]
        ended(served, made)
        served.client.get("/v1/files")
        for folder in folders:
            assert folder.stat().st_mode & 0o777 == 0o700
            databases = list(folder.glob("*.sqlite*"))
            assert {path.stat().st_mode & 0o777 for path in databases} == {0o600}
            assert len(databases) > 1, "the log of the database lies beside it"


def test_a_limit_of_requests_a_minute_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    key = add_key(path, "alice", KeyLimits(requests_per_minute=40))
    settings = EdgeSettings(data_dir=str(tmp_path), keys_file=str(path))
    with serve(settings=settings) as served:
        sent = requests(*["say hello"] * 41)
        made = served.client.post(PATH, json=sent, headers={"x-api-key": key})
        counts = ended(served, made.json()["id"], key)["request_counts"]
        assert counts["succeeded"] == 41 and served.server.metrics.responses["429"] > 0


def test_a_removed_key_ends_its_batches(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    key = add_key(path, "alice", KeyLimits())
    settings = EdgeSettings(data_dir=str(tmp_path), keys_file=str(path), batch_concurrency=2)
    with serve(settings=settings, step_delay_us=2000) as served:
        sent = requests(*["count"] * 30, max_tokens=100)
        headers = {"x-api-key": key}
        identifier = served.client.post(PATH, json=sent, headers=headers).json()["id"]
        wait_until(lambda: served.region.stats()["running"] == 2)
        remove_key(path, "alice")
        served.call(served.server.reload)
        check_error(served.client.get(PATH, headers=headers), 401)
        wait_until(lambda: is_ended(tmp_path, identifier))
        renewed = add_key(path, "alice", KeyLimits())  # the name is the tenant
        served.call(served.server.reload)
        counts = ended(served, identifier, renewed)["request_counts"]
        assert counts["succeeded"] == 2, "what ran was finished"
        assert counts["errored"] == 28
        error = lines(served, identifier, renewed)["r29"]["error"]
        assert error["error"]["type"] == "authentication_error" and error["request_id"]
        assert error["error"]["message"].startswith("The API key that sent this batch was removed")


def test_a_batch_of_an_open_server_ends_when_keys_are_needed(tmp_path: Path) -> None:
    with serve(settings=EdgeSettings(data_dir=str(tmp_path)), step_delay_us=2000) as served:
        sent = requests(*["count"] * 30, max_tokens=1000)
        identifier = served.client.post(PATH, json=sent).json()["id"]
    locked = EdgeSettings(data_dir=str(tmp_path), api_keys=("k",))
    with serve(settings=locked) as served:
        check_error(served.client.get(f"{PATH}/{identifier}", headers={"x-api-key": "k"}), 404)
        wait_until(lambda: is_ended(tmp_path, identifier))
    with serve(settings=EdgeSettings(data_dir=str(tmp_path))) as served:
        counts = ended(served, identifier)["request_counts"]
        assert counts["errored"] == 30 and counts["succeeded"] == 0


def test_tries_of_a_lost_request_are_counted_whatever_comes_between(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(server: Any, exchange: Exchange) -> None:
        asked.append("overloaded" if len(asked) % 2 else "engine_lost")
        raise ApiError(asked[-1])

    monkeypatch.setattr(runner, "create_message", answer)
    monkeypatch.setattr(runner, "RETRY_SECONDS", 0.001)
    identifier = served.client.post(PATH, json=requests("say hello")).json()["id"]
    assert ended(served, identifier)["request_counts"]["errored"] == 1
    assert asked.count("engine_lost") == runner.TRIES_MAX
    assert asked.count("overloaded") == runner.TRIES_MAX - 1


# ---- the disk ------------------------------------------------------------------------------------
def test_a_disk_that_fails_is_a_typed_error_and_results_wait_for_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*given: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(runner, "RETRY_SECONDS", 0.001)
    with monkeypatch.context() as full:
        full.setattr(BatchStore, "finish", no_room)
        sent = requests(*["say hello"] * 50)
        identifier = served.client.post(PATH, json=sent).json()["id"]
        wait_until(lambda: served.server.metrics.responses["200"] > 8)
        full.setattr(BatchStore, "create", no_room)
        check_error(served.client.post(PATH, json=sent), 503, "This server's data folder")
        reply = served.client.get(f"{PATH}/{identifier}").json()
        assert reply["request_counts"]["processing"] == 50
    assert ended(served, identifier)["request_counts"]["succeeded"] == 50


def test_a_folder_that_cannot_be_used_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "batches").write_text("a file where the folder should be")
    with serve(settings=EdgeSettings(data_dir=str(tmp_path))) as served:
        for _ in range(2):
            error = check_error(served.client.get(PATH), 503, "This server's data folder")
            assert error["type"] == "api_error" and "--data-dir" in error["message"]
        assert served.message().status_code == 200
        (tmp_path / "batches").unlink()
        assert served.client.get(PATH).json()["data"] == []


def test_whatever_the_file_does_the_worker_goes_on(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.client.get(PATH)  # the worker is there
    read, failures = BatchStore.next_jobs, iter((ValueError, sqlite3.DatabaseError, OSError))

    def next_jobs(*given: Any) -> Any:
        if failure := next(failures, None):
            raise failure("of no kind that is expected")
        return read(*given)

    monkeypatch.setattr(runner, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(BatchStore, "next_jobs", next_jobs)
    identifier = served.client.post(PATH, json=requests("say hello")).json()["id"]
    assert ended(served, identifier)["request_counts"]["succeeded"] == 1
    assert next(failures, None) is None


def test_a_new_server_goes_on_where_the_old_one_stopped(tmp_path: Path) -> None:
    settings = EdgeSettings(data_dir=str(tmp_path), batch_concurrency=2)
    with serve(settings=settings, step_delay_us=2000) as served:
        sent = requests(*["count"] * 10, max_tokens=100)
        identifier = served.client.post(PATH, json=sent).json()["id"]

        def done() -> int:
            counts = served.client.get(f"{PATH}/{identifier}").json()["request_counts"]
            return counts["succeeded"]

        wait_until(lambda: 0 < done() < 8)
    with serve(settings=settings) as served:
        batch = ended(served, identifier)
        assert batch["request_counts"]["succeeded"] == 10
        ids = [line["message"]["id"] for line in lines(served, identifier).values()]
        assert len(set(ids)) == 10


def test_results_that_wait_for_the_disk_are_kept_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next server finds them: nothing is computed twice."""
    settings = EdgeSettings(data_dir=str(tmp_path))

    def busy(*given: Any) -> None:
        raise sqlite3.OperationalError("database is locked")

    with serve(settings=settings) as served:
        with monkeypatch.context() as patch:
            patch.setattr(runner, "RETRY_SECONDS", 60.0)
            patch.setattr(BatchStore, "finish", busy)
            made = served.client.post(PATH, json=requests(*["say hello"] * 3)).json()["id"]
            wait_until(lambda: served.region.stats()["finished"] == 3 and served.idle())
            batches = served.call(lambda: served.server.part(runner.Batches))
            wait_until(lambda: served.call(lambda: len(batches._done) == 3))
        assert served.client.get(f"{PATH}/{made}").json()["request_counts"]["processing"] == 3
    with serve(settings=settings) as served:
        assert ended(served, made)["request_counts"]["succeeded"] == 3
        assert {result["type"] for result in lines(served, made).values()} == {"succeeded"}
        assert served.stats()["accepted"] == 0


def test_two_servers_share_no_folder(tmp_path: Path) -> None:
    settings = EdgeSettings(data_dir=str(tmp_path))
    with serve(settings=settings) as first, serve(settings=settings) as second:
        assert first.client.get(PATH).status_code == 200
        check_error(second.client.get(PATH), 503, "Another server uses")
        assert second.message().status_code == 200


def test_large_results_are_read_at_the_readers_pace(served: Served) -> None:
    sent = requests(*["count"] * 40, max_tokens=4000)
    identifier = served.client.post(PATH, json=sent).json()["id"]
    ended(served, identifier)
    url = f"{PATH}/{identifier}/results"
    with served.client.stream("GET", url) as reply:
        assert served.client.head(url).status_code == 200
        pieces = []
        for piece in reply.iter_raw(4096):
            pieces.append(piece)
            if len(pieces) < 30:
                time.sleep(0.005)
    whole = b"".join(pieces)
    assert whole.count(b"\n") == 40 and len(whole) > 100_000
    assert len(lines(served, identifier)) == 40


def test_a_folder_in_use_costs_only_batches(
    tmp_path: Path, served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    served.client.post(PATH, json=requests("one"))
    with (
        caplog.at_level(logging.INFO),
        serve(settings=EdgeSettings(data_dir=str(tmp_path))) as second,
    ):
        waits = [each for each in caplog.records if each.getMessage().startswith("batches wait")]
        assert {each.levelname for each in waits} == {"INFO"}, "as each reload would warn"
        assert second.client.post("/v1/messages", json=body("hello")).status_code == 200
        reply = second.client.post(PATH, json=requests("two"))
        check_error(reply, 503, "Another server uses")
        served.call(served.server.close)
        assert second.client.post(PATH, json=requests("two")).status_code == 200


def test_a_store_that_cannot_be_opened_lets_go_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "batches").mkdir()
    (tmp_path / "batches" / "batches.sqlite").write_bytes(b"no database, but long enough" * 99)
    with serve(settings=EdgeSettings(data_dir=str(tmp_path))) as running:
        assert running.client.post("/v1/messages", json=body("hello")).status_code == 200
        check_error(running.client.get(PATH), 503, "This server's data folder")
        (tmp_path / "batches" / "batches.sqlite").unlink()
        assert running.client.get(PATH).json()["data"] == []
