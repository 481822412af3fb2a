"""The story of a request, whatever became of it: stages that add up, what the loop decided, and
nobody else's business."""

import contextlib
import http.client
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ring_reference as ring
from harness import Served, body, http_post, serve, wait_until
from sublimate import _core
from sublimate.config import EdgeSettings
from sublimate.edge import limits
from sublimate.edge.observe.stories import UNTIL_ENDED, Stories
from sublimate.edge.observe.timing import STAGES
from sublimate.keys import KeyLimits, add_key
from sublimate.policy import decision
from test_errors import check_error
from test_grpc_calls import CREATE, begun, request

PAGE_TOKENS = _core.LIMITS["PAGE_TOKENS"]
LONG = "count " * 60
SLOW_STEP_US = 2000
BLOCK = _core.POLICY["attention_block_tokens"]


def settings(**chosen: Any) -> EdgeSettings:
    return EdgeSettings(data_dir=tempfile.mkdtemp(prefix="sublimate-test-"), **chosen)


@pytest.fixture(scope="module")
def traced() -> Iterator[Served]:
    """A server that always traces, slow enough to be met at work."""
    with serve(settings=settings(trace=True), step_delay_us=SLOW_STEP_US) as served:
        wait_until(lambda: served.region.stats()["engine_heartbeat_ns"] > 0)
        yield served


def story(served: Served, request_id: str) -> Any:
    """Of a request that has ended."""
    told: dict[str, Any] = {}

    def has_ended() -> bool:
        reply = served.client.get(f"/v1/debug/requests/{request_id}")
        told.update(reply.json())
        return reply.status_code == 200 and told["state"] == "ended"

    wait_until(has_ended)
    check_sums(told)
    return told


def check_sums(told: dict[str, Any]) -> None:
    """Each stage begins where the last one ended; together they are the whole."""
    stages = told["stages"]
    assert stages[0]["begin_ns"] == told["began_ns"]
    assert stages[-1]["end_ns"] == told["ended_ns"]
    for stage, following in pairwise(stages):
        assert stage["end_ns"] == following["begin_ns"]
    assert all(stage["end_ns"] >= stage["begin_ns"] for stage in stages), stages
    total = sum(stage["ms"] for stage in stages)
    assert total == pytest.approx(told["end_to_end_ms"], rel=0.02, abs=0.01)
    moments = [line["ns"] for line in told["lines"]]
    assert moments == sorted(moments)


def texts(told: dict[str, Any]) -> str:
    return "\n".join(f"{line['side']}: {line['text']}" for line in told["lines"])


def latest(served: Served) -> dict[str, Any]:
    return served.client.get("/v1/debug/requests").json()["data"][0]


# ---- whole answers -------------------------------------------------------------------------------
@pytest.mark.parametrize("stream", [False, True])
def test_the_stages_of_an_answer_are_the_end_to_end_time(shared: Served, stream: bool) -> None:
    """Without a trace: it is not on, and the story is there all the same."""
    before = shared.metrics.end_to_end.sum
    begin = time.monotonic()
    reply = shared.message("count", max_tokens=200, stream=stream)
    seen_ms = (time.monotonic() - begin) * 1000
    told = story(shared, reply.headers["request-id"])
    assert [stage["name"] for stage in told["stages"]] == [*STAGES, UNTIL_ENDED]
    assert told["end_to_end_ms"] <= seen_ms + 1
    # Another account of the server's, by other moments.
    counted_ms = (shared.metrics.end_to_end.sum - before) * 1000
    assert told["end_to_end_ms"] == pytest.approx(counted_ms, rel=0.02, abs=10)
    assert told["events"] == [] and told["answer"]["output_tokens"] == 200
    assert f"end: status 200, max_tokens, {200} tokens" in texts(told)


