"""Entrances that are functions: text, templates, tokens, grammars, answers, frames, other servers'
streams and the supervisor's sockets."""

import asyncio
import itertools
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from growth import Run, check_growth
from sublimate import _core
from sublimate.api.fallback import _blocks, _until_end
from sublimate.config import Settings, cache_folder
from sublimate.control import channel
from sublimate.control.channel import Channel
from sublimate.control.door import AskModels, Door, Told
from sublimate.edge.coding import accepts_frames, accepts_gzip
from sublimate.edge.textmodel import TextModel, load_text_model
from sublimate.grammar.compiler import Grammars, Wanted
from sublimate.grammar.matcher import Matcher
from sublimate.grammar.schema import enforceable
from sublimate.guard.chat_form import ChatEvents
from sublimate.guard.message_form import FittedEvents, fitted_message
from sublimate.model.files import fetch
from sublimate.model.tool_formats import FORMATS, Tool
from sublimate.model.turns import said
from sublimate.v1 import frames_pb2 as v1
from sublimate.wire.frames import FrameDecoder, encode_frame
from test_blocks import HERMES
from test_http import SCHEMAS, definitions
from test_text import Stream
from tiny_model import tiny_model


@pytest.fixture(scope="module")
def model() -> TextModel:
    """The default model's text side."""
    return load_text_model(str(fetch("default", cache_folder(Settings())).path))


# ---- tokens --------------------------------------------------------------------------------------
TEXTS: dict[str, Callable[[int], str]] = {
    "words": lambda n: "word " * n,
    "different words": lambda n: " ".join(f"w{i:x}" for i in range(n)),
    "one long word": lambda n: "ab" * n,
    "one letter": lambda n: "a" * n,
    "spaces": lambda n: " " * n,
    "lines": lambda n: "\n" * n,
    "spaces and lines": lambda n: " \n" * n,
    "digits": lambda n: "7" * n,
    "punctuation": lambda n: "!?" * n,
    "emoji": lambda n: "😸" * n,
    "Chinese": lambda n: "你好" * n,
    "combining marks": lambda n: "e" + "\u0301" * n,
    "control words": lambda n: "<|im_start|>" * n,
    "beginnings of control words": lambda n: "<|im_" * n,
    "zeros": lambda n: "\0" * n,
}


@pytest.mark.parametrize("name", TEXTS)
def test_tokens(model: TextModel, name: str) -> None:
    def make(count: int) -> Run:
        text = TEXTS[name](count)
        return lambda: model.tokenizer.encode(text)

    check_growth(make, 3000)


@pytest.mark.parametrize("name", TEXTS)
def test_rendered_tokens(model: TextModel, name: str) -> None:
    def make(count: int) -> Run:
        turns = [said("user", TEXTS[name](count))]

        def run() -> None:
            rendered = model.template.render(turns)
            model.tokenizer.encode_rendered(rendered.text, rendered.marker)

        return run

    check_growth(make, 2000)


def test_turns_of_a_template(model: TextModel) -> None:
    def make(count: int) -> Run:
        turns = [said("assistant" if i % 2 else "user", "a") for i in range(count)]
        return lambda: model.template.render([*turns, said("user", "b")])

    check_growth(make, 500)


def test_tools_of_a_template(model: TextModel) -> None:
    def make(count: int) -> Run:
        tools = [Tool(f"t{i}", "d", {"type": "object"}) for i in range(count)]
        return lambda: model.template.render([said("user", "b")], tools)

    check_growth(make, 100)


# ---- answers -------------------------------------------------------------------------------------
def answer(tokens: Sequence[bytes], ids: Sequence[int], polls_apart: int = 1, **how: Any) -> Run:
    """The text of an answer, token by token."""

    def run() -> None:
        stream = Stream(tokens, **how)
        for begin in range(0, len(ids), polls_apart):
            stream.push(*(stream.token(one) for one in ids[begin : begin + polls_apart]))
            stream.poll()
        stream.close()

    return run


def arguments_of_a_call(count: int, form: str, eager: bool) -> Run:
    """A tool call whose arguments come in pieces of a few characters."""
    opening = b'<tool_call>\n{"name": "get", "arguments": {"a": "'
    tokens = [opening, b"abcdefgh " * 8, b'"}}\n</tool_call>']
    made = _core.BlockFormat(
        tool_names=["get"], openings=HERMES.openings, closing=HERMES.closing,
        name_end=HERMES.name_end, id_opening=HERMES.id_opening, name_key=HERMES.name_key,
        arguments_key=HERMES.arguments_key, bare=HERMES.bare, eager=eager,
    )  # fmt: skip
    return answer(tokens, [0, *[1] * count, 2], form=form, blocks=made)


