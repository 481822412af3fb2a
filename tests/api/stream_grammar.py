"""Checks every stream that any HTTP client of the tests reads to its end, by the grammar of its
API; a test cannot forget it. Streams that break off are an error of the transport and not checked.

With SUBLIMATE_TEST_WIRE=frames all streams of the Messages API come as binary frames, and the tests
see the same events as text: `make test-wire`.

defines: GRAMMARS, check_body, watch_streams, ask_for_frames
"""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import httpx2  # the Anthropic SDK's
import msgspec

from grammar import check_stream
from sublimate.api.routes import TABLE
from sublimate.edge.coding import FRAMES_TYPE
from sublimate.wire.frames import FrameDecoder, encode_sse

Json = dict[str, Any]
LIBRARIES = (httpx, httpx2)
UNDECIDED = ("*/*", "application/json")
"""What httpx and SDKs send where nobody chooses."""
ASKED = "sublimate-test-asked"


def check_messages(body: bytes) -> None:
    check_stream(body, may_fail=True)


def check_frames(body: bytes) -> None:
    decoder = FrameDecoder()
    events = decoder.feed(body)
    decoder.close()
    check_messages(b"".join(map(encode_sse, events)))


def _data_lines(body: bytes) -> list[bytes]:
    """What follows "data: ", frame by frame."""
    assert body.endswith(b"\n\n")
    lines = [line for line in body.split(b"\n") if line.startswith(b"data: ")]
    return [line.removeprefix(b"data: ") for line in lines]


def check_chunks(body: bytes) -> None:
    """Chat completions and completions: chunks of one answer, an end of each choice, [DONE]; or an
    error, which ends the stream."""
    *chunks, last = _data_lines(body)
    told: list[Json] = [msgspec.json.decode(chunk) for chunk in chunks]
    if last != b"[DONE]":
        assert msgspec.json.decode(last)["error"]["message"]
    elif told and "error" in told[-1]:
        told.pop()
    ended: set[int] = set()
    for chunk in told:
        assert chunk["object"] in ("chat.completion.chunk", "text_completion")
        same = [chunk[name] == told[0][name] for name in ("id", "model", "created", "object")]
        assert all(same), chunk
        for choice in chunk["choices"]:
            assert choice["index"] not in ended, "nothing follows a finish_reason"
            if choice["finish_reason"] is not None:
                ended.add(choice["index"])
    began = {choice["index"] for chunk in told for choice in chunk["choices"]}
    if last == b"[DONE]" and told:
        assert ended == began


def check_response_events(body: bytes) -> None:
    """The Responses API: numbered events from response.created to the end; items and their parts
    begin before they end, each once."""
    events: list[Json] = [msgspec.json.decode(line) for line in _data_lines(body)]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    names = [line for line in body.split(b"\n") if line.startswith(b"event: ")]
    assert names == [b"event: " + event["type"].encode() for event in events]
    assert events[0]["type"] in ("response.created", "error")
    ends = ("response.completed", "response.incomplete", "response.failed", "error")
    assert events[-1]["type"] in ends
    told = [event["type"] for event in events if event["type"] in ends]
    assert told in ([events[-1]["type"]], ["error", "response.failed"])
    open_items: set[int] = set()
    for event in events:
        index = event.get("output_index")
        if event["type"] == "response.output_item.added":
            assert index not in open_items
            open_items.add(index)
        elif index is not None:
            assert index in open_items, event
        if event["type"] == "response.output_item.done":
            open_items.remove(index)
    if events[-1]["type"] in ends[:2]:
        assert not open_items


def check_lines(body: bytes) -> None:
    """Ollama: lines of JSON, of which the last alone is done; or an error as the last."""
    lines: list[Json] = [msgspec.json.decode(line) for line in body.splitlines()]
    assert body.endswith(b"\n") and lines
    assert not any(line.get("done") or "error" in line for line in lines[:-1])
    assert lines[-1].get("done") is True or lines[-1]["error"]


def check_statuses(body: bytes) -> None:
    """Ollama's /api/pull: lines with a status, of which the last says success."""
    statuses = [msgspec.json.decode(line)["status"] for line in body.splitlines()]
    assert body.endswith(b"\n") and statuses[-1] == "success"


