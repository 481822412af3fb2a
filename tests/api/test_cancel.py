"""A client that goes away: in the queue, in prefill, in decode, streaming or not."""

import logging
import random
import socket
import struct
import threading
import time
from typing import Any

import pytest

from grammar import check_stream
from harness import Served, body, http_post, read_reply, serve, wait_until
from sublimate.edge import limits
from sublimate.edge.generate import prepare
from sublimate.edge.limits import HttpLimits

QUICK_PINGS = HttpLimits(ping_seconds=0.2)


def settled(served: Served) -> None:
    """Everything is given back. That it was by a cancel is for the caller to check."""
    wait_until(served.idle)
    assert served.engine.audit() == ""
    wait_until(lambda: served.call(lambda: served.server.metrics.answers()) == 0)


@pytest.mark.parametrize("stream", [False, True])
def test_in_decode(stream: bool) -> None:
    with serve(step_delay_us=2000) as served:
        with served.connect() as sock:
            sock.sendall(http_post(body("count", max_tokens=3000, stream=stream)))
            wait_until(lambda: served.region.stats()["generated_tokens"] > 3)
        settled(served)
        assert served.region.stats()["cancelled_decode"] == 1
        assert served.region.stats()["generated_tokens"] < 1500, "of 3000 that it wanted"
        assert served.metrics.ends["client_gone"] == 1


