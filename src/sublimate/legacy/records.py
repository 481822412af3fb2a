"""What the processes of the old layer say to each other, as MessagePack through the broker.

Questions wait in one list, QUESTIONS, until the scheduler takes them. Answers are published on the
channel that the question names: one per asking process, subscribed to once.

defines: Negotiate, Job, Cancel, Question, Granted, Refused, Head, Piece, Broken, Answer, QUESTIONS,
         encode, question, answer, MIGRATION_PATH, MIGRATION, sunset_headers, Address,
         ADDRESS_VARIABLE, address
"""

from __future__ import annotations

import os

import msgspec

from ..config import PORT_MAX
from ..errors import ConfigError

QUESTIONS = b"layer:questions"
ADDRESS_VARIABLE = "SUBLIMATE_LEGACY_ADDRESS"

# RFC 9745 (when it became deprecated), RFC 8594 (when it will be gone), and where to read on.
DEPRECATED_AT = "@1790812800"
SUNSET_AT = "Thu, 01 Apr 2027 00:00:00 GMT"
MIGRATION_PATH = "/v1/layer/migration"
MIGRATION = """\
The layer that sends requests away is deprecated and goes on {sunset}.
What it does is not needed here: POST the same body to /v1/messages of the address that
/v1/layer/negotiate is asked at, and the answer comes from there, on the connection that is open.
Leave out the call of /v1/layer/negotiate, the lease and the second address; keys, headers, events
and errors stay. `sublimate rollout scan PATH` finds the places in your sources.
"""


class _Record(msgspec.Struct, frozen=True, array_like=True):
    """Base of what is said."""


class Negotiate(_Record, frozen=True, tag="n"):
    """May a request for this model come, and where? Answer: Granted or Refused."""

    reply_to: bytes
    ask: str
    model: str


class Job(_Record, frozen=True, tag="j"):
    """A request under its lease. Answer: Head, then Pieces to the last; or Refused, or Broken."""

    reply_to: bytes
    ask: str
    lease: str
    headers: list[tuple[str, str]]
    body: bytes


class Cancel(_Record, frozen=True, tag="c"):
    """The client has left. No answer."""

    reply_to: bytes
    ask: str


class Granted(_Record, frozen=True, tag="g"):
    """Use this lease once, soon."""

    ask: str
    lease: str
    seconds: int


class Refused(_Record, frozen=True, tag="r"):
    """`code` is one of the error table."""

    ask: str
    code: str


class Head(_Record, frozen=True, tag="h"):
    """The executor's answer begins."""

    ask: str
    status: int
    headers: list[tuple[str, str]]


class Piece(_Record, frozen=True, tag="p"):
    """Bytes of it, as they came."""

    ask: str
    data: bytes
    is_last: bool = False


class Broken(_Record, frozen=True, tag="b"):
    """It ended before its end."""

    ask: str


Question = Negotiate | Job | Cancel
Answer = Granted | Refused | Head | Piece | Broken

encode = msgspec.msgpack.Encoder().encode
question = msgspec.msgpack.Decoder(Question).decode
answer = msgspec.msgpack.Decoder(Answer).decode


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where the parts of the layer are, for its processes: in their environment."""

    broker_port: int
    broker_password: str
    executor_host: str
    executor_port: int
    model_port: int
    model_socket: int
    """Descriptor that the model address inherits."""
    certificate: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        if not all(0 < port <= PORT_MAX for port in (self.broker_port, self.model_port)):
            raise ValueError("a part of the layer has no port")
        if not self.broker_password:
            raise ValueError("a broker without a password is everybody's")


def address() -> Address:
    """Of this process' environment. Raises ConfigError where there is none."""
    text = os.environ.get(ADDRESS_VARIABLE, "")
    if not text:
        raise ConfigError("A process of the old layer is started by `serve --legacy-layer` alone.")
    return msgspec.json.decode(text, type=Address)


def sunset_headers(origin: str = "") -> list[tuple[str, str]]:
    """Of every answer that comes through the layer. origin: scheme, host and port of the gateway,
    where the answer is another's."""
    return [
        ("deprecation", DEPRECATED_AT),
        ("sunset", SUNSET_AT),
        ("link", f'<{origin}{MIGRATION_PATH}>; rel="deprecation"'),
    ]