Grammar = Callable[[bytes], None]
# (path, content type) -> how its streams look.
GRAMMARS: dict[tuple[str, str], Grammar] = {
    ("/v1/messages", "text/event-stream"): check_messages,
    ("/v1/messages", FRAMES_TYPE): check_frames,
    ("/v1/chat/completions", "text/event-stream"): check_chunks,
    ("/v1/completions", "text/event-stream"): check_chunks,
    ("/v1/responses", "text/event-stream"): check_response_events,
    ("/api/chat", "application/x-ndjson"): check_lines,
    ("/api/generate", "application/x-ndjson"): check_lines,
    ("/api/pull", "application/x-ndjson"): check_statuses,
}


def check_body(path: str, content_type: str, body: bytes) -> None:
    """Raises AssertionError. So does a stream without a grammar on a path of the server's own."""
    kind = content_type.partition(";")[0]
    grammar = GRAMMARS.get((path, kind))
    if grammar or kind in ("text/event-stream", "application/x-ndjson"):
        assert grammar or path not in TABLE, f"{path} has streams and no grammar"
        if grammar:
            grammar(body)


class _Stream(
    httpx.SyncByteStream, httpx.AsyncByteStream, httpx2.SyncByteStream, httpx2.AsyncByteStream
):
    """A stream of either library, whose pieces go through `seen` and whose end is told."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def seen(self, piece: bytes) -> bytes:
        raise NotImplementedError

    def ended(self) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._stream:
            yield self.seen(piece)
        self.ended()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            yield self.seen(piece)
        self.ended()

    def close(self) -> None:
        self._stream.close()

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Watched(_Stream):
    """Checked once it is whole."""

    def __init__(self, stream: Any, path: str, content_type: str) -> None:
        super().__init__(stream)
        self._path, self._type = path, content_type
        self._received: list[bytes] = []

    def seen(self, piece: bytes) -> bytes:
        self._received.append(piece)
        return piece

    def ended(self) -> None:
        check_body(self._path, self._type, b"".join(self._received))


class _Translated(_Stream):
    """Frames as server-sent events."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._decoder = FrameDecoder()

    def seen(self, piece: bytes) -> bytes:
        return b"".join(map(encode_sse, self._decoder.feed(piece)))

    def ended(self) -> None:
        self._decoder.close()


def _around(
    patch: Any, library: Any, asked: Callable[[Any], Any], told: Callable[..., Any]
) -> None:
    """All requests of a library go through `asked`, and with their response through `told`."""
    sync = library.HTTPTransport.handle_request
    awaited = library.AsyncHTTPTransport.handle_async_request

    def handle(self: Any, request: Any) -> Any:
        return told(request, sync(self, asked(request)))

    async def handle_async(self: Any, request: Any) -> Any:
        return told(request, await awaited(self, asked(request)))

    patch.setattr(library.HTTPTransport, "handle_request", handle)
    patch.setattr(library.AsyncHTTPTransport, "handle_async_request", handle_async)


def ask_for_frames(patch: Any) -> None:
    """From now on, all clients over httpx on the Messages API's path, but where a test says itself
    which of the two it takes. Before watch_streams, which then sees the text. patch: a
    pytest.MonkeyPatch."""

    def asked(request: Any) -> Any:
        if request.url.path == "/v1/messages" and request.headers.get("accept") in UNDECIDED:
            request.headers["accept"] = FRAMES_TYPE
            request.extensions = {**request.extensions, ASKED: True}
        return request

    def told(request: Any, response: Any) -> Any:
        if ASKED in request.extensions and response.headers.get("content-type") == FRAMES_TYPE:
            response.headers["content-type"] = "text/event-stream; charset=utf-8"
            response.stream = _Translated(response.stream)
        return response

    for library in LIBRARIES:
        _around(patch, library, asked, told)


def watch_streams(patch: Any) -> None:
    """From now on, all clients over httpx, the SDKs among them. patch: a pytest.MonkeyPatch."""

    def told(request: Any, response: Any) -> Any:
        kind = response.headers.get("content-type", "")
        # What another server says goes on as it came: it need not know a prompt's tokens at once.
        if response.headers.get("x-compute-path") == "fallback":
            return response
        if response.status_code == 200 and "content-encoding" not in response.headers:
            response.stream = _Watched(response.stream, request.url.path, kind)
        return response

    for library in LIBRARIES:
        _around(patch, library, lambda request: request, told)
