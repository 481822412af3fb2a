"""Header blocks of HTTP/2 (RFC 7541): decoded within bounds, and encoded without a table.

A reference of one byte can stand for a field of four thousand, so fields are counted as they are
decoded; of a block that has too many, the rest only keeps the table as the peer knows it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from ..heads import FIELD_OVERHEAD_BYTES, PATH
from ..wire import Header

Field = tuple[bytes, bytes]
TABLE_BYTES = 4096
"""Size of the table that a peer's fields may fill; the protocol's default."""
ENTRY_OVERHEAD_BYTES = 32
INTEGER_BYTES_MAX = 5
EOS = 256
REFERENCES = re.compile(rb"[\x81-\xfe]+")
"""Fields of one byte each, which change no table."""
FIELDS_FACTOR = 8
STATUS_200 = b"\x88"

# Appendix A: names, and values behind =; a space of a value is _ here.
STATIC = tuple(
    (name.encode(), value.replace("_", " ").encode())
    for name, _, value in (
        word.partition("=")
        for word in """
:authority :method=GET :method=POST :path=/ :path=/index.html :scheme=http :scheme=https
:status=200 :status=204 :status=206 :status=304 :status=400 :status=404 :status=500
accept-charset accept-encoding=gzip,_deflate accept-language accept-ranges accept
access-control-allow-origin age allow authorization cache-control content-disposition
content-encoding content-language content-length content-location content-range
content-type cookie date etag expect expires from host if-match if-modified-since
if-none-match if-range if-unmodified-since last-modified link location max-forwards
proxy-authenticate proxy-authorization range referer refresh retry-after server
set-cookie strict-transport-security transfer-encoding user-agent vary via
www-authenticate
""".split()
    )
)

# Appendix B: the length of each symbol's code, in base 36. Codes of one length follow each other.
LENGTHS = (
    "dnsssssssoussussssssssusssssssss6aacd68baa8b8666555666666678f6cad677777777777777"
    "77777777878djde6f56565666577666567655677777fbedskmkkmmmnmnnnnnonoomnonnnnlmnmnno"
    "mlkmmnnlnmmolmnnllmlnmnnkmmmnmmnqqkjmnmpqqqrrqopjlqrrqrollqqsrrrkoklmllnmmppooqn"
    "qrqqrrrrrsrrrrrqu"
)


class HpackError(Exception):
    """The block is malformed, and later blocks of its connection cannot be read."""


class TooLargeError(Exception):
    """The head has more bytes or fields than allowed; later blocks can be read."""

    def __init__(self, target_bytes: int) -> None:
        super().__init__(target_bytes)
        self.target_bytes = target_bytes
        """Length of the head's request target."""


class FloodError(Exception):
    """More fields than a well-behaved client sends."""


def _transitions() -> tuple[list[tuple[int, int]], frozenset[int]]:
    """Tables of the Huffman code, four bits at a time: for node and bits the next node and the
    completed symbol or -1; and the nodes in which a string may end (padding is all ones)."""
    children: list[list[int]] = [[0, 0]]
    code = length = 0
    for symbol in sorted(range(EOS + 1), key=lambda symbol: (int(LENGTHS[symbol], 36), symbol)):
        more = int(LENGTHS[symbol], 36) - length
        code, length = code << more, length + more
        node = 0
        for bit in range(length - 1, 0, -1):
            side = code >> bit & 1
            if not children[node][side]:
                children.append([0, 0])
                children[node][side] = len(children) - 1
            node = children[node][side]
        children[node][code & 1] = -1 - symbol
        code += 1
    moves: list[tuple[int, int]] = []
    for start in range(len(children)):
        for bits in range(16):
            node, ended = start, -1
            for bit in (3, 2, 1, 0):
                node = children[node][bits >> bit & 1]
                if node < 0:
                    node, ended = 0, -1 - node
            moves.append((node, ended))
    ends = [0]
    for _ in range(7):
        ends.append(children[ends[-1]][1])
    return moves, frozenset(ends)


MOVES, ENDS = _transitions()


def _unpacked(data: bytes) -> bytes:
    """A string that was packed by the Huffman code."""
    out = bytearray()
    node = 0
    for byte in data:
        for bits in (byte >> 4, byte & 15):
            node, symbol = MOVES[node << 4 | bits]
            if symbol >= 0:
                if symbol == EOS:
                    raise HpackError("a string contains the end-of-string symbol")
                out.append(symbol)
    if node not in ENDS:
        raise HpackError("a string ends within a symbol")
    return bytes(out)


