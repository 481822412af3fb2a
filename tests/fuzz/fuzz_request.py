"""Fuzzes the edge's way from bytes to a request record: mutated bodies and mutated HTTP.

    python tests/fuzz/fuzz_request.py --seconds 60      # or `make fuzz`; tests run it for a moment

Property: every input is either a prompt or one row of the error table, in bounded time; nothing
else is raised. Seeds are printed; a failing one repeats with --seed.

defines: mutate, one_body, one_head, run
"""

import asyncio
import math
import random
import sys
import time
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("", "api", "unit")]

import msgspec  # noqa: E402

from fuzz.seeds import main  # noqa: E402
from sublimate.api.messages.fingerprints import Fingerprints  # noqa: E402
from sublimate.api.messages.read import read_message  # noqa: E402
from sublimate.api.routes import ROUTES  # noqa: E402
from sublimate.config import EdgeSettings  # noqa: E402
from sublimate.edge.errors import ApiError, ErrorShape  # noqa: E402
from sublimate.edge.exchange import Exchange, Request  # noqa: E402
from sublimate.edge.generate import prepare  # noqa: E402
from sublimate.edge.http import HttpConnection  # noqa: E402
from sublimate.edge.json_bounds import checked_json  # noqa: E402
from sublimate.edge.limits import HttpLimits  # noqa: E402
from sublimate.edge.models import Models  # noqa: E402
from sublimate.edge.sampling import Sampling, SamplingFields, check_sampling  # noqa: E402
from sublimate.edge.turns import Turns  # noqa: E402
from tiny_model import tiny_model  # noqa: E402

SLOW_SECONDS = 2.0
MODEL = tiny_model()
WORDS = (
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b":", b",", b"null", b"true", b"-1", b"1e400", b"NaN"),
    *(b"\xff", b"\xed\xa0\x80", b"\x00", b'"\\ud800"', b"<|im_end|>", b'"type":"text"', b"1" * 40),
    *(b'"role":"system"', b'"content":[]', b'"stop_sequences":["a"]', b'"logit_bias":{"1":2}'),
)
HEADS = (
    *(
        b"\r\n",
        b"\n",
        b"\r",
        b"\x00",
        b" ",
        b":",
        b"chunked",
        b"Content-Length: 5\r\n",
        b"0\r\n\r\n",
    ),
    *(
        b"Transfer-Encoding: chunked\r\n",
        b"Host: x\r\n",
        b"A" * 9000,
        b"5\r\nabcde\r\n",
        b"HTTP/1.0",
    ),
    *(b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\n", b"Connection: Upgrade\r\n", b"%2F", b"//"),
)
BODY = msgspec.json.encode(
    {
        "model": "tiny",
        "max_tokens": 5,
        "system": [{"type": "text", "text": "s"}],
        "messages": [
            {"role": "user", "content": "hé"},
            {"role": "assistant", "content": [{"type": "text", "text": "a"}]},
            {"role": "user", "content": [{"type": "text", "text": "b"}]},
        ],
        "stop_sequences": ["x"],
        "temperature": 0.5,
        "thinking": {"type": "disabled"},
        "execution_profile": "low-latency",
    }
)
REQUEST = b"POST /v1/messages?beta=true HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(
    BODY
)


def mutate(draw: random.Random, data: bytes, words: tuple[bytes, ...]) -> bytes:
    """A few cuts, copies, flips and inserted words."""
    for _ in range(draw.randint(1, 6)):
        at = draw.randint(0, len(data))
        kind = draw.randint(0, 4)
        if kind == 0:
            data = data[:at] + draw.choice(words) + data[at:]
        elif kind == 1:
            data = data[:at] + data[at + draw.randint(0, 8) :]
        elif kind == 2:
            data = data[:at] + draw.choice(words) * draw.randint(1, 100) + data[at:]
        elif kind == 3 and data:
            at = draw.randrange(len(data))
            data = data[:at] + bytes([draw.randrange(256)]) + data[at + 1 :]
        else:
            other = draw.randint(0, len(data))
            data = data[: min(at, other)] + data[max(at, other) :] + data[min(at, other) :]
    return data


class Nobody:
    """Who sent it."""

    tenant_key = b""
    request = Request("POST", b"/v1/messages", {})
    streams: bool | None = None


