"""The edge's part of the faults that tests inject (control/faults.py has the switch).

No line of the edge knows of them: what is short is made short by the kernel's own limits.

defines: EdgeFaults
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import time

from ..control.faults import FaultFolder

LOG = logging.getLogger("sublimate.edge")
LOOK_SECONDS = 0.01
MS_PER_SECOND = 1000.0


class EdgeFaults:
    """Looks at the folder while its loop runs, until close()."""

    def __init__(self, loop: asyncio.AbstractEventLoop, folder: FaultFolder) -> None:
        LOG.critical("faults are injected from %s: this is a test, not a server", folder.path)
        self._loop = loop
        self._folder = folder
        self._descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._file_size = resource.getrlimit(resource.RLIMIT_FSIZE)
        self._timer = loop.call_soon(self._look)

    def _look(self) -> None:
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
        if self._folder.take("edge.abort"):
            os.abort()
        if (stands_ms := self._folder.take_number("edge.hung")) is not None:
            time.sleep(stands_ms / MS_PER_SECOND)
        self._limit_files(self._folder.holds("edge.writes"))
        self._limit_descriptors(self._folder.holds("edge.descriptors"))

    def _limit_files(self, short: bool) -> None:
        """The kernel answers EFBIG to who writes beyond; Python ignores the signal beside it."""
        least = (0, self._file_size[1])
        resource.setrlimit(resource.RLIMIT_FSIZE, least if short else self._file_size)

    def _limit_descriptors(self, short: bool) -> None:
        """The next free number is the first that is forbidden: EMFILE for whoever opens."""
        if not short:
            resource.setrlimit(resource.RLIMIT_NOFILE, self._descriptors)
            return
        try:
            free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free, self._descriptors[1]))

    def close(self) -> None:
        """What was short is so no more."""
        self._timer.cancel()
        self._limit_files(False)
        self._limit_descriptors(False)