def _integer(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """(Number, where it ends). `bits` of its first byte belong to it."""
    most = (1 << bits) - 1
    value = block[at] & most
    at += 1
    if value < most:
        return value, at
    for shift in range(0, 7 * INTEGER_BYTES_MAX, 7):
        byte = block[at]
        at += 1
        value += (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, at
    raise HpackError("a number is too long")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    is_packed = block[at] & 0x80
    size, at = _integer(block, at, 7)
    end = at + size
    if end > len(block):
        raise HpackError("a string is longer than its block")
    data = block[at:end]
    return (_unpacked(data) if is_packed else data), end


class HeadDecoder:
    """Decodes one connection's blocks, each of which changes the table for the next."""

    def __init__(self, bytes_max: int, fields_max: int) -> None:
        self._bytes_max = bytes_max
        self._fields_max = fields_max
        self._table: list[Field] = []
        """The newest last."""
        self._table_bytes = 0
        self._table_bytes_max = TABLE_BYTES

    def decode(self, block: bytes) -> list[Field]:
        """Raises HpackError, TooLargeError (repeats count), and FloodError if there are so many
        fields that not even the table is maintained."""
        try:
            return self._decode(block)
        except IndexError:
            raise HpackError("it ends within a field") from None

    def _decode(self, block: bytes) -> list[Field]:
        head: list[Field] = []
        count = size = at = target_bytes = 0
        while at < len(block):
            if len(head) < count and (run := REFERENCES.match(block, at)):
                at = run.end()
                continue
            first = block[at]
            if first & 0x80:
                index, at = _integer(block, at, 7)
                field = self._field(index)
            elif first & 0x40:
                field, at = self._literal(block, at, 6)
                self._insert(field)
            elif first & 0x20:
                self._table_bytes_max, at = _integer(block, at, 5)
                if self._table_bytes_max > TABLE_BYTES or count:
                    raise HpackError("a table size is too large, or does not begin its block")
                self._evict()
                continue
            else:
                field, at = self._literal(block, at, 4)
            count += 1
            if count > FIELDS_FACTOR * self._fields_max:
                raise FloodError
            size += len(field[0]) + len(field[1]) + FIELD_OVERHEAD_BYTES
            if field[0] == PATH:
                target_bytes = max(target_bytes, len(field[1]))
            if size <= self._bytes_max and count <= self._fields_max:
                head.append(field)
        if len(head) < count:
            raise TooLargeError(target_bytes)
        return head

    def _field(self, index: int) -> Field:
        if not index:
            raise HpackError("index 0 is not a field")
        if index <= len(STATIC):
            return STATIC[index - 1]
        if index - len(STATIC) > len(self._table):
            raise HpackError("the table does not have that field")
        return self._table[len(STATIC) - index]

    def _literal(self, block: bytes, at: int, bits: int) -> tuple[Field, int]:
        index, at = _integer(block, at, bits)
        if index:
            name = self._field(index)[0]
        else:
            name, at = _string(block, at)
        value, at = _string(block, at)
        return (name, value), at

    def _insert(self, field: Field) -> None:
        self._table.append(field)
        self._table_bytes += len(field[0]) + len(field[1]) + ENTRY_OVERHEAD_BYTES
        self._evict()

    def _evict(self) -> None:
        gone = 0
        while self._table_bytes > self._table_bytes_max:
            name, value = self._table[gone]
            self._table_bytes -= len(name) + len(value) + ENTRY_OVERHEAD_BYTES
            gone += 1
        del self._table[:gone]


def _length(size: int) -> bytes:
    """The length prefix of a string that is not packed."""
    if size < 0x7F:
        return bytes((size,))
    out = bytearray((0x7F,))
    size -= 0x7F
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((*out, size))


@lru_cache(maxsize=256)
def _name(name: str) -> bytes:
    """The beginning of a literal that enters no table."""
    raw = name.encode("latin-1")
    return b"\0" + _length(len(raw)) + raw


def encoded(fields: Sequence[Header]) -> bytes:
    parts: list[bytes] = []
    for name, value in fields:
        raw = value.encode("latin-1")
        parts += (_name(name), _length(len(raw)), raw)
    return b"".join(parts)


def encoded_head(status: int, fields: Sequence[Header]) -> bytes:
    first = STATUS_200 if status == 200 else encoded([(":status", str(status))])
    return first + encoded(fields)
