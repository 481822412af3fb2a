"""Figure 3: where the time of a request goes. The server logs its stages (observe/timing.py in the
edge); the client knows, by a clock of its own, how long the whole took. What the stages leave is
the sockets, the kernel and the client.

defines: Stage, Ledger, RESIDUE_MAX, measure_ledger
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from ..errors import EngineError
from .load import read_sample
from .tax import Note
from .tax_engine import Waves

RESIDUE_MAX = 0.02
"""Of the end-to-end time: stages that leave more are no ledger."""
TO_FIRST_TOKEN = frozenset(
    ("read", "parse", "template", "tokenise", "publish", "admit", "first_token")
)
MILLISECONDS = 1000.0


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage, mean over the requests."""

    name: str
    mean_ms: float
    share: float
    """Of the end-to-end time."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one concurrency."""

    concurrency: int
    requests: int
    stages: list[Stage]
    end_to_end_ms: float
    """Mean, by the client's clock."""
    residue: float
    """What the stages leave of it, mean of the requests' shares."""
    residue_worst: float
    adds_up: bool
    """The mean residue is within RESIDUE_MAX."""
    within: float
    """Share of the requests that are, each by itself."""
    first_token_ms: float
    """Mean, by the client's clock."""
    first_token_stages_ms: float
    """Stages up to the first token's record, and its way out."""
    first_way_ms: float


class _Line(msgspec.Struct):
    """What is used of a request's log line."""

    request_id: str = ""
    stages_ms: dict[str, float] = {}
    first_way_ms: float = 0.0


def read_log(lines: Iterable[bytes]) -> dict[str, _Line]:
    """Request id -> its line, of those that have stages."""
    found: dict[str, _Line] = {}
    for line in lines:
        try:
            entry = msgspec.json.decode(line, type=_Line)
        except msgspec.DecodeError:
            continue
        if entry.stages_ms:
            found[entry.request_id] = entry
    return found


def measure_ledger(waves: Sequence[Waves], lines: Iterable[bytes], note: Note) -> list[Ledger]:
    """The ledgers of answers that were measured, from the server's log. Raises EngineError."""
    note("figure 3: reading the log")
    entries = read_log(lines)
    return [_ledger(wave, entries) for wave in waves]


def _ledger(wave: Waves, entries: dict[str, _Line]) -> Ledger:
    if not wave.answers:
        raise EngineError("A ledger needs an answer.")
    sums: dict[str, float] = {}
    wholes: list[float] = []
    firsts: list[float] = []
    residues: list[float] = []
    ways: list[float] = []
    for answer in wave.answers:
        entry = entries.get(answer.request_id)
        if entry is None:
            raise EngineError(f"The server's log has no stages of {answer.request_id}.")
        if answer.error or not answer.arrivals:
            raise EngineError(f"The answer {answer.request_id} failed: {answer.error}.")
        # The end of the last bytes' arrival, before this client did anything with them.
        whole = (answer.arrivals[-1][0] - answer.started_seconds) * MILLISECONDS
        for name, value in entry.stages_ms.items():
            sums[name] = sums.get(name, 0.0) + value
        wholes.append(whole)
        residues.append((whole - sum(entry.stages_ms.values())) / whole)
        firsts.append(read_sample(answer, None).first_token_ms)
        ways.append(entry.first_way_ms)
    count = len(wave.answers)
    total = sum(wholes)
    stages = [
        Stage(name=name, mean_ms=value / count, share=value / total) for name, value in sums.items()
    ]
    way = sum(ways) / count
    residue = sum(residues) / count
    return Ledger(
        concurrency=wave.concurrency,
        requests=count,
        stages=stages,
        end_to_end_ms=total / count,
        residue=residue,
        residue_worst=max(residues, key=abs),
        adds_up=abs(residue) <= RESIDUE_MAX,
        within=sum(abs(one) <= RESIDUE_MAX for one in residues) / count,
        first_token_ms=sum(firsts) / count,
        first_token_stages_ms=way
        + sum(stage.mean_ms for stage in stages if stage.name in TO_FIRST_TOKEN),
        first_way_ms=way,
    )