def test_a_traced_answer_tells_every_step(traced: Served) -> None:
    reply = traced.message(LONG, max_tokens=12, stream=True)
    told = story(traced, reply.headers["request-id"])
    prompt = told["answer"]["prompt_tokens"]
    kinds = [event["what"] for event in told["events"]]
    assert kinds[:2] == ["taken", "admitted"] and kinds[-1] == "finished"
    parts = [event for event in told["events"] if event["what"] == "part"]
    steps = {event["step"]: event for event in told["events"] if event["what"] == "step"}
    assert sum(part["prompt_rows"] for part in parts) == prompt
    assert sum(part["tokens"] for part in parts) == 12
    assert {part["step"] for part in parts} == steps.keys()
    assert all(step["took_ns"] >= SLOW_STEP_US * 1000 for step in steps.values())
    # Loop and edge have one clock: the steps lie in the stages that are the loop's.
    inside = {stage["name"]: stage for stage in told["stages"]}
    first, last = min(steps), max(steps)
    assert inside["publish"]["end_ns"] <= steps[first]["ns"]
    assert steps[last]["ns"] + steps[last]["took_ns"] <= inside["generate"]["end_ns"]
    whole = texts(told)
    assert f"shard decision: 1 shard for {prompt} tokens" in whole
    assert told["shard"]["shard_ends"] == [prompt] and told["shard"]["target"] == "resident"
    assert "prefix lookup found 0/" in whole and "11 tokens in 11 steps of 1 row" in whole


def test_cache_hits_have_their_token_ranges(traced: Served) -> None:
    prompt = "ranges " + LONG
    first = story(traced, traced.message(prompt, max_tokens=2).headers["request-id"])
    again = story(traced, traced.message(prompt, max_tokens=2).headers["request-id"])
    blocks = (first["answer"]["prompt_tokens"] - 1) // PAGE_TOKENS
    assert blocks > 5
    assert first["admission"]["blocks"] == again["admission"]["blocks"] == blocks
    assert again["admission"]["blocks_found"] == blocks
    assert again["admission"]["cached_ranges"] == [[0, blocks * PAGE_TOKENS]]
    found = f"prefix lookup found {blocks}/{blocks} blocks (tokens 0\u2013{blocks * 32 - 1})"
    assert found in texts(again)
    (admitted,) = [event for event in again["events"] if event["what"] == "admitted"]
    assert admitted["blocks_found"] == blocks and admitted["blocks_running"] == 0
    assert admitted["pages_reserved"] == again["admission"]["pages_reserved"]


def test_blocks_of_running_requests_are_told_apart(traced: Served) -> None:
    prompt = "together " + LONG
    with traced.connect() as sock:
        sock.sendall(http_post(body(prompt, max_tokens=4000, stream=True, ignore_eos=True)))
        wait_until(lambda: latest(traced)["output_tokens"] > 0)
        running = latest(traced)
        live = traced.client.get(f"/v1/debug/requests/{running['id']}").json()
        assert live["state"] == "running" and live["stages"][-1]["name"] in STAGES
        reply = traced.message(prompt, max_tokens=1)
    told = story(traced, reply.headers["request-id"])
    (admitted,) = [event for event in told["events"] if event["what"] == "admitted"]
    assert admitted["blocks_running"] == admitted["blocks_found"] > 5
    assert f"{admitted['blocks_running']} of running requests" in texts(told)
    # The client of the first one has gone: its story ends so, and the loop's part of it too.
    gone = story(traced, running["id"])
    assert gone["answer"]["end"] == "client_gone"
    wait_until(lambda: "ends: cancelled" in texts(story(traced, running["id"])))
    assert "the cancel is seen in state decode" in texts(story(traced, running["id"]))


# ---- other ends ----------------------------------------------------------------------------------
def test_a_refused_request_says_where_it_ended(shared: Served) -> None:
    reply = shared.message("say hello", max_tokens=-1)
    assert reply.status_code == 400
    told = story(shared, reply.headers["request-id"])
    assert told["answer"]["end"] == "field" and told["admission"] is None
    assert [stage["name"] for stage in told["stages"]] == ["read", "parse"]
    assert "end: status 400, field" in texts(told) and "into parse" in texts(told)


def test_a_request_without_a_handler_has_a_story_too(shared: Served) -> None:
    told = story(shared, shared.client.get("/nope").headers["request-id"])
    assert told["answer"]["status"] == 404 and told["answer"]["end"] == "not_found"
    assert [stage["name"] for stage in told["stages"]] == ["handle"]


def test_a_client_that_never_sends_its_body(shared: Served) -> None:
    head = b"POST /v1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 500\r\n\r\n{"
    with shared.connect() as sock:
        sock.sendall(head)
        time.sleep(0.05)
    wait_until(lambda: latest(shared)["end"] == "client_gone")
    told = story(shared, latest(shared)["id"])
    assert told["answer"]["status"] == 0 and "no answer, client_gone" in texts(told)


