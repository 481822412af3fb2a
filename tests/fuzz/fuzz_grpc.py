"""Fuzz target of gRPC's request side: bodies of calls that were broken somewhere, in any pieces, or
messages of methods with bytes changed.

Each body gives messages or a typed error, the same wherever it is cut; each message gives a request
of the HTTP API whose body is JSON, or a typed error.

    PYTHONPATH=tests python tests/fuzz/fuzz_grpc.py --seconds 60     # tests run it for a moment

defines: broken, one_body, run
"""

import itertools
import random
import sys

import msgspec
from google.protobuf.json_format import ParseDict

from fuzz.seeds import main, run_seeds
from sublimate.api.grpc.services import methods
from sublimate.edge.errors import ApiError
from sublimate.edge.grpc.framing import MessageReader, framed_message
from sublimate.edge.grpc.route import RouteMethod
from sublimate.v1.messages_pb2 import CreateMessageRequest

MOST = 4096
REQUEST = ParseDict(
    {
        "model": "m",
        "max_tokens": 7,
        "temperature": 0.5,
        "tools": [
            {"name": "f", "input_schema": {"type": "object", "required": ["a"]}},
            {"name": "g", "input_schema_json": '{"type": "object"}', "strict": True},
        ],
        "messages": [
            {"role": "user", "text": "é"},
            {
                "role": "assistant",
                "content": [
                    {"thinking": {"thinking": "t", "signature": "s"}},
                    {"tool_use": {"id": "1", "name": "f", "input": '{"a": 1}'}},
                ],
            },
            {"role": "user", "content": [{"tool_result": {"tool_use_id": "1", "text": "r"}}]},
        ],
        "extra_body": {"top_k": 3, "n": None},
    },
    CreateMessageRequest(),
).SerializeToString()
METHODS = [method for method in methods().values() if isinstance(method, RouteMethod)]
NUMBERS = (b"\0", b"\x01", b"\x7f", b"\xff" * 4, b"\x80\x80\x80\x80\x10", b"\0\0\x10\0\x01")


def mutated(draw: random.Random, data: bytes) -> bytes:
    """With a few bytes changed, dropped, doubled or put in."""
    result = bytearray(data)
    for _ in range(draw.choice((0, 1, 1, 3))):
        at = draw.randrange(len(result) + 1)
        kind = draw.randrange(4)
        if kind == 0 and at < len(result):
            result[at] = draw.randrange(256)
        elif kind == 1:
            del result[at : at + draw.randrange(6)]
        elif kind == 2:
            result[at:at] = draw.choice(NUMBERS)
        else:
            result[at:at] = result[at : at + draw.randrange(20)]
    return bytes(result)


def broken(draw: random.Random) -> bytes:
    """The body of a call."""
    messages = [framed_message(mutated(draw, REQUEST)) for _ in range(draw.randrange(4))]
    return mutated(draw, b"".join(messages)) if draw.random() < 0.5 else b"".join(messages)


def messages_of(pieces: list[bytes]) -> list[bytes] | str:
    """Or the code of an error."""
    reader, messages = MessageReader(MOST), list[bytes]()
    try:
        for piece in pieces:
            messages += reader.feed(piece)
    except ApiError as error:
        return error.code
    return messages if reader.is_between else "cut"


def one_body(draw: random.Random, data: bytes) -> str:
    """The outcome: "" or the code of an error."""
    places = sorted({0, len(data), *(draw.randrange(len(data) + 1) for _ in range(4))})
    cut = [data[a:b] for a, b in itertools.pairwise(places)]
    messages = messages_of([data])
    if messages != messages_of(cut):
        raise AssertionError("the pieces make a difference")
    if isinstance(messages, str):
        return messages
    for message in messages:
        method = draw.choice(METHODS)
        try:
            asked = method.read(message)
        except ApiError as error:
            return error.code
        if asked.body and CreateMessageRequest.FromString(message).json_body != asked.body:
            msgspec.json.decode(asked.body)  # what was made here is JSON
    return ""


def run(seconds: float, seed: int, count_max: int = sys.maxsize) -> dict[str, int]:
    """How often each outcome came."""
    return run_seeds(lambda draw: one_body(draw, broken(draw)), seconds, seed, count_max)


if __name__ == "__main__":
    main(run, __doc__)
