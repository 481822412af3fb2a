"""Shows each animal of the zoo to everything that reads models, in a process of its own, and writes
down what was said and what it took.

usage: python keeper.py FOLDER    one line of JSON for each animal on standard output

defines: Said, Seen, main
"""

import contextlib
import io
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import msgspec

from animals import ANIMALS, Animal
from sublimate import Engine
from sublimate.cli.output import run_guarded
from sublimate.cli.serve import check_header
from sublimate.cli.show import show as show_model
from sublimate.config import EngineSettings, load_settings
from sublimate.edge.textmodel import load_text_model
from sublimate.engine.loader import load_engine
from sublimate.engine.text import load_text
from sublimate.errors import SublimateError
from sublimate.model.card import Card
from sublimate.model.files import fetch
from sublimate.model.source import header_of

CPU_SECONDS_MAX, DATA_BYTES_MAX = 10, 3 << 30
"""Of what goes wrong altogether; what is allowed the test says."""


class Said(msgspec.Struct):
    """The end of one way to read a model."""

    code: int
    reasons: list[str]


class Seen(msgspec.Struct):
    """One animal."""

    name: str
    status: int
    peak_bytes: int
    cpu_seconds: float
    """Of the slowest way."""
    ways: dict[str, Said]


def show(model: str, animal: Animal, folder: Path) -> Said:
    """As the command does, with what it writes."""
    del animal, folder
    shown, complaint = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(complaint):
        settings = load_settings({"model": model}, config=None)
        code = run_guarded(lambda: show_model(settings, as_json=True))
    if code:
        return Said(code, complaint.getvalue().splitlines())
    return Said(code, msgspec.json.decode(shown.getvalue(), type=Card).problems)


def serve(model: str, animal: Animal, folder: Path) -> Said:
    """What its processes read, one after the other."""
    del animal
    file = fetch(model, folder)
    path = str(file.path)
    check_header(path)
    load_text_model(path)
    load_engine(path, EngineSettings(threads=1, kv_memory=1 << 20), lambda fraction: None)
    return Said(0, [])


def engine(model: str, animal: Animal, folder: Path) -> Said:
    """In this process. Of a broken text it has no tokenizer, and the rest is sound."""
    if not animal.of_text:
        with Engine(model, threads=1, kv_memory=1 << 20, cache_dir=folder):
            return Said(0, [])
    path = str(fetch(model, folder).path)
    header_of(path).plan()
    return Said(0, ["no tokenizer"] if load_text(path) is None else [])


WAYS: dict[str, Callable[[str, Animal, Path], Said]] = {
    "show": show,
    "serve": serve,
    "engine": engine,
}


def look(name: str, model: str, folder: Path) -> Seen:
    """In a child: all ways."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS_MAX, CPU_SECONDS_MAX))
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, DATA_BYTES_MAX))
    seen = Seen(name, 0, 0, 0.0, {})
    for way, look_at in WAYS.items():
        begun = time.process_time()
        try:
            seen.ways[way] = look_at(model, ANIMALS[name], folder)
        except SublimateError as error:
            seen.ways[way] = Said(int(error.exit_code), str(error).split("\n"))
        except BaseException:
            seen.ways[way] = Said(1, traceback.format_exc().split("\n"))
        seen.cpu_seconds = max(seen.cpu_seconds, time.process_time() - begun)
    return seen


def in_child(work: Callable[[], bytes]) -> tuple[bytes, int, int]:
    """What it returned, how it ended, and its largest resident size in bytes."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(work())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    _, status, usage = os.wait4(child, 0)
    return told, status, usage.ru_maxrss * 1024


def make(name: str, folder: Path) -> bytes:
    folder.mkdir()
    return os.fsencode(ANIMALS[name].make(folder))


def main() -> None:
    root = Path(sys.argv[1])
    for name in ANIMALS:
        folder = root / name
        model = os.fsdecode(in_child(lambda name=name, folder=folder: make(name, folder))[0])
        told, status, peak_bytes = in_child(
            lambda name=name, model=model, folder=folder: msgspec.json.encode(
                look(name, model, folder)
            )
        )
        seen = msgspec.json.decode(told, type=Seen) if told else Seen(name, status, 0, 0.0, {})
        seen.status, seen.peak_bytes = status, peak_bytes
        print(msgspec.json.encode(seen).decode(), flush=True)


if __name__ == "__main__":
    main()
