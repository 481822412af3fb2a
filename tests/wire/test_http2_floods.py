"""Floods of HTTP/2 on the gRPC port, sent without a key: each ends its call or its connection, and
the work it causes grows no faster than its bytes."""

import time
from collections.abc import Iterator

import pytest

import http2_frames as h2
from harness import Served, serve

PATH = "/sublimate.v1.Messages/ListModels"
LIST = h2.message(b"")
RESOURCE_EXHAUSTED = b"8"


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve(grpc=True) as running:
        yield running


def with_references(count: int) -> bytes:
    """The head of a call: a field of 4,000 bytes that the table keeps, and references to it."""
    size = bytes([127]) + h2.integer(4000 - 127)
    return h2.call_head(PATH) + b"\x40\1x" + size + b"a" * 4000 + b"\xbe" * count


def cpu_seconds(served: Served, data: bytes) -> tuple[float, bytes]:
    """What the whole process has spent until the call has ended, and its status."""
    begun = time.process_time()
    with h2.Connection(served.server.ports["grpc"]) as connection:
        connection.send(data)
        ended = connection.until(h2.HEADERS, 5) or connection.until(h2.GOAWAY, 5)
    assert ended is not None, "the call did not end"
    return time.process_time() - begun, ended.payload


@pytest.mark.parametrize("count", [100, 4000])
def test_f01_repeats_are_counted_before_anything_is_joined(served: Served, count: int) -> None:
    data = h2.headers(1, with_references(count)) + h2.frame(h2.DATA, h2.END_STREAM, 1, LIST)
    spent, _ = cpu_seconds(served, data)
    assert spent < 1.0
    assert served.client.get("/livez").status_code == 200
