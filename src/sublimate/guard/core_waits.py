"""How long an engine was ready to run and had no core, as the kernel tells it.

defines: CoreWaits
"""

from __future__ import annotations

from pathlib import Path

from ..control.channel import COMPUTE_THREAD, LOOP_THREAD

PROC = Path("/proc")
STEPPING = frozenset((LOOP_THREAD, COMPUTE_THREAD))
"""A step needs all of these. Others of the process may wait for ever and delay none."""
NS_PER_SECOND = 1_000_000_000


class CoreWaits:
    """Of the threads that compute the steps of one process after another."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._known_ns: dict[tuple[int, str], int] = {}

    def since_last(self, process_id: int) -> float:
        """Seconds of waiting since the last call, of all these threads together; 0 where the
        kernel does not tell."""
        known, self._known_ns = self._known_ns, {}
        waited_ns = 0
        for folder in self._threads(process_id):
            try:
                if (folder / "comm").read_text().strip() not in STEPPING:
                    continue
                # "run_ns wait_ns turns"
                now_ns = int((folder / "schedstat").read_text().split()[1])
            except (OSError, ValueError, IndexError):
                continue
            key = process_id, folder.name
            self._known_ns[key] = now_ns
            waited_ns += now_ns - known.get(key, now_ns)
        return waited_ns / NS_PER_SECOND

    def _threads(self, process_id: int) -> list[Path]:
        try:
            return list((self._proc / str(process_id) / "task").iterdir())
        except OSError:
            return []
