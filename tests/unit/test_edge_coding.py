"""Content codings: what a client accepts, and a compressed body that never grows past its limit."""

import gzip
import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublimate.edge.coding import GzipBody, accepts_gzip, compress, pays
from sublimate.edge.errors import ApiError
from sublimate.edge.limits import GZIP_BYTES_MAX, GZIP_BYTES_MIN


@pytest.mark.parametrize(
    ("field", "accepted"),
    [
        ("", False),
        ("gzip", True),
        ("gzip, deflate, br, zstd", True),
        ("br;q=1.0, GZIP;q=0.8", True),
        ("x-gzip", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("gzip;q=0.001", True),
        ("deflate, br", False),
        ("notgzip", False),
        ("identity", False),
    ],
)
def test_accept_encoding(field: str, accepted: bool) -> None:
    assert accepts_gzip(field) is accepted


def test_only_bodies_that_gain_are_compressed() -> None:
    assert not pays(GZIP_BYTES_MIN - 1) and pays(GZIP_BYTES_MIN)
    assert pays(GZIP_BYTES_MAX) and not pays(GZIP_BYTES_MAX + 1)
    body = b'{"a": 1}' * 4096
    assert gzip.decompress(compress(body)) == body and compress(body) == compress(body)


def decoded(data: bytes, cuts: list[int], bytes_max: int) -> bytes:
    """The body as it comes, cut at these places."""
    body = GzipBody(bytes_max)
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    pieces = [body.feed(data[a:b]) for a, b in itertools.pairwise(places)]
    body.finish()
    return b"".join(pieces)


@given(st.binary(max_size=2000), st.lists(st.integers(0, 5000), max_size=6))
def test_any_cutting_decodes_the_same(body: bytes, cuts: list[int]) -> None:
    assert decoded(gzip.compress(body), cuts, len(body)) == body


@given(st.integers(1, 100_000), st.lists(st.integers(0, 5000), max_size=6))
def test_a_bomb_ends_at_the_limit(extra: int, cuts: list[int]) -> None:
    data = gzip.compress(bytes(1000 + extra))
    with pytest.raises(ApiError) as caught:
        decoded(data, cuts, 1000)
    assert caught.value.code == "body_too_large_decoded" and caught.value.kind.status == 413


@pytest.mark.parametrize("bytes_max", [1000, 100_000])
@pytest.mark.parametrize("piece_bytes", [100, 1 << 20], ids=("in pieces", "at once"))
def test_a_bomb_takes_no_more_memory_than_its_limit(bytes_max: int, piece_bytes: int) -> None:
    data = gzip.compress(bytes(50_000_000))
    body = GzipBody(bytes_max)
    tracemalloc.start()
    try:
        with pytest.raises(ApiError):
            for begin in range(0, len(data), piece_bytes):
                body.feed(data[begin : begin + piece_bytes])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 * bytes_max + 2 * len(data) + 100_000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not gzip",
        gzip.compress(b"x" * 100)[:-1],
        gzip.compress(b"x")[:12],
        gzip.compress(b"x") + b"y",
        gzip.compress(b"x") + gzip.compress(b"y"),
        gzip.compress(b"x" * 100)[:-8] + bytes(8),
    ],
    ids=["nothing", "text", "cut", "a head only", "a byte behind", "two streams", "a wrong sum"],
)
def test_what_is_not_one_stream_is_refused(data: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        decoded(data, [], 1000)
    assert caught.value.code == "body_not_gzip" and caught.value.kind.status == 400