@pytest.mark.parametrize("stream", [False, True])
def test_the_log_line_tells_the_tokens_of_who_left(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sublimate.request")
    with serve(step_delay_us=2000) as served:
        with served.connect() as sock:
            sock.sendall(http_post(body("count", max_tokens=3000, stream=stream)))
            wait_until(lambda: served.region.stats()["generated_tokens"] > 20)
        settled(served)
    (line,) = [r.fields for r in caplog.records if getattr(r, "fields", {}).get("end")]
    assert line["end"] == "client_gone" and 10 < line["output_tokens"] < 3000


@pytest.mark.parametrize("stream", [False, True])
def test_in_prefill(stream: bool) -> None:
    with serve(prefill_delay_us_per_token=300) as served:
        with served.connect() as sock:
            sock.sendall(http_post(body("x" * 6000, stream=stream)))
            wait_until(lambda: served.region.stats()["running"] == 1)
            assert served.region.stats()["generated_tokens"] == 0
        settled(served)
        assert served.region.stats()["cancelled_prefill"] == 1
        assert served.region.stats()["generated_tokens"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_in_the_queue(stream: bool) -> None:
    with serve(pages=16, context_tokens=512, step_delay_us=9000) as served:
        with served.connect() as first:
            first.sendall(http_post(body("count", max_tokens=440)))
            wait_until(lambda: served.region.stats()["running"] == 1)
            with served.connect() as second:
                second.sendall(http_post(body("count", max_tokens=440, stream=stream)))
                wait_until(lambda: served.region.stats()["waiting"] == 1)
            wait_until(lambda: served.region.stats()["cancelled_queue"] == 1, 3.5)
            assert served.region.stats()["running"] == 1, "the other one goes on"
            assert read_reply(first).status == 200
        settled(served)


def read_to_the_end(sock: socket.socket) -> bytes:
    received = b""
    while piece := sock.recv(65536):
        received += piece
    return received


@pytest.mark.parametrize("stream", [False, True])
def test_f15_a_request_is_answered_after_half_a_close(shared: Served, stream: bool) -> None:
    with shared.connect() as sock:
        sock.sendall(http_post(body(stream=stream)))
        sock.shutdown(socket.SHUT_WR)
        received = read_to_the_end(sock)
    assert received.startswith(b"HTTP/1.1 200")
    assert received.endswith(b"0\r\n\r\n" if stream else b"}")


def test_f15_all_complete_requests_are_answered_and_the_cut_one_is_not(shared: Served) -> None:
    with shared.connect() as sock:
        sock.sendall(http_post(body()) * 3 + http_post(body())[:-1])
        sock.shutdown(socket.SHUT_WR)
        assert read_to_the_end(sock).count(b"HTTP/1.1 200") == 3


@pytest.mark.parametrize("stream", [False, True])
def test_f15_a_probe_does_not_harm_a_client_that_reads_on(stream: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "PROBE_SECONDS", 0.05)
        with serve(step_delay_us=3000) as served, served.connect() as sock:
            sock.sendall(http_post(body("count", max_tokens=200, stream=stream)))
            sock.shutdown(socket.SHUT_WR)
            received = read_to_the_end(sock)
            settled(served)
            assert served.region.stats()["finished"] == 1
            assert served.region.stats()["cancelled_decode"] == 0
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    while received.startswith(interim):
        received = received[len(interim) :]
    assert received.startswith(b"HTTP/1.1 200")
    assert interim not in received
    if stream:
        assert b"message_stop" in received


def test_f15_a_reset_after_half_a_close_cancels() -> None:
    with serve(step_delay_us=2000) as served:
        with served.connect() as sock:
            sock.sendall(http_post(body("count", max_tokens=3000)))
            sock.shutdown(socket.SHUT_WR)
            wait_until(lambda: served.region.stats()["generated_tokens"] > 3)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        settled(served)
        assert served.region.stats()["cancelled_decode"] == 1


def test_while_the_body_is_still_on_its_way(shared: Served) -> None:
    accepted = shared.region.stats()["accepted"]
    with shared.connect() as sock:
        sock.sendall(http_post(body())[:-20])
    time.sleep(0.1)
    assert shared.region.stats()["accepted"] == accepted


def test_after_the_last_byte_was_written() -> None:
    """The end of an answer and the end of its client may meet: nothing happens twice."""
    with serve() as served:
        for _ in range(100):
            with served.connect() as sock:
                sock.sendall(http_post(body("say hello", stream=True)))
                sock.recv(1)
        settled(served)
        stats = served.region.stats()
        assert stats["accepted"] == stats["finished"] == 100
        assert sum(served.metrics.ends.values()) == 100


def test_many_disconnects_at_random_leave_nothing_behind() -> None:
    draw = random.Random(7)
    with serve(step_delay_us=300, prefill_delay_us_per_token=5) as served:

        def client(seed: int) -> None:
            mine = random.Random(seed)
            for _ in range(12):
                request = body("count", max_tokens=mine.choice((5, 60)), stream=mine.random() < 0.7)
                with served.connect() as sock:
                    sock.sendall(http_post(request))
                    if mine.random() < 0.4:
                        time.sleep(mine.random() * 0.02)
                        continue
                    assert read_reply(sock).status == 200

        threads = [threading.Thread(target=client, args=(draw.random(),)) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        settled(served)
        stats = served.region.stats()
        assert stats["accepted"] == stats["finished"]
        assert stats["pages_free"] + stats["pages_cached"] == stats["pages_total"]
        assert served.message().status_code == 200


def test_pings_during_a_long_prefill() -> None:
    """message_start before prefill, then pings until the first token."""
    with serve(prefill_delay_us_per_token=2000, limits=QUICK_PINGS) as served:
        with served.connect() as sock:
            begun = time.monotonic()
            sock.sendall(http_post(body("x" * 2500 + "say hello", stream=True)))
            first = sock.recv(65536)
            assert time.monotonic() - begun < 2.5, "the first bytes do not wait for the prefill"
            assert b"message_start" in first
            last, gaps, received = time.monotonic(), [], first
            while not received.endswith(b"0\r\n\r\n"):
                received += sock.recv(65536)
                gaps.append(time.monotonic() - last)
                last = time.monotonic()
        assert received.count(b"event: ping") >= 2
        assert max(gaps) < 3, "the prefill takes more than five seconds"
        assert served.metrics.pings == received.count(b"event: ping")


def test_pings_in_the_queue_come_before_message_start() -> None:
    with serve(pages=16, context_tokens=512, step_delay_us=6000, limits=QUICK_PINGS) as served:
        with served.connect() as first, served.connect() as second:
            first.sendall(http_post(body("count", max_tokens=400)))
            wait_until(lambda: served.region.stats()["running"] == 1)
            second.sendall(http_post(body("say hello", max_tokens=400, stream=True)))
            begun = second.recv(65536)
            assert begun.startswith(b"HTTP/1.1 200") and b"message_start" not in begun
            reply = read_reply(second, begun)
            assert read_reply(first).status == 200
        folded = check_stream(reply.body)
        assert folded.pings >= 1 and folded.text == "Hello there!"
        assert reply.body.startswith(b'event: ping\ndata: {"type": "ping"}\n\n')


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_a_client_that_goes_while_it_is_prepared_leaves_a_trace(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    go_on, prepared = threading.Event(), threading.Event()

    def slowly(*arguments: Any, **named: Any) -> Any:
        go_on.wait(5)
        try:
            return prepare(*arguments, **named)
        finally:
            prepared.set()

    monkeypatch.setattr("sublimate.edge.generate.prepare", slowly)
    with serve(context_tokens=32_768) as served, caplog.at_level("INFO", "sublimate.request"):
        with served.connect() as sock:
            sock.sendall(http_post(body("x" * 20_000), path))
            wait_until(lambda: served.call(lambda: len(served.server._tasks)) == 1)
        responses = served.server.metrics.responses
        wait_until(lambda: responses["0"] == 1)
        assert served.metrics.ends["client_gone"] == (1 if path == "/v1/messages" else 0)
        go_on.set()
        assert prepared.wait(5)
        wait_until(lambda: not served.call(lambda: len(served.server._tasks)))
        assert sum(responses.values()) == 1, "and only once"
        (line,) = [getattr(record, "fields", {}) for record in caplog.records]
        assert line["end"] == "client_gone" and line["status"] == 0
        assert served.idle()


def test_the_promise_of_pings() -> None:
    from sublimate.edge import limits

    assert limits.PING_SECONDS + limits.TICK_SECONDS <= 10


def test_counting_does_not_wait_for_generation() -> None:
    with serve(step_delay_us=20_000) as served, served.connect() as busy:
        busy.sendall(http_post(body("count", max_tokens=3000, stream=True)))
        wait_until(lambda: served.region.stats()["running"] == 1)
        statuses: list[int] = []

        def count() -> None:
            reply = served.client.post("/v1/messages/count_tokens", json=body("hello " * 20))
            statuses.append(reply.status_code)

        threads = [threading.Thread(target=count) for _ in range(26)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert statuses == [200] * 26
        assert served.region.stats()["running"] == 1, "a minute of generation is still under way"