ANSWERS: dict[str, Callable[[int], Run]] = {
    "events": lambda n: answer([b"ab "], [0] * n),
    "text": lambda n: answer([b"ab "], [0] * n, form="text"),
    "many tokens a poll": lambda n: answer([b"ab "], [0] * n, 16),
    "near stop strings": lambda n: answer([b"a"], [0] * n, stops=["a" * 200 + "b", "aab"]),
    "unfinished code points": lambda n: answer([b"\xf0\x9f", b"\x98"], [0, 1] * (n // 2)),
    "arguments of a call": lambda n: arguments_of_a_call(n, "sse", False),
    "arguments of a call at once": lambda n: arguments_of_a_call(n, "sse", True),
    "arguments of a call as text": lambda n: arguments_of_a_call(n, "text", False),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers(name: str) -> None:
    check_growth(ANSWERS[name], 240)


# ---- grammars ------------------------------------------------------------------------------------
NUMBERS = itertools.count()


def aliases(count: int) -> dict[str, Any]:
    """A chain of references, the last of which is found first."""
    chain = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(count)}
    return {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/d0"}},
        "$defs": {**chain, f"d{count}": {"type": "string"}},
    }


def requirements(count: int) -> dict[str, Any]:
    """A chain that has no end: each requires the next, and the last one the first."""
    defined = {
        f"d{i}": {
            "type": "object",
            "properties": {"n": {"$ref": f"#/$defs/d{(i + 1) % count}"}},
            "required": ["n"],
        }
        for i in range(count)
    }
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": defined}


def all_of(count: int) -> dict[str, Any]:
    chain = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}]} for i in range(count)}
    return {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/d0"}},
        "$defs": {**chain, f"d{count}": {"type": "string"}},
    }


def patterns(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"type": "string", "pattern": "a?" * count}}}


@pytest.mark.parametrize("schema", [*SCHEMAS, aliases, requirements, all_of, patterns])
def test_schemas(schema: Callable[[int], dict[str, Any]]) -> None:
    """A new one each time: what is enforceable of a schema is remembered."""

    def make(count: int) -> Run:
        return lambda: enforceable({**schema(count), "$id": f"urn:{next(NUMBERS)}"})

    check_growth(make, 100)


def test_a_chain_of_references_as_long_as_a_body_ends_no_process() -> None:
    """The library follows it by recursion: on a thread of the server that has room for that."""
    grammars = tiny_model().grammars
    wanted = Wanted(answer_schema=definitions(20_000))

    async def compiled() -> Any:
        from sublimate.api.routes import ROUTES
        from sublimate.config import EdgeSettings
        from sublimate.edge.app import EdgeServer

        server = EdgeServer(EdgeSettings(), tiny_model(), ROUTES)
        try:
            work = server.loop.run_in_executor(server.workers, grammars.constraint, wanted)
            return await work
        finally:
            server.close()
            await server.wait_closed()

    assert asyncio.run(compiled()) is not None


def test_an_answer_under_a_grammar() -> None:
    grammars: Grammars = tiny_model().grammars
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}}
    constraint = grammars.constraint(Wanted(answer_schema=schema))
    assert constraint is not None
    ids = {constraint.vocabulary.token_bytes[i]: i for i in range(3, 259)}

    def make(count: int) -> Run:
        text = b'{"a":[' + b'"b",' * count

        def run() -> None:
            matcher, words = Matcher(constraint), constraint.vocabulary.words([])
            for code in text:
                matcher.fill(words)
                matcher.consume([ids[bytes([code])]])

        return run

    check_growth(make, 20)


# ---- frames and other servers' streams -----------------------------------------------------------
def frames(count: int) -> bytes:
    delta = v1.ContentBlockDelta(index=0, text="a")
    return encode_frame(v1.StreamEvent(content_block_delta=delta)) * count


def fed(data: bytes, piece: int) -> Run:
    pieces = [data[i : i + piece] for i in range(0, len(data), piece)]

    def run() -> None:
        decoder = FrameDecoder()
        for one in pieces:
            decoder.feed(one)

    return run


def large_frame(count: int) -> bytes:
    delta = v1.ContentBlockDelta(index=0, text="a" * count)
    return encode_frame(v1.StreamEvent(content_block_delta=delta))


