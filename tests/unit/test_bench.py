"""The load generator against small servers whose timing and faults are known."""

import asyncio
import contextlib
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from sublimate.bench import apis, load, served
from sublimate.bench.figures import Percentiles, Spread, percentile
from sublimate.bench.http import Exchange, Target, body_events, exchange
from sublimate.bench.load import Load, Peer, discover, run_round
from sublimate.bench.prompts import PromptMaker
from sublimate.errors import PeerError

LOAD = Load(concurrency=2, requests=4, prompt_tokens=10, generate_tokens=5, timeout_seconds=10.0)
Handler = Callable[[str, bytes, asyncio.StreamWriter], Awaitable[None]]


def count_words(text: str) -> int:
    return len(text.split())


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.current_task())
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = int(re.search(r"content-length: (\d+)", head)[1])
            body = await reader.readexactly(length)
            await handler(head.split()[1], body, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    tasks: list[asyncio.Task[None] | None] = []
    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await asyncio.gather(*(task for task in tasks if task), return_exceptions=True)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def reply(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body)


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def frame(**event: object) -> bytes:
    return b"event: x\ndata: " + msgspec.json.encode(event) + b"\n\n"


async def messages_server(path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
    """Streams `max_tokens` words, one frame each, cut at odd places into chunks."""
    if path == "/v1/models":
        writer.write(reply(200, b'{"data":[{"id":"tiny"}]}'))
        return
    if path != "/v1/messages":
        writer.write(reply(404, b"{}"))
        return
    request = msgspec.json.decode(body)
    writer.write(STREAM_HEAD)
    usage = {"input_tokens": 7, "cache_read_input_tokens": 3}
    writer.write(chunk(frame(type="message_start", message={"usage": usage})))
    for _ in range(request["max_tokens"]):
        await asyncio.sleep(0.005)
        data = frame(type="content_block_delta", delta={"type": "text_delta", "text": " w"})
        writer.write(chunk(data[:13]) + chunk(data[13:]))
    # The server claims a wrong count: a bench that trusts it would be wrong.
    writer.write(chunk(frame(type="message_delta", usage={"output_tokens": 99})))
    writer.write(chunk(frame(type="message_stop")) + b"0\r\n\r\n")
    await writer.drain()


async def test_a_messages_server_is_found_and_timed() -> None:
    async with serving(messages_server) as url:
        peer = await discover(url, "", "", LOAD)
        assert (peer.api.style, peer.model) == ("messages", "tiny")
        assert peer.forcing == {"ignore_eos": True, "min_tokens": 2}
        done: list[int] = []
        figures = await served.bench_one(
            peer, LOAD, 2, count_words, 1, lambda url, number, one: done.append(number)
        )
    assert done == [0, 1] and figures.requests == 8 and figures.errors == 0
    assert figures.output_tokens == 5 and figures.counted_by == "tokenizer"
    assert figures.input_tokens == 10
    assert figures.test == "pp10+tg5" and figures.batch == 2
    assert 4 < figures.first_token_ms.p50 < 1000
    assert 4 < figures.between_tokens_ms.p50 < 500
    assert figures.largest_gap_ms >= figures.between_tokens_ms.p99
    assert figures.tok_s_least <= figures.tok_s <= figures.tok_s_greatest


async def test_without_a_tokenizer_the_servers_count_is_named_as_such() -> None:
    async with serving(messages_server) as url:
        peer = await discover(url, "messages", "m", LOAD)
        figures = await served.bench_one(peer, LOAD, 1, None, 1, lambda *_: None)
    assert figures.counted_by == "usage" and figures.output_tokens == 99


async def test_an_openai_server_is_found_and_unknown_fields_are_left_out() -> None:
    seen: list[dict[str, object]] = []

    async def handler(path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if path != "/v1/chat/completions":
            writer.write(reply(404, b"{}"))
            return
        request = msgspec.json.decode(body)
        seen.append(request)
        if "min_tokens" in request:
            writer.write(reply(400, b'{"error":"min_tokens"}'))
            return
        writer.write(STREAM_HEAD)
        for word in (" a", " b"):
            data = frame(choices=[{"delta": {"content": word}}])
            writer.write(chunk(data))
        writer.write(chunk(frame(choices=[], usage={"completion_tokens": 2, "prompt_tokens": 4})))
        writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async with serving(handler) as url:
        peer = await discover(url + "/v1/", "", "m", LOAD)
        assert (peer.api.style, peer.forcing) == ("openai", {"ignore_eos": True})
        one = await run_round(peer, LOAD, PromptMaker(10, count_words, 1), count_words)
    assert [sample.tokens for sample in one.good] == [2, 2, 2, 2]
    assert one.samples[0].input_tokens == 4
    assert all(request["stream_options"] == {"include_usage": True} for request in seen)
    prompts = [request["messages"][0]["content"] for request in seen[-4:]]
    assert len(set(prompt.split()[0] for prompt in prompts)) == 4


async def test_errors_are_counted_with_their_text() -> None:
    count = 0

    async def handler(path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        if not body:  # what kind of server it is
            writer.write(reply(404, b"{}"))
            return
        count += 1
        if count <= 1:
            await messages_server(path, body, writer)
        elif count % 3 == 0:
            writer.write(reply(529, b'{"error":"overloaded"}'))
        elif count % 3 == 1:
            error = frame(type="error", error={"message": "lost"})
            writer.write(STREAM_HEAD + chunk(error) + b"0\r\n\r\n")
        else:
            writer.close()

    async with serving(handler) as url:
        peer = await discover(url, "messages", "m", LOAD)
        one = await run_round(peer, LOAD, PromptMaker(3, None, 1), None)
        figures = served.figures_of(peer, LOAD, [one], False)
    assert figures.errors == 4 and not one.good
    said = " ".join(figures.error_texts)
    assert "529" in said and "lost" in said
    assert figures.tok_s == 0 and math.isnan(figures.first_token_ms.p50)
    assert b"NaN" not in msgspec.json.encode(figures)


async def test_nothing_there_is_a_peer_error() -> None:
    async with serving(messages_server) as url:
        pass
    with pytest.raises(PeerError, match="Nothing answers"):
        await discover(url, "", "", LOAD)
    for wrong in ("ftp://x", "http://", "http://x:port"):
        with pytest.raises(PeerError, match="no "):
            Target.parse(wrong)


async def test_a_stream_without_end_is_cut() -> None:
    async def handler(path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM_HEAD)
        await writer.drain()
        await asyncio.sleep(1)

    async with serving(handler) as url:
        result = await exchange(Target.parse(url), "POST", "/", b"", {}, 0.2)
    assert result.error == "no end within 0 s" and result.status == 200


async def test_comparison_alternates_and_prefers_the_faster() -> None:
    order: list[str] = []

    async def slow(path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        await messages_server(path, body, writer)

    async with serving(messages_server) as fast_url, serving(slow) as slow_url:
        peers = (await discover(fast_url, "", "", LOAD), await discover(slow_url, "", "", LOAD))
        first, second, ratios = await served.bench_two(
            peers, LOAD, 3, count_words, 1, lambda url, number, one: order.append(url)
        )
    assert order == [fast_url, slow_url, slow_url, fast_url, fast_url, slow_url]
    assert (first.url, second.url) == (fast_url, slow_url)
    assert ratios.tok_s.median > 1.2 and ratios.first_token.least > 1.2
    assert ratios.tok_s.least <= ratios.tok_s.median <= ratios.tok_s.greatest


def arrived(pieces: list[bytes], chunked: bool) -> Exchange:
    arrivals = [(float(at), piece) for at, piece in enumerate(pieces)]
    return Exchange(started_seconds=0.0, status=200, chunked=chunked, arrivals=arrivals)


def test_chunks_may_be_cut_anywhere() -> None:
    data = b"data: one\n\ndata: two\r\n\r\n"
    wire = chunk(data[:4]) + chunk(data[4:17]) + chunk(data[17:]) + b"0\r\n\r\n"
    for size in range(1, len(wire) + 1):
        pieces = [wire[at : at + size] for at in range(0, len(wire), size)]
        events = list(body_events(arrived(pieces, True)))
        assert [event for _, event in events] == [b"one", b"two"], size
        assert arrived(pieces, True).body() == data
        if size == 1:
            # The time of an event is the arrival of its line's end.
            assert events[0][0] == wire.index(b"\n\ndata: two"[:1], 16)


def test_what_is_no_chunk_ends_the_body() -> None:
    assert arrived([b"zz\r\nabc"], True).body() == b""
    assert arrived([b"abc"], False).body() == b"abc"


def test_events_of_both_styles() -> None:
    assert apis.read_event(b'{"choices":[{"delta":{"content":"x"}}]}').text == "x"
    assert apis.read_event(b'{"choices":[{"delta":{"reasoning_content":"x"}}]}').text == "x"
    assert apis.read_event(b'{"type":"content_block_delta","delta":{"text":"y"}}').text == "y"
    assert apis.read_event(b'{"type":"message_stop"}').finished
    assert apis.read_event(b"[DONE]").finished
    assert apis.read_event(b'{"error":{"message":"bad"}}').error
    assert apis.read_event(b"{").error
    assert apis.read_event(b'{"type":"ping"}') == apis.Delta()


def test_prompts_have_the_length_asked_for_and_differ() -> None:
    maker = PromptMaker(50, count_words, 3)
    prompts = [maker.make() for _ in range(20)]
    assert {count_words(prompt) for prompt in prompts} == {50}
    assert len({prompt.split()[0] for prompt in prompts}) == 20
    assert PromptMaker(50, count_words, 3).make() == prompts[0]


def test_percentiles_against_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    values = [3.0, 1.0, 4.0, 1.5, 9.0, 2.6]
    for fraction in (0.0, 0.1, 0.5, 0.9, 0.99, 1.0):
        expected = numpy.percentile(values, 100 * fraction)
        assert percentile(values, fraction) == pytest.approx(expected)
    assert Percentiles.of([2.0]) == Percentiles(2.0, 2.0, 2.0)
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)


def test_ratios_say_how_often_the_first_is_better() -> None:
    def one(first_ms: float, tokens: int, seconds: float) -> load.Round:
        sample = load.Sample(
            first_token_ms=first_ms,
            last_token_ms=first_ms + 10 * (tokens - 1),
            gaps_ms=[10.0],
            tokens=tokens,
            input_tokens=1,
            claimed_tokens=tokens,
        )
        return load.Round(samples=[sample], wall_seconds=seconds)

    ratios = served.compare([one(10, 8, 1.0), one(10, 8, 1.0)], [one(30, 8, 2.0), one(20, 8, 4.0)])
    assert (ratios.tok_s.least, ratios.tok_s.greatest) == (2.0, 4.0)
    assert (ratios.first_token.least, ratios.first_token.greatest) == (2.0, 3.0)
    assert ratios.between_tokens.median == pytest.approx(1.0)


def test_peer_paths() -> None:
    target = Target.parse("localhost:8000/prefix/")
    assert (target.port, target.path, target.scheme) == (8000, "/prefix", "http")
    assert Target.parse("https://example.org").port == 443
    peer = Peer(url="u", target=target, api=apis.MESSAGES, model="m", forcing={})
    assert peer.target.path + peer.api.path == "/prefix/v1/messages"