def test_a_request_that_is_cancelled_while_it_waits(traced: Served) -> None:
    """All pages are promised to the first one, so the second one waits for them."""
    with serve(settings=settings(trace=True), pages=64, step_delay_us=SLOW_STEP_US) as served:
        with served.connect() as first, served.connect() as second:
            first.sendall(http_post(body("first", max_tokens=1800, stream=True, ignore_eos=True)))
            wait_until(lambda: served.region.stats()["running"] == 1)
            second.sendall(http_post(body("second", max_tokens=1800, stream=True)))
            wait_until(lambda: served.region.stats()["waiting"] == 1)
            waiting = latest(served)["id"]
            second.close()
            told = story(served, waiting)
            assert told["answer"]["end"] == "client_gone"
            assert told["stages"][-1]["name"] == "admit"
            wait_until(lambda: "ends: cancelled" in texts(story(served, waiting)))
            whole = texts(story(served, waiting))
            assert "waits for pages: it needs" in whole
            assert "the cancel is seen in state queued, after 0 tokens" in whole


def test_an_engine_that_dies_leaves_the_story_of_its_requests() -> None:
    with (
        serve(settings=settings(trace=True), step_delay_us=SLOW_STEP_US) as served,
        served.connect() as sock,
    ):
        sock.sendall(http_post(body("count", max_tokens=3000, stream=True)))
        wait_until(lambda: latest(served)["output_tokens"] > 2)
        running = latest(served)["id"]
        served.call(served.server.engine_lost)
        told = story(served, running)
        assert told["answer"]["end"] == "engine_lost"
        assert [stage["name"] for stage in told["stages"]][-1] == "generate"
        assert [event["what"] for event in told["events"]][:2] == ["taken", "admitted"]
        check_error(served.message(), 503, "")
        refused = story(served, latest(served)["id"])
        assert refused["answer"]["end"] == "engine_unavailable"


def test_requests_of_a_batch_have_stories(shared: Served) -> None:
    asked = [{"custom_id": "one", "params": body("say hello")}]
    batch = shared.client.post("/v1/messages/batches", json={"requests": asked}).json()
    path = f"/v1/messages/batches/{batch['id']}"
    wait_until(lambda: shared.client.get(path).json()["processing_status"] == "ended")
    rows = shared.client.get("/v1/debug/requests").json()["data"]
    stories = [story(shared, row["id"]) for row in rows if row["path"] == "/v1/messages"]
    assert any("of a batch: head parsed" in texts(told) for told in stories)


def test_calls_of_grpc_have_stories_that_name_their_carrier(shared: Served) -> None:
    for messages, end in (([request()], "end_turn"), ([b"\xff"], "call_message")):
        _, carrier = begun(shared, CREATE, messages)
        wait_until(lambda told=carrier: told.status is not None)
        wait_until(lambda wanted=end: latest(shared)["end"] == wanted)
        told = story(shared, latest(shared)["id"])
        assert told["request"]["protocol"] == carrier.protocol
        assert f"/v1/messages over {carrier.protocol}" in texts(told)


# ---- who may ask ---------------------------------------------------------------------------------
def test_a_key_sees_its_own_requests_alone() -> None:
    with serve(settings=settings(api_keys=("key-one", "key-two"))) as served:
        one, two = ({"x-api-key": key} for key in ("key-one", "key-two"))
        reply = served.client.post("/v1/messages", json=body(), headers=one)
        path = f"/v1/debug/requests/{reply.headers['request-id']}"
        wait_until(lambda: served.client.get(path, headers=one).status_code == 200)
        check_error(served.client.get(path, headers=two), 404, "There is no request of yours")
        check_error(served.client.get(path), 401, "A valid API key is needed")
        assert served.client.get("/v1/debug/requests", headers=two).json()["data"] == []


def test_no_story_holds_a_word_of_the_prompt_or_the_answer(traced: Served) -> None:
    reply = traced.message("say hello to Quetzalcoatl", max_tokens=20)
    assert "Hello there" in reply.text
    whole = msgspec.json.encode(story(traced, reply.headers["request-id"]))
    assert b"Quetzal" not in whole and b"Hello" not in whole


def test_an_unknown_id_is_a_typed_error(shared: Served) -> None:
    reply = shared.client.get("/v1/debug/requests/req_nobody")
    check_error(reply, 404, f"There is no request of yours with this id here. The last "
                            f"{limits.STORIES_MAX}")  # fmt: skip
    assert shared.client.get("/v1/debug/requests").json()["data"][0]["id"] != "req_nobody"


