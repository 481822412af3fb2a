"""A fallback that is no Sublimate: a server of the Messages API and one of chat completions, each
with what such servers say and this one has no word for, told to clients of gRPC and frames."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import grpc
import msgspec
import pytest

from grammar import check_stream
from harness import Served, body, serve
from sublimate.config import EdgeSettings
from sublimate.v1.messages_pb2 import CreateMessageRequest
from sublimate.wire.frames import FrameDecoder, encode_sse, event_json, message_json
from test_fallback import counted, down, fallback_of
from test_grpc import connected

Json = dict[str, Any]
CHAT_PATH = "/v1/chat/completions"
SAID = "From a stranger."
CALL: Json = {"type": "tool_use", "id": "toolu_9", "name": "look", "input": {"at": "it"}}
SEARCH: Json = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
USAGE: Json = {"input_tokens": 7, "cache_creation_input_tokens": None, "output_tokens": 0,
               "server_tool_use": {"web_search_requests": 1}}  # fmt: skip
MESSAGE: Json = {
    "type": "message",
    "content": [SEARCH, {"type": "text", "text": SAID, "citations": [{"type": "odd"}]},
                {**CALL, "caller": {"type": "direct"}}],
    "stop_reason": "tool_use",
    "usage": {**USAGE, "output_tokens": 5},
}  # fmt: skip


def delta(index: int, **told: str) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": told}


def block(index: int, begin: Json, *deltas: Json) -> list[Json]:
    start = {"type": "content_block_start", "index": index, "content_block": begin}
    return [start, *deltas, {"type": "content_block_stop", "index": index}]


EVENTS: list[Json] = [
    {"type": "message_start", "message": {"id": "msg_9", "role": "assistant", "usage": USAGE}},
    *block(0, SEARCH, delta(0, type="input_json_delta", partial_json="{}")),
    {"type": "ping"},
    *block(
        1,
        {"type": "text", "text": "", "citations": []},
        delta(1, type="text_delta", text=SAID[:6]),
        delta(1, type="citations_delta"),
        delta(1, type="text_delta", text=SAID[6:]),
    ),
    {"type": "vendor_event"},
    *block(
        2,
        {**CALL, "input": {}},
        delta(2, type="input_json_delta", partial_json=""),
        delta(2, type="input_json_delta", partial_json='{"at":"it"}'),
    ),
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 5}},
    {"type": "message_stop"},
]
FUNCTION: Json = {"name": "look", "arguments": '{"at":"it"}'}
CHAT: Json = {
    "choices": [{"finish_reason": "tool_calls", "logprobs": None, "message": {
        "role": "assistant", "content": SAID, "reasoning": "Hm.",
        "tool_calls": [{"id": "toolu_9", "type": "function", "function": FUNCTION}]}}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
}  # fmt: skip
CHUNKS: list[Json] = [
    *({"choices": [{"delta": one, "finish_reason": None}]} for one in (
        {"role": "assistant", "reasoning_content": "Hm."},
        {"content": SAID[:6]},
        {"content": SAID[6:]},
        {"tool_calls": [{"index": 0, "id": "toolu_9", "function": FUNCTION}]})),
    {"choices": [{"delta": {}, "finish_reason": "tool_calls"}], "usage": None},
    {"choices": [], "usage": CHAT["usage"]},
]  # fmt: skip


class Stranger(BaseHTTPRequestHandler):
    """Both APIs, each body ended by its connection."""

    whole: ClassVar[dict[str, Json]] = {"/v1/messages": MESSAGE, CHAT_PATH: CHAT}
    streams: ClassVar[dict[str, list[Json]]] = {"/v1/messages": EVENTS, CHAT_PATH: CHUNKS}

    def do_POST(self) -> None:
        asked = msgspec.json.decode(self.rfile.read(int(self.headers["content-length"])))
        if asked["messages"][0]["content"] == "odd":
            said = msgspec.json.encode({"type": "message", "content": "odd"})
            said = b'data: {"type":"message_start"}\n\n' if asked.get("stream") else said
        elif asked.get("stream"):
            said = b"".join(map(self.event, self.streams[self.path])) + b"data: [DONE]\n\n"
        else:
            said = msgspec.json.encode(self.whole[self.path])
        self.send_response(200)
        self.end_headers()
        self.wfile.write(said)

    def event(self, told: Json) -> bytes:
        """Without a space behind the colon, as some write it, and lines that end with both."""
        name = f"event:{told['type']}\r\n" if "type" in told else ""
        return name.encode() + b"data:" + msgspec.json.encode(told) + b"\r\n\r\n"

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def stranger() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module", params=["", CHAT_PATH], ids=("messages", "chat"))
def served(stranger: str, request: Any) -> Iterator[Served]:
    """All the time without its engine."""
    settings = EdgeSettings(fallback=stranger + request.param)
    with serve(settings=settings, grpc=True) as served, down(served):
        yield served


@pytest.fixture(scope="module")
def messages(stranger: str) -> Iterator[Served]:
    with serve(settings=EdgeSettings(fallback=stranger), grpc=True) as served, down(served):
        yield served


def asking(content: str = "hello", **fields: Any) -> CreateMessageRequest:
    return CreateMessageRequest(json_body=msgspec.json.encode(body(content, **fields)))


def check(message: Json) -> None:
    thought, text, call = [{}, *message["content"]][-3:]
    assert not thought or (thought["type"], thought["thinking"]) == ("thinking", "Hm.")
    assert (text["type"], text["text"]) == ("text", SAID)
    assert {name: call[name] for name in CALL} == CALL
    assert message["stop_reason"] == "tool_use" and message["id"].startswith("msg_")
    usage = message["usage"]
    assert usage["output_tokens"] == 5 and usage["input_tokens"] == 7


def folded(events: list[Any]) -> Json:
    """A stream as the message that it stands for. Its grammar is that of this server's own but for
    counts, which a server of chat completions tells at the end."""
    told = [event_json(event) for event in events]
    told[0]["message"]["usage"] = {**told[-2]["usage"], "output_tokens": 0}
    told[0]["message"]["id"] = told[0]["message"]["id"] or "msg_1"
    sse = b"".join(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event))
                   for event in told)  # fmt: skip
    return check_stream(sse).message


def test_calls_of_grpc_are_answered_whole_and_as_streams(served: Served) -> None:
    with connected(served) as client:
        answer, call = client.CreateMessage.with_call(asking(), timeout=10)
        check(message_json(answer))
        assert dict(call.initial_metadata())["x-compute-path"] == "fallback"
        check(folded(list(client.stream(asking(), timeout=10).call)))
    assert counted(served, "fallback_ends_total", 'end="failed"') == 0


def test_frames_are_made_of_what_it_says(served: Served) -> None:
    accept = {"accept": "application/octet-stream"}
    reply = served.client.post("/v1/messages", json=body(stream=True), headers=accept)
    assert reply.headers["content-type"] == accept["accept"]
    check(folded(FrameDecoder().feed(reply.content)))


def test_clients_of_json_get_what_it_says_as_it_is(messages: Served) -> None:
    assert messages.message("hello").json() == MESSAGE
    text = messages.client.post("/v1/messages", json=body(stream=True)).text
    told = [msgspec.json.decode(line[5:]) for line in text.splitlines() if line[:6] == "data:{"]
    assert told == EVENTS


def test_one_key_in_any_form(served: Served) -> None:
    """Kept as it was said to the first that asked, for the others in theirs."""
    metadata = [("idempotency-key", "whole")]
    asked, stream = body(), body(stream=True)
    first = served.client.post("/v1/messages", json=asked, headers=dict(metadata))
    streamed = served.client.post("/v1/messages", json=stream, headers={"idempotency-key": "s"})
    assert first.status_code == streamed.status_code == 200
    with connected(served) as client:
        request = CreateMessageRequest(json_body=msgspec.json.encode(asked))
        answer, call = client.CreateMessage.with_call(request, metadata=metadata, timeout=10)
        check(message_json(answer))
        assert dict(call.initial_metadata())["idempotency-replayed"] == "true"
        request = CreateMessageRequest(json_body=msgspec.json.encode(stream))
        events = client.stream(request, metadata=[("idempotency-key", "s")], timeout=10).call
        check(folded(list(events)))


def test_an_answer_without_a_form_leaves_the_other_server_in_use(messages: Served) -> None:
    before = counted(messages, "fallback_ends_total", 'end="inexpressible"')
    keyed = {"idempotency-key": "odd"}
    assert messages.client.post("/v1/messages", json=body("odd"), headers=keyed).status_code == 200
    with connected(messages) as client:
        for _ in range(4):
            with pytest.raises(grpc.RpcError) as refused:
                client.CreateMessage(asking("odd"), timeout=10)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            with pytest.raises(grpc.RpcError) as refused:
                list(client.stream(asking("odd"), timeout=10))
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        with pytest.raises(grpc.RpcError, match="no form in gRPC"):
            client.CreateMessage(asking("odd"), metadata=[*keyed.items()], timeout=10)
        assert fallback_of(messages).circuit.state == "closed"
        assert counted(messages, "fallback_ends_total", 'end="inexpressible"') == before + 8
        check(message_json(client.CreateMessage(asking(), timeout=10)))


def test_a_stream_that_is_repeated_without_a_form_ends_with_an_error() -> None:
    from sublimate.api.messages.framed import retelling

    retell = retelling(to_frames=True)
    ping, odd = b'event: ping\ndata: {"type": "ping"}\n\n', b'data: {"type": "message_start"}\n\n'
    decoder = FrameDecoder()
    told = [*map(encode_sse, decoder.feed(retell(ping) + retell(odd + ping) + retell(ping)))]
    assert told[0].startswith(b"event: ping") and len(told) == 2
    assert b"no form in gRPC or binary frames" in told[1] and decoder.is_ended
