"""Token ids of conversations that grow: what was tokenised once is not tokenised again.

A control token is a border that no word, no merge and no normalisation crosses: the text between
two of them is tokenised by itself (tokenizer.py). So the ids of a conversation are those of its
pieces in order, and a piece that came in an earlier turn has the ids that it had then, whatever
follows it now. The pieces of each owner are looked up apart, so that nobody can tell by the time it
takes whether somebody else has sent a text.

defines: ConversationTokenizer
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict

from .template import Rendered
from .tokenizer import Tokenizer

PIECES_BYTES_MAX = 64 << 20
"""Memory of the remembered pieces: the text of some ten thousand long turns."""
PIECE_SHARE_MAX = 8
"""A piece that takes more than this part of the memory is not remembered."""
PIECE_OVERHEAD_BYTES = 256
"""Of an entry beside its text and ids: objects, hash table, list links."""

Key = tuple[bytes, str]


class ConversationTokenizer:
    """`Tokenizer.encode_rendered` with a memory. May be used from several threads."""

    def __init__(self, tokenizer: Tokenizer, bytes_max: int = PIECES_BYTES_MAX) -> None:
        self._tokenizer = tokenizer
        self._bytes_max = bytes_max
        self._special = {
            text: array("i", [token]).tobytes() for text, token in tokenizer.special.items()
        }
        self._pieces: OrderedDict[Key, bytes] = OrderedDict()
        """Least recently used first."""
        self._lock = threading.Lock()
        self.bytes = 0
        """Memory that the remembered pieces take."""

    def encode(self, rendered: Rendered, owner: bytes = b"") -> array[int]:
        """int32 ids (tokens) of a rendered prompt. `owner`: who may meet what is remembered."""
        pattern, marker = self._tokenizer.special_pattern, rendered.marker
        pieces = pattern.split(rendered.text) if pattern else [rendered.text]
        plain = pieces[::2]
        if marker in rendered.text:
            plain = [piece.replace(marker, "") for piece in plain]
        parts = [b""] * len(pieces)
        parts[::2] = self._encode_plain(self._tokenizer.begun(plain, pieces[1::2]), owner)
        parts[1::2] = map(self._special.__getitem__, pieces[1::2])
        if bos := self._tokenizer.leading_bos(parts[0] or b"".join(parts[1:2])):
            parts.insert(0, bos)
        return array("i", b"".join(parts))

    def _encode_plain(self, plain: list[str], owner: bytes) -> list[bytes]:
        keys = [(owner, piece) for piece in plain]
        with self._lock:
            found = [self._pieces.get(key) for key in keys]
            for key, ids in zip(keys, found, strict=True):
                if ids is not None:
                    self._pieces.move_to_end(key)
        new = {key: b"" for key, ids in zip(keys, found, strict=True) if ids is None}
        if new:
            encoded = self._tokenizer.encode_pieces([piece for _, piece in new])
            new = dict(zip(new, encoded, strict=True))
            self._remember(new)
        return [new[key] if ids is None else ids for key, ids in zip(keys, found, strict=True)]

    def _remember(self, new: dict[Key, bytes]) -> None:
        with self._lock:
            for key, ids in new.items():
                size = _size(key, ids)
                if key in self._pieces or size * PIECE_SHARE_MAX > self._bytes_max:
                    continue
                self._pieces[key] = ids
                self.bytes += size
            while self.bytes > self._bytes_max:
                self.bytes -= _size(*self._pieces.popitem(last=False))


def _size(key: Key, ids: bytes) -> int:
    """Bytes that an entry takes, at most: a character takes up to four."""
    return len(key[1]) * 4 + len(ids) + PIECE_OVERHEAD_BYTES