class Served:
    """What a body names."""

    name = MODEL.name
    display_name = MODEL.display_name
    text = MODEL
    prompt_tokens_max = 4096
    adapter = 0
    text_came: Any = None

    def checked_sampling(self, fields: SamplingFields) -> Sampling:
        return check_sampling(fields, vocabulary=len(MODEL.tokenizer), stop_ids_max=4, bias_max=64)


class Server:
    """What a body is read with."""

    models = Models([cast(Any, Served())], cast(Any, None))
    settings = EdgeSettings()
    limits = HttpLimits(messages_max=1000)

    def part(self, kind: type[object]) -> object:
        """No files are kept here."""
        if kind is Fingerprints:
            return Fingerprints()
        raise ApiError("data_in_use")


def one_body(data: bytes) -> str:
    """The code of the error, or empty for a prompt."""
    try:
        body = checked_json(data)
        generation = read_message(cast(Any, Server()), cast(Any, Nobody()), body)
        prompt = prepare(generation, MODEL, context_tokens=4096)
    except ApiError as error:
        return error.code
    if len(prompt.ids) == 0 or min(prompt.ids) < 0:
        raise AssertionError("a prompt without tokens")
    return ""


class Transport:
    """Collects what a connection writes."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True

    abort = close
    write_eof = close

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def set_write_buffer_limits(self, high: int) -> None:
        del high

    def get_extra_info(self, name: str) -> None:
        del name


class Application:
    """Answers every complete request with its route."""

    limits = HttpLimits()
    draining = False
    takes_gzip = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.turns = Turns(loop, math.inf)

    def connection_opened(self, connection: Any) -> bool:
        return True

    def connection_closed(self, connection: Any) -> None: ...

    def error_shape(self, path: str) -> ErrorShape:
        return ROUTES.error_shape(path)

    def refuse_early(self, exchange: Exchange) -> ApiError | None:
        try:
            ROUTES.find(exchange.request)
        except ApiError as error:
            return error
        return None

    def handle(self, exchange: Exchange) -> None:
        if exchange.refusal is not None:
            exchange.fail(exchange.refusal)
            return
        exchange.send(200, [], b"ok")

    def refused(self, exchange: Exchange) -> None:
        if not exchange.answered:
            raise AssertionError("told of a refusal that was not sent")


def one_head(loop: asyncio.AbstractEventLoop, draw: random.Random, data: bytes) -> None:
    """Any bytes in any pieces: each answer is whole, an error has the envelope."""
    connection, transport = HttpConnection(Application(loop), loop), Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    while data and not transport.closed:
        size = draw.choice((1, 7, 100, len(data)))
        connection.data_received(data[:size])
        data = data[size:]
    connection.connection_lost(None)
    rest = transport.written.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    while rest:
        head, found, rest = rest.partition(b"\r\n\r\n")
        if not found or not head.startswith(b"HTTP/1.1 ") or b"\r\nrequest-id: req_" not in head:
            raise AssertionError(f"no whole answer: {head!r}")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        is_head = not rest[:1] or rest.startswith(b"HTTP/1.1 ")
        content, rest = (b"", rest) if is_head else (rest[:length], rest[length:])
        if head[9:10] != b"2" and content and "error" not in msgspec.json.decode(content):
            raise AssertionError("an error without its envelope")


def run(seconds: float, seed: int, count_max: int = sys.maxsize) -> dict[str, int]:
    """How often each outcome came."""
    outcomes: dict[str, int] = {}
    loop = asyncio.new_event_loop()
    end = time.monotonic() + seconds
    number = 0
    try:
        while number < count_max and time.monotonic() < end:
            draw = random.Random(seed + number)
            begun = time.thread_time()  # of work: the neighbours do not count
            try:
                code = one_body(mutate(draw, BODY, WORDS))
                one_head(loop, draw, mutate(draw, REQUEST + BODY, HEADS))
            except BaseException:
                sys.stderr.write(f"failing seed: {seed + number}\n")
                raise
            if time.thread_time() - begun > SLOW_SECONDS:
                raise AssertionError(f"seed {seed + number} took too long")
            outcomes[code] = outcomes.get(code, 0) + 1
            number += 1
    finally:
        loop.close()
    return outcomes


if __name__ == "__main__":
    main(run, __doc__)