class Pieces:
    """What another server sends, piece by piece."""

    def __init__(self, data: bytes, size: int) -> None:
        self._pieces = [data[i : i + size] for i in range(0, len(data), size)]

    async def pieces(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def event(data: object) -> bytes:
    return b"event: a\ndata: %b\n\n" % json.dumps(data).encode()


def upstream(data: bytes, size: int, chat: bool) -> Run:
    async def read() -> None:
        events = ChatEvents("m", "tiny") if chat else None
        blocks: Any = _blocks(Pieces(data, size))  # type: ignore[arg-type]
        async for _ in _until_end(blocks, events):
            pass

    return lambda: asyncio.run(read())


DELTA = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}
CHUNK = {"choices": [{"index": 0, "delta": {"content": "a"}}]}
STOP = event({"type": "message_stop"})
CHAT_STOP = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
CHAT_STOP += b"data: [DONE]\n\n"
STREAMS: dict[str, tuple[Callable[[int], Run], int]] = {
    "frames": (lambda n: fed(frames(n), 1 << 16), 2000),
    "frames byte by byte": (lambda n: fed(frames(n), 1), 1000),
    "a frame byte by byte": (lambda n: fed(large_frame(n), 1), 16_000),
    "events": (lambda n: upstream(event(DELTA) * n + STOP, 1 << 16, False), 1000),
    "events in small pieces": (lambda n: upstream(event(DELTA) * n + STOP, 8, False), 250),
    "an event in small pieces": (
        lambda n: upstream(event({**DELTA, "x": "a" * n}) + STOP, 16, False),
        64_000,
    ),
    "line ends": (lambda n: upstream(b"\n" * n + STOP, 16, False), 16_000),
    "chunks of a chat": (lambda n: upstream(event(CHUNK) * n + CHAT_STOP, 1 << 16, True), 1000),
    "calls of a chat": (
        lambda n: upstream(
            b"".join(
                event(
                    {
                        "choices": [
                            {
                                "index": 0,
                                "delta": {
                                    "tool_calls": [
                                        {
                                            "index": i,
                                            "id": f"c{i}",
                                            "function": {"name": "t", "arguments": "{}"},
                                        }
                                    ]
                                },
                            }
                        ]
                    }
                )
                for i in range(n)
            )
            + CHAT_STOP,
            1 << 16,
            True,
        ),
        500,
    ),
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams(name: str) -> None:
    make, units = STREAMS[name]
    check_growth(make, units)


def test_blocks_of_another_servers_message() -> None:
    def make(count: int) -> Run:
        message = {"type": "message", "content": [{"type": "text", "text": "a"}] * count}
        return lambda: fitted_message(message, "m", "tiny")

    check_growth(make, 2000)


def test_events_of_another_servers_message() -> None:
    def make(count: int) -> Run:
        def run() -> None:
            fitted = FittedEvents("m", "tiny")
            fitted.event({"type": "message_start", "message": {"content": [], "usage": {}}})
            for index in range(count):
                start = {"type": "text", "text": ""}
                fitted.event(
                    {"type": "content_block_start", "index": index, "content_block": start}
                )
                fitted.event({**DELTA, "index": index})
                fitted.event({"type": "content_block_stop", "index": index})

        return run

    check_growth(make, 500)


# ---- fields --------------------------------------------------------------------------------------
FIELDS: dict[str, Callable[[int], object]] = {
    "accept": lambda n: accepts_frames("application/octet-stream," + "a/b;q=1," * n),
    "accept parameters": lambda n: accepts_frames("application/octet-stream" + ";a=1" * n),
    "accept-encoding": lambda n: accepts_gzip("a;q=1," * n),
    "spaces": lambda n: accepts_frames("application/octet-stream" + " " * n),
}


@pytest.mark.parametrize("name", FIELDS)
def test_fields(name: str) -> None:
    check_growth(lambda n: lambda: FIELDS[name](n), 8000)


# ---- the supervisor's sockets --------------------------------------------------------------------
def test_questions_at_the_control_socket() -> None:
    address = f"\0sublimate-{os.getpid()}"

    def make(count: int) -> Run:
        def run() -> None:
            opened = Door()
            try:
                for _ in range(count):
                    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
                        sock.connect(address)
                        sock.send(b'{"op":"models"}')
                        opened.serve(lambda _: Told())
            finally:
                opened.close()

        return run

    check_growth(make, 50)
    assert AskModels.__struct_config__.tag == "models"


def test_messages_of_the_control_channel() -> None:
    def make(count: int) -> Run:
        def run() -> None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            sender, receiver = Channel(ours, channel.ToEdge), Channel(theirs, channel.FromEdge)
            for _ in range(count):
                sender.send(channel.Pong())
                receiver.receive()
            sender.close()
            receiver.close()

        return run

    check_growth(make, 500)


# ---- tool formats --------------------------------------------------------------------------------
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_calls_that_are_written(name: str) -> None:
    from sublimate.model.tool_formats import ToolCall

    def make(count: int) -> Run:
        calls = [ToolCall(str(i), "t", "{}") for i in range(count)]
        return lambda: FORMATS[name].calls_text(calls)

    check_growth(make, 1000)