# ---- followers -----------------------------------------------------------------------------------
class Heard:
    """Follows a server on a thread."""

    def __init__(self, served: Served, key: str = "") -> None:
        self.events: list[tuple[str, Any]] = []
        self._connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
        self._connection.connect()
        self._socket = self._connection.sock
        self._connection.request("GET", "/v1/debug/events", headers={"x-api-key": key})
        self._response = self._connection.getresponse()
        self.status = self._response.status
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        name = ""
        with contextlib.suppress(OSError, http.client.HTTPException):
            while line := self._response.readline():
                if line.startswith(b"event: "):
                    name = line[7:-1].decode()
                elif line.startswith(b"data: "):
                    self.events.append((name, msgspec.json.decode(line[6:])))

    def of(self, name: str) -> list[Any]:
        return [data for event, data in list(self.events) if event == name]

    def loop(self, request_id: str) -> list[str]:
        """Kinds of what the loop has told of a request."""
        return [e["what"] for told in self.of("loop") for e in told if e["id"] == request_id]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._connection.close()


def test_who_follows_hears_it_as_it_happens_and_leaves_nothing_on() -> None:
    with serve(step_delay_us=SLOW_STEP_US) as served:
        quiet = served.message().headers["request-id"]
        heard = Heard(served)
        wait_until(lambda: heard.of("server") != [])
        reply = served.message("count", max_tokens=8)
        request_id = reply.headers["request-id"]
        wait_until(lambda: any(told["id"] == request_id for told in heard.of("story")))
        wait_until(lambda: "finished" in heard.loop(request_id))
        assert heard.loop(request_id)[:2] == ["taken", "admitted"]
        assert heard.loop("").count("step") >= 8, "of the loop itself"
        (begun,) = heard.of("request")
        assert begun["id"] == request_id and begun["state"] == "running"
        names = [name for name, _ in heard.events]
        assert names.index("request") < names.index("loop") < names.index("story")
        assert story(served, quiet)["events"] == [], "nobody followed then"
        heard.close()
        wait_until(lambda: served.call(lambda: served.server.stories.has_followers) is False)
        after = served.message("count", max_tokens=8).headers["request-id"]
        assert story(served, after)["events"] == []


def test_followers_are_bounded() -> None:
    with serve() as served:
        followers = [Heard(served) for _ in range(limits.FOLLOWERS_MAX)]
        assert {heard.status for heard in followers} == {200}
        refused = served.client.get("/v1/debug/events")
        check_error(refused, 429, f"{limits.FOLLOWERS_MAX} debuggers follow this server already")
        followers.pop().close()
        wait_until(lambda: served.call(lambda: not served.server.stories.followers_max(b"")))
        for heard in followers:
            heard.close()


