"""Torture: the engine process, from its load through one request to its end, again and again, with
its n-th allocation or system call failing; for every n, or for a sample.

Whatever fails, the engine answers rightly, refuses with a reason, or ends with a message, so that
the supervisor restarts it: no hang, no wrong token, no silent end, no descriptor left behind.

    python tests/torture/torture.py              # every n: minutes
    python tests/torture/torture.py --seconds 8  # as many as the time allows, spread over all n

defines: KINDS, Outcome, Torture, main
"""

import argparse
import ctypes
import faulthandler
import json
import mmap
import os
import random
import re
import socket
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import gguf

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from life import VOCABULARY, Life
from random_model import Shape, write_model

from sublimate.config import EngineSettings
from sublimate.control import channel
from sublimate.engine.process import EngineProcess

ROOT = Path(__file__).resolve().parents[2]
SHIM = "libfail_nth.so"
KINDS = {"allocation": 1, "system call": 2, "interruption": 3, "short read": 4}
"""What fails -> its number in fail_nth.cpp."""
SHARED = struct.Struct("<qqq")
"""(seen, fired, which) in the memory that the engine leaves behind."""
KNOWN = r"channel\.py\", line \d+ in send"
"""Where a crash is not ours: msgspec's encoder, when its buffer cannot grow (msgspec 0.23)."""
TINY = Shape(64, 2, 4, 2, 16, 96, VOCABULARY, 256, 10000.0)
SEED = 1


@dataclass(frozen=True)
class Outcome:
    """Of one run. which: number of the call, or bytes of the allocation."""

    kind: str
    nth: int
    seen: int
    fired: bool
    which: int
    result: str
    said: str

    @property
    def is_wrong(self) -> bool:
        return self.result.startswith("WRONG")


class Torture:
    """Forks an engine process per run; its modules are there already."""

    def __init__(self, folder: Path, engine: str) -> None:
        self._shim = ctypes.CDLL(None)
        self._shim.torture_begin.argtypes = (ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._path = ""
        self._settings = EngineSettings(script=str(write_script(folder)))
        if engine == "model":
            self._path = str(write_tiny(folder))
            self._settings = EngineSettings(isa="portable", threads=2, kv_memory=1 << 20)
        self._answer: list[int] = []
        self._descriptors = 0
        learnt = self.run("system call", 0)
        if learnt.result != "answered":
            raise RuntimeError(f"without a fault: {learnt}")

    def total(self, kind: str) -> int:
        """How many there are without a fault; threads differ a little from run to run."""
        return max(self.run(kind, 0).seen for _ in range(3))

    def run(self, kind: str, nth: int) -> Outcome:
        """One life of an engine whose n-th `kind` fails; 0: none does."""
        self._memory[: SHARED.size] = bytes(SHARED.size)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        errors = os.memfd_create("errors")
        child = os.fork()
        if child == 0:
            ours.close()
            self._be_engine(theirs, errors, KINDS[kind], nth)
        theirs.close()
        ours.setblocking(False)
        life = Life(child, ours, self._answer, self._descriptors)
        result = life.live(self._settings, self._path)
        self._answer, self._descriptors = life.answer, life.descriptors
        said = os.pread(errors, 1 << 16, 0).decode(errors="replace")
        os.close(errors)
        ours.close()
        seen, fired, which = SHARED.unpack_from(self._memory)
        if result.startswith("ended") and not said.strip():
            result = f"WRONG: silently {result}"
        if "(SIG" in result and "SIGABRT" not in result and not re.search(KNOWN, said):
            result = f"WRONG: {result}"
        return Outcome(kind, nth, seen, bool(fired), which, result, said)

    def _be_engine(self, control: socket.socket, errors: int, kind: int, nth: int) -> None:
        """As `python -m sublimate.engine` goes on once it runs. Does not return."""
        status = 1
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        os.close(errors)
        faulthandler.enable()
        followed: channel.Channel[channel.ToEngine] = channel.Channel(control, channel.ToEngine)
        self._shim.torture_begin(kind, nth, self._address)
        try:
            EngineProcess(followed).run()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)


def write_script(folder: Path) -> Path:
    path = folder / "script.json"
    path.write_text(json.dumps({"answers": [[[7], [9, 8, 7]]], "vocabulary": VOCABULARY}))
    return path


def write_tiny(folder: Path) -> Path:
    """A model of random weights."""
    tokenizer = folder / "tokenizer.gguf"
    writer = gguf.GGUFWriter(tokenizer, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "c"])
    writer.add_token_types([1, 1, 3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path = folder / "tiny.gguf"
    write_model(path, TINY, "q8_0", tokenizer)
    return path


def order_of(total: int) -> Iterator[int]:
    """All of 1 to total, in an order whose every beginning is spread over them."""
    numbers = list(range(1, total + 1))
    random.Random(SEED).shuffle(numbers)
    return iter(numbers)


def run_all(engine: str, kinds: Sequence[str], seconds: float, wrong: list[Outcome]) -> list[str]:
    """Rows of the table; what must not be goes to `wrong`."""
    rows: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        torture = Torture(Path(folder), engine)
        for kind in kinds:
            total = torture.total(kind)
            counts: Counter[str] = Counter()
            end = time.monotonic() + seconds / len(kinds) if seconds else float("inf")
            runs = 0
            for nth in order_of(total):
                if time.monotonic() > end:
                    break
                outcome = torture.run(kind, nth)
                runs += 1
                counts[outcome.result if outcome.fired else "not reached"] += 1
                if outcome.is_wrong:
                    wrong.append(outcome)
            results = ", ".join(f"{name} {count}" for name, count in counts.most_common())
            rows.append(f"| {engine} | {kind} | {total} | {runs} | {results} |")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.0, help="of each engine; 0: every n")
    parser.add_argument("--engine", choices=("model", "script"), action="append")
    parser.add_argument("--kind", choices=list(KINDS), action="append")
    parser.add_argument("--nth", type=int, default=0, help="one run, shown whole")
    parser.add_argument("--shim", type=Path, default=ROOT / "build/wheel/cpp_tests" / SHIM)
    arguments = parser.parse_args()
    shim = str(arguments.shim.resolve())
    if os.environ.get("LD_PRELOAD") != shim:
        changed = {**os.environ, "LD_PRELOAD": shim, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, *sys.argv], changed)  # noqa: S606 - ourselves
    engines = arguments.engine or ["model", "script"]
    kinds = arguments.kind or list(KINDS)
    if arguments.nth:
        with tempfile.TemporaryDirectory() as folder:
            one = Torture(Path(folder), engines[0]).run(kinds[0], arguments.nth)
        sys.stdout.write(f"{asdict(one)}\n{one.said}\n")
        return int(one.is_wrong)
    wrong: list[Outcome] = []
    lines = ["| engine | fails | n to | runs | outcomes |", "|---|---|---|---|---|"]
    for engine in engines:
        lines += run_all(engine, kinds, arguments.seconds, wrong)
    sys.stdout.write("\n".join(lines) + "\n")
    for one in wrong:
        said = re.sub(r"\s+", " ", one.said)[-300:]
        sys.stdout.write(f"{one.kind} {one.nth} ({one.which}): {one.result}: {said}\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
