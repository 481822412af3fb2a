"""How long threads of a process were ready to run and had no core, by the kernel's count."""

from __future__ import annotations

from pathlib import Path

from ..control.channel import COMPUTE_THREAD, LOOP_THREAD

PROC = Path("/proc")
STEPPING = frozenset((LOOP_THREAD, COMPUTE_THREAD))
"""A step needs all of these. Others of the process may wait for ever and delay none."""
ALL_THREADS: frozenset[str] = frozenset()
NS_PER_SECOND = 1_000_000_000


class CoreWaits:
    """How long certain threads waited for a core, in one process after another."""

    def __init__(self, names: frozenset[str] = STEPPING, proc: Path = PROC) -> None:
        """names: of the threads that count; ALL_THREADS: every one does."""
        self._names = names
        self._proc = proc
        self._known_ns: dict[tuple[int, str], int] = {}

    def since_last(self, process_id: int) -> float:
        """Seconds of waiting since the last call, of all these threads together; 0 where the
        kernel does not tell."""
        known, self._known_ns = self._known_ns, {}
        waited_ns = 0
        for folder in self._threads(process_id):
            try:
                if self._names and (folder / "comm").read_text().strip() not in self._names:
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
