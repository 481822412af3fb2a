"""The packed weights, for the engines to come: memory that one engine has filled and sealed, which
others of the server, and the next one after a crash, map instead of packing their own.

defines: SharedWeights
"""

from __future__ import annotations

import os
from typing import Generic, TypeVar

Engine = TypeVar("Engine")


class SharedWeights(Generic[Engine]):
    """Keeps one descriptor, and who waits for it: while one engine packs, the others do not.

    An engine that cannot use what is kept (the file is another one by now) packs and hands its own
    over, which takes the place of the old one.
    """

    def __init__(self) -> None:
        self._fd = -1
        self._packer: Engine | None = None
        self._waiting: list[Engine] = []

    @property
    def fds(self) -> tuple[int, ...]:
        """To go with a Load."""
        return () if self._fd < 0 else (self._fd,)

    def may_load(self, engine: Engine) -> bool:
        """False: not now; `settled` names it later."""
        if not self.fds and self._packer is None:
            self._packer = engine
        if self.fds or self._packer is engine:
            return True
        if engine not in self._waiting:
            self._waiting.append(engine)
        return False

    def settled(self, engine: Engine) -> list[Engine]:
        """That engine has packed, or will not; returns those to ask for again."""
        if self._packer is not engine:
            return []
        self._packer = None
        waiting, self._waiting = self._waiting, []
        return waiting

    def forget(self, engine: Engine) -> list[Engine]:
        """It has ended: it neither packs nor waits. Returns those to ask for again."""
        if engine in self._waiting:
            self._waiting.remove(engine)
        return self.settled(engine)

    def take(self, fds: tuple[int, ...]) -> None:
        """What came with a Weights message; the caller still closes its own. Raises ValueError."""
        if len(fds) > 1:
            raise ValueError("weights come as one descriptor")
        self.close()
        if fds:
            self._fd = os.dup(fds[0])

    def close(self) -> None:
        """Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
