"""Planted bugs: applies each change of mutants.jsonl to a copy of the tree, one at a time, runs the
suites that must notice it, and reports the changes that no suite noticed.

The copies lie in build/mutants. C++ is compiled with the commands of build/wheel, one translation
unit at a time, and linked with the libraries there; so that folder has to be built. Python runs
from the copy, with the extension of the environment.

    python tests/mutants/mutants.py [--jobs N] [--again] [--list] [WORD ...]

A WORD is an id or part of a file's path. Without --again, a change that was caught before is not
run again while neither it nor its file has changed. docs/faults.md explains the list.
"""

import argparse
import concurrent.futures
import hashlib
import os
import queue
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("mutants.jsonl")
WHEEL = ROOT / "build/wheel"
WORK = ROOT / "build/mutants"
SIMULATOR = "sublimate_sim"
SIMULATOR_ARGUMENTS = ("--seeds", "3000", "--steps", "200")
SECONDS_MAX = 400
"""Of one suite. One that takes longer has met a hang, which counts as caught."""
RECOMPILED = ("core/ring/", "core/text/", "core/loop/")
"""Sources that are compiled again when a header that they include is changed."""
REDIRECT = """import sys
from importlib.machinery import PathFinder

sys.meta_path[:] = [one for one in sys.meta_path if "ScikitBuild" not in type(one).__name__]
assert PathFinder in sys.meta_path
"""
"""A sitecustomize.py: packages come from the copy instead of the editable install."""


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of the list."""

    id: str
    what: str
    file: str
    change: list[tuple[str, str]]
    suite: list[str]
    """Programs of tests/cpp, `sublimate_sim`, or arguments of pytest. One has to fail."""
    equivalent: str = ""
    """Why no test can notice the change. It is then only checked that the change applies."""

    @property
    def is_cpp(self) -> bool:
        return self.file.endswith((".h", ".cpp"))

    def digest(self) -> str:
        text = msgspec.json.encode(self) + (ROOT / self.file).read_bytes()
        return hashlib.sha256(text).hexdigest()[:16]


class Result(msgspec.Struct):
    id: str
    digest: str
    outcome: str
    """caught, survived, or broken: the change does not apply or compile."""
    detail: str
    seconds: float


class BrokenError(Exception):
    """The change does not apply or does not compile."""


def read_list() -> list[Mutant]:
    lines = LIST.read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Mutant) for line in lines if line.strip()]


def changed(mutant: Mutant, text: str) -> str:
    """The file with the bug. Each old text has to occur exactly once."""
    for old, new in mutant.change:
        if (found := text.count(old)) != 1:
            raise BrokenError(f"{mutant.id}: {found} places in {mutant.file} have {old!r}")
        text = text.replace(old, new)
    return text


def missing_suite(suite: str) -> str:
    """Empty if there is such a suite; else what is missing."""
    if suite == SIMULATOR:
        return ""
    if not suite.startswith("tests/"):
        return "" if (ROOT / f"tests/cpp/{suite}.cpp").is_file() else f"tests/cpp/{suite}.cpp"
    path, _, name = suite.partition("::")
    if not (ROOT / path).is_file():
        return path
    is_there = not name or f"def {name}(" in (ROOT / path).read_text()
    return "" if is_there else suite


# ---- a copy of the tree --------------------------------------------------------------------------
class Copy:
    """A place where bugs are planted."""

    def __init__(self, number: int) -> None:
        self.root = WORK / str(number)
        self.objects = WORK / f"{number}-objects"
        shutil.rmtree(self.root, ignore_errors=True)
        self.objects.mkdir(parents=True, exist_ok=True)
        names = _run(["git", "ls-files", "-co", "--exclude-standard"], ROOT).stdout.splitlines()
        for name in names:
            if (ROOT / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.root / name)
        (self.root / "build").mkdir()
        (self.root / "build/wheel").symlink_to(WHEEL)
        (self.root / ".venv").symlink_to(ROOT / ".venv")
        self.python = self.root / "src"
        (self.python / "sitecustomize.py").write_text(REDIRECT)
        for built in _installed_package().iterdir():
            if not (link := self.python / "sublimate" / built.name).exists():
                link.symlink_to(built)
            elif built.is_dir():
                _link_missing(built, link)

    def run(self, mutant: Mutant | None, suites: Iterable[str]) -> str:
        """The first suite that fails and how; empty if all pass. Raises BrokenError."""
        for suite in suites:
            if how := self._suite(mutant, suite):
                return f"{suite}: {how}"
        return ""

    def _suite(self, mutant: Mutant | None, suite: str) -> str:
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        if suite.startswith("tests/"):
            environment["PYTHONPATH"] = str(self.python)
            options = ("-q", "-x", "-p", "no:cacheprovider")
            command = [sys.executable, "-m", "pytest", *options, *shlex.split(suite)]
        else:
            command = [str(self._program(suite, mutant))]
            command += SIMULATOR_ARGUMENTS if suite == SIMULATOR else ()
        try:
            done = _run(command, self.root, environment, SECONDS_MAX)
        except subprocess.TimeoutExpired:
            return f"not done after {SECONDS_MAX} s"
        if suite.startswith("tests/") and done.returncode not in (0, 1):
            raise BrokenError(f"pytest ended with {done.returncode}: {done.stdout[-600:]}")
        return _last_words(done) if done.returncode else ""

    def _program(self, name: str, mutant: Mutant | None) -> Path:
        group = "simulators" if name.startswith(SIMULATOR) else "cpp_tests"
        sources = _sources_of(name)
        if mutant is not None:
            sources = [*sources, *(s for s in _affected(mutant.file) if s not in sources)]
        objects = [self._compiled(source, name) for source in sources]
        program = self.objects / name
        link = shlex.split(_ninja("-t", "commands", "-s", f"{group}/{name}").splitlines()[-1])
        link = link[link.index("&&") + 1 : len(link) - 1 - link[::-1].index("&&")]
        link = [word for word in link if not word.endswith(".o")]
        link[link.index("-o") + 1] = str(program)
        link[link.index("-o") :] = [*objects, *link[link.index("-o") :]]
        done = _run(link, WHEEL)
        if done.returncode:
            raise BrokenError(f"{name} does not link: {_last_words(done)}")
        return program

    def _compiled(self, source: str, program: str) -> str:
        """Its object. A source belongs to one program or to a library."""
        command = [
            word.replace(f"{ROOT}/", f"{self.root}/") for word in _command_of(source, program)
        ]
        command = [word.replace(f"{self.root}/build/wheel", str(WHEEL)) for word in command]
        command = ["-O1" if word == "-O3" else word for word in command if word != "-Werror"]
        target = str(self.objects / (f"{program}-{source.replace('/', '-')}.o"))
        command[command.index("-o") + 1] = target
        done = _run(command, WHEEL)
        if done.returncode:
            raise BrokenError(f"{source} does not compile: {_last_words(done)}")
        return target

    def try_out(self, mutant: Mutant) -> str:
        """As `run`, with the bug planted meanwhile."""
        path = self.root / mutant.file
        text = path.read_text()
        path.write_text(changed(mutant, text))
        try:
            return self.run(mutant, mutant.suite)
        finally:
            path.write_text(text)


def _run(
    command: Sequence[str],
    folder: Path,
    environment: dict[str, str] | None = None,
    seconds: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Ends all that it started when the time is over."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        text=True,
        errors="replace",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            raise
    return subprocess.CompletedProcess(list(command), process.returncode, output, "")


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("FAILED", "ERROR tests/", "seed "))]
    told += [line for line in lines if "error:" in line or "CHECK" in line]
    return (told or lines[-1:] or [f"exit {done.returncode}"])[0][:200]


def _installed_package() -> Path:
    """The folder with the extension, which is beside no Python file."""
    script = "import sublimate._core as c; print(c.__file__)"
    return Path(_run([sys.executable, "-c", script], ROOT).stdout.strip()).parent


def _link_missing(built: Path, link: Path) -> None:
    for one in built.iterdir():
        if not (link / one.name).exists():
            (link / one.name).symlink_to(one)


# ---- how C++ is built ----------------------------------------------------------------------------
@cache
def _ninja(*arguments: str) -> str:
    done = _run(["ninja", "-C", str(WHEEL), *arguments], ROOT)
    if done.returncode:
        raise BrokenError(f"ninja {' '.join(arguments)}: {done.stdout[-400:]}")
    return done.stdout


@cache
def _commands() -> list[dict[str, Any]]:
    return msgspec.json.decode((WHEEL / "compile_commands.json").read_bytes())


def _command_of(source: str, program: str) -> list[str]:
    found = [one for one in _commands() if one["file"] == f"{ROOT}/{source}"]
    own = [one for one in found if f"/{program}.dir/" in one["command"]]
    if not found:
        raise BrokenError(f"build/wheel has no command for {source}: run `make test` once")
    return shlex.split((own or found)[0]["command"])


@cache
def _sources_of(program: str) -> list[str]:
    own = [one for one in _commands() if f"CMakeFiles/{program}.dir/" in one["command"]]
    if not own:
        raise BrokenError(f"build/wheel has no program {program}")
    return [one["file"].removeprefix(f"{ROOT}/") for one in own]


@cache
def _affected(file: str) -> list[str]:
    """Sources of libraries that have to be compiled again, as they are the file or include it."""
    if file.endswith(".cpp"):
        return [file]
    sources: list[str] = []
    for block in _ninja("-t", "deps").split("\n\n"):
        _, *lines = block.splitlines() or [""]
        names = [os.path.normpath(WHEEL / line.strip()) for line in lines]
        if f"{ROOT}/{file}" in names and (own := names[0].removeprefix(f"{ROOT}/")):
            sources += [own] if own.startswith(RECOMPILED) and own.endswith(".cpp") else []
    return sorted(set(sources))


# ---- all of them ---------------------------------------------------------------------------------
def results_so_far() -> dict[str, Result]:
    path = WORK / "results.jsonl"
    lines = path.read_bytes().splitlines() if path.is_file() else []
    return {one.id: one for one in (msgspec.json.decode(line, type=Result) for line in lines)}


def chosen(words: list[str]) -> list[Mutant]:
    found = [
        one
        for one in read_list()
        if not words or any(word == one.id or word in one.file for word in words)
    ]
    if not found:
        raise SystemExit("No line of the list has such an id or file.")
    return found


def judge(copy: Copy, mutant: Mutant) -> Result:
    began = time.monotonic()
    try:
        how = copy.try_out(mutant)
        outcome = "caught" if how else "survived"
    except BrokenError as error:
        outcome, how = "broken", str(error)
    seconds = round(time.monotonic() - began, 1)
    return Result(mutant.id, mutant.digest(), outcome, how, seconds)


def check_unchanged(copy: Copy, mutants: list[Mutant]) -> None:
    """A suite that fails anyway would catch everything."""
    for suite in sorted({suite for one in mutants for suite in one.suite}):
        if how := copy.run(None, [suite]):
            raise SystemExit(f"{suite} fails without a planted bug: {how}")


def run_all(mutants: list[Mutant], jobs: int) -> list[Result]:
    copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for number in range(jobs):
        copies.put(Copy(number))
    results: list[Result] = []

    def run(mutant: Mutant) -> Result:
        copy = copies.get()
        try:
            return judge(copy, mutant)
        finally:
            copies.put(copy)

    first = copies.get()
    check_unchanged(first, mutants)
    copies.put(first)
    # Those that change one file follow each other, so that less is compiled.
    ordered = sorted(mutants, key=lambda one: (one.file, one.suite))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for done in concurrent.futures.as_completed([pool.submit(run, one) for one in ordered]):
            result = done.result()
            results.append(result)
            print(
                f"{result.id:6} {result.outcome:8} {result.seconds:6.1f} s  {result.detail}",
                flush=True,
            )
            with (WORK / "results.jsonl").open("ab") as file:
                file.write(msgspec.json.encode(result) + b"\n")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="Plant bugs and see which ones the tests notice.")
    parser.add_argument("words", nargs="*", metavar="WORD", help="an id, or part of a path")
    parser.add_argument("--jobs", type=int, default=1, help="how many run at once")
    parser.add_argument("--again", action="store_true", help="also those that were caught before")
    parser.add_argument("--list", action="store_true", help="print the list and run nothing")
    arguments = parser.parse_args()
    mutants = chosen(arguments.words)
    if arguments.list:
        for one in mutants:
            print(f"{one.id:6} {one.file}: {one.what}")
        return
    WORK.mkdir(parents=True, exist_ok=True)
    equivalent = [one for one in mutants if one.equivalent]
    live = [one for one in mutants if not one.equivalent]
    before = {} if arguments.again else results_so_far()
    kept = [
        one
        for one in live
        if one.id in before
        and before[one.id].outcome == "caught"
        and before[one.id].digest == one.digest()
    ]
    left = [one for one in live if one not in kept]
    results = run_all(left, arguments.jobs) if left else []
    count = {
        kind: [one.id for one in results if one.outcome == kind] for kind in ("survived", "broken")
    }
    caught = len(kept) + len(results) - len(count["survived"]) - len(count["broken"])
    print(f"{len(mutants)} planted bugs: {caught} caught ({len(kept)} of them in an earlier run),")
    for kind, ids in count.items():
        print(f"{len(ids)} {kind}{': ' if ids else ''}{', '.join(ids)}")
    print(f"{len(equivalent)} equivalent, not run:")
    for one in equivalent:
        print(f"{one.id:6} {one.what}: {one.equivalent}")
    sys.exit(1 if count["survived"] or count["broken"] else 0)


if __name__ == "__main__":
    main()
