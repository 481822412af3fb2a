"""A tokenizer of the library (library.py) that is made when it is first asked: for texts that ours
does not encode. To load the library and to make one takes longer than all else of a vocabulary.

defines: LateBackend
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .library import Backend


class LateBackend:
    """May be used from several threads; it is made once."""

    def __init__(self, make: Callable[[], Backend]) -> None:
        """make: cannot fail, as all that the library would refuse was looked for."""
        self._make = make
        self._made: Backend | None = None
        self._lock = threading.Lock()

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> list[Any]:
        """As the library's."""
        return self.made.encode_batch_fast(texts, add_special_tokens=add_special_tokens)

    @property
    def made(self) -> Backend:
        if self._made is None:
            with self._lock:
                if self._made is None:
                    self._made = self._make()
        return self._made
