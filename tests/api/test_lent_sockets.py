"""Streams whose frames the core writes to the connection itself, beside what the edge writes."""

import random
import socket
import threading
import time

import pytest

from grammar import check_stream
from harness import ANSWERS, Served, body, http_post, read_reply, serve, wait_until
from sublimate import _core
from sublimate.edge.limits import HttpLimits
from test_cancel import settled

COUNTED = str(ANSWERS["count"])


def read_stream(served: Served, text: str, max_tokens: int) -> bytes:
    with served.connect() as sock:
        sock.sendall(http_post(body(text, max_tokens=max_tokens, stream=True)))
        return read_reply(sock).body


def texts(stream: bytes) -> str:
    return check_stream(stream).text


def test_the_event_loop_sees_few_of_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(step_delay_us=500) as served:
        link = served.server.engine
        assert link is not None
        seen: list[_core.StreamEvent] = []
        deliver = link._deliver

        def counting(events: list[_core.StreamEvent]) -> None:
            seen.extend(events)
            deliver(events)

        monkeypatch.setattr(link, "_deliver", counting)
        assert texts(read_stream(served, "count", 400)) == COUNTED[:400]
        settled(served)
        assert len(seen) < 20, "the head, the first bytes and the end"
        gaps = served.metrics.inter_token
        assert sum(gaps.counts) > 200, "and all are counted"


def test_the_first_token_is_seen_when_it_comes_and_not_at_the_end() -> None:
    with serve(step_delay_us=5000) as served:
        read_stream(served, "count", 60)
        settled(served)
        metrics = served.metrics
        assert sum(metrics.first_token.counts) == 1 and metrics.first_token.sum < 0.15
        assert metrics.decode.sum > 0.25 > metrics.prefill.sum


def test_descriptors_of_those_who_leave_go_to_others_who_get_only_their_own() -> None:
    """Half of the clients leave in the middle, and new ones come at once on the same numbers."""
    failures: list[str] = []
    with serve(step_delay_us=300) as served:

        def client(seed: int) -> None:
            draw = random.Random(seed)
            for _ in range(12):
                if draw.random() < 0.5:
                    with served.connect() as sock:
                        sock.sendall(http_post(body("count", max_tokens=900, stream=True)))
                        time.sleep(draw.random() * 0.03)
                    continue
                said = texts(read_stream(served, "count", 60))
                if said != COUNTED[:60]:
                    failures.append(said)

        threads = [threading.Thread(target=client, args=(seed,)) for seed in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        settled(served)
    assert not failures


def test_a_reader_that_stops_and_goes_on_misses_nothing() -> None:
    """The kernel's buffers fill, the edge's take over, and later the core goes on."""
    limits = HttpLimits(unsent_bytes_max=8 << 20)
    with serve(limits=limits) as served:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(10)
        sock.connect(("127.0.0.1", served.port))
        with sock:
            sock.sendall(http_post(body("count", max_tokens=3000, stream=True)))
            wait_until(lambda: served.region.stats()["generated_tokens"] > 1500)
            time.sleep(0.05)
            assert texts(read_reply(sock).body) == COUNTED[:3000]


def test_pings_and_tokens_keep_their_order() -> None:
    with serve(step_delay_us=1_300_000, limits=HttpLimits(ping_seconds=0.2)) as served:
        stream = read_stream(served, "count", 4)
        check_stream(stream)
        assert stream.count(b"event: ping\n") >= 3 and texts(stream) == COUNTED[:4]


def test_http_1_0_gets_frames_without_chunks() -> None:
    with serve(step_delay_us=500) as served, served.connect() as sock:
        request = http_post(body("count", max_tokens=50, stream=True))
        sock.sendall(request.replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        data = b""
        while more := sock.recv(1 << 16):
            data += more
        head, _, stream = data.partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert texts(stream) == COUNTED[:50]