def test_one_key_leaves_places_to_others(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    one, other = (add_key(path, name, KeyLimits()) for name in ("one", "other"))
    with serve(settings=EdgeSettings(keys_file=str(path), data_dir=str(tmp_path))) as served:
        followers = [Heard(served, one) for _ in range(limits.FOLLOWERS_PER_KEY_MAX)]
        refused = served.client.get("/v1/debug/events", headers={"x-api-key": one})
        check_error(refused, 429, "4 debuggers with this key follow this server already")
        followers.append(Heard(served, other))
        assert {heard.status for heard in followers} == {200}
        for heard in followers:
            heard.close()


def test_a_server_that_ends_ends_the_streams_of_its_followers() -> None:
    with serve() as served:
        heard = Heard(served)
        wait_until(lambda: heard.of("server") != [])
        served.call(served.server.close)
        heard.close()
        assert heard.of("server")


# ---- bounds --------------------------------------------------------------------------------------
def test_only_the_last_stories_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STORIES_MAX", 3)
    with serve() as served:
        ids = [served.client.get("/nope").headers["request-id"] for _ in range(5)]
        rows = served.client.get("/v1/debug/requests").json()["data"]
        assert [row["id"] for row in rows] == ids[:1:-1]
        assert served.client.get(f"/v1/debug/requests/{ids[0]}").status_code == 404


def test_details_are_bounded_per_request_and_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STORY_BYTES_MAX", 1280)
    monkeypatch.setattr(limits, "STORY_RECORDS_BYTES_MAX", 2000)
    with serve(settings=settings(trace=True), step_delay_us=500) as served:
        first = served.message("count", max_tokens=30).headers["request-id"]
        told = story(served, first)
        assert 20 <= len(told["events"]) <= 21 and told["left_out_records"] > 10
        second = served.message("count", max_tokens=30).headers["request-id"]
        wait_until(lambda: story(served, second)["events"] != [])
        wait_until(lambda: story(served, first)["events"] == [])
        assert story(served, first)["left_out_records"] > told["left_out_records"]
        stories: Stories = served.server.stories
        assert stories.records_bytes <= 2000


def test_records_that_came_too_fast_are_counted() -> None:
    with serve(settings=settings(trace=True), step_delay_us=SLOW_STEP_US) as served:
        assert served.server.engine is not None
        trace = served.server.engine.trace
        with served.connect() as sock:
            sock.sendall(http_post(body("count", max_tokens=3000, stream=True)))
            wait_until(lambda: latest(served)["output_tokens"] > 2)
            running = latest(served)["id"]
            trace.read = lambda: (7, b"")  # type: ignore[method-assign]
            path = f"/v1/debug/requests/{running}"
            wait_until(lambda: served.client.get(path).json()["missed_records"] > 0)
        told = story(served, running)
        assert told["missed_records"] % 7 == 0 < told["answer"]["output_tokens"]


def test_nonsense_in_the_ring_is_no_record() -> None:
    """The loop's memory is input: kinds that are none, and a head that runs ahead."""
    with serve(settings=settings(trace=True), step_delay_us=SLOW_STEP_US) as served:
        loop = ring.LoopTwin(served.region)
        running = served.message("count", max_tokens=5).headers["request-id"]
        wait_until(lambda: story(served, running)["events"] != [])
        head = loop.read_u64(ring.TRACE_HEAD)
        loop.trace(1, 99, 0, 1)
        loop.trace(1, -1, -1, 0)
        loop.trace(1, 7, 0, 1, 12345)  # a state that is none
        loop.write_u64(ring.TRACE_HEAD, head + 3 + _core.LIMITS["TRACE_RECORDS"] * 9)
        served.call(served.server.stories.collect)
        told = story(served, running)
        kinds = {name for name, _ in _core.TRACE_EVENTS}
        assert {event["what"] for event in told["events"]} <= kinds
        assert served.message("say hello").status_code == 200
        assert told["lines"]


def test_what_an_answer_is_held_to_has_its_own_moment(shared: Served) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    wanted = {"format": {"type": "json_schema", "schema": schema}}
    reply = shared.message("say hello", output_config=wanted, max_tokens=30)
    told = story(shared, reply.headers["request-id"])
    (line,) = [line for line in told["lines"] if "constraint compiled" in line["text"]]
    inside = {stage["name"]: stage for stage in told["stages"]}["publish"]
    assert inside["begin_ns"] <= line["ns"] <= inside["end_ns"]


# ---- the decision about a long prompt ------------------------------------------------------------
def test_f53_one_decision_is_made_of_all_inputs_and_told() -> None:
    system = "The rules of the house are long. " * 160
    paragraphs = [
        f"Paragraph {number} says one thing and then another. " * 3 for number in range(110)
    ]
    messages = [
        {"role": "user", "content": "a " * 1000},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "\n\n".join(paragraphs)},
    ]
    with serve(context_tokens=32_768, pages=1200) as served:
        reply = served.message(messages=messages, system=system, max_tokens=4)
        assert reply.status_code == 200, reply.text
        told = story(served, reply.headers["request-id"])
        small = story(served, served.message(max_tokens=4).headers["request-id"])
        asked = {"messages": messages, "system": system}
        ids = served.client.post("/tokenize", json=asked).json()["tokens"]
        by_messages, by_paragraphs = served.server.model.borders.find(ids)
    borders = [decision.Border(place, "message") for place in by_messages]
    borders += [decision.Border(place, "paragraph") for place in by_paragraphs]
    wanted = decision.decide(
        decision.Request(
            prompt_tokens=len(ids),
            output_tokens_max=4,
            system_characters=len(system),
            borders=tuple(borders),
            profile=told["request"]["profile"],
            streamed=False,
        ),
        decision.Hardware(role="engine"),
    )
    assert len(by_messages) == 4 and len(by_paragraphs) == 109
    assert wanted.split == "semantic" and len(wanted.shard_ends) > 2
    assert told["shard"] == msgspec.json.decode(msgspec.json.encode(wanted))
    assert set(wanted.shard_ends[:-1]) <= {
        place // BLOCK * BLOCK for place in (*by_messages, *by_paragraphs)
    }
    ends = ", ".join(f"{end:,}" for end in wanted.shard_ends)
    assert f"split semantic, shards end at {ends}" in texts(told)
    assert small["shard"]["split"] == "none"
