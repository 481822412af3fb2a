"""`sublimate rollout rehearse`: does the version to go back to still install, start and answer?

The wheel is installed into a scratch environment, started beside whatever runs, asked, stopped;
each step is timed. Its dependencies are borrowed from the environment of this command, so that
nothing is fetched, unless that is asked for.

defines: Rehearsal, Step, rehearse
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..bench.http import Target, exchange
from ..errors import ConfigError, EngineError, PeerError, SublimateError

INSTALL_SECONDS, START_SECONDS, ANSWER_SECONDS, STOP_SECONDS = 900.0, 180.0, 120.0, 45.0
OK_STATUS = 200
TOKENS = 16
SHOWN_LINES = 5
HIDDEN_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "SUBLIMATE_CONFIG")
Note = Callable[[str], None]


class Step(msgspec.Struct, frozen=True):
    """One thing that was done, and what came of it."""

    name: str
    seconds: float
    said: str = ""

    def __post_init__(self) -> None:
        if not self.name or self.seconds < 0:
            raise ValueError("a step has a name and took some time")


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of it."""

    wheel: str
    version: str = ""
    """As the server that was started tells it."""
    steps: list[Step]
    why: str = ""
    """What failed; empty: it can be gone back to."""


class _Ready(msgspec.Struct):
    """What is used of the lines that a server prints."""

    event: str = ""
    url: str = ""


class _Run:
    """The steps so far."""

    def __init__(self, note: Note) -> None:
        self.steps: list[Step] = []
        self._note = note

    def timed(self, name: str, action: Callable[[], str]) -> str:
        """Do it, note it. Raises what it raises."""
        if any(step.name == name for step in self.steps):
            raise RuntimeError("each step is done once")
        self._note(name)
        begun = time.perf_counter()
        said = action()
        self.steps.append(Step(name, time.perf_counter() - begun, said))
        return said


def rehearse(
    wheel: str, serve: Sequence[str], *, fetch: bool = False, note: Note = lambda text: None
) -> Rehearsal:
    """wheel: a file, or a version to be had from the package index. serve: more arguments of
    `sublimate serve`. fetch: get dependencies from the index too. Raises ConfigError."""
    if not wheel:
        raise ConfigError("Name what to go back to: --wheel FILE, or --version X.")
    is_file = wheel.endswith(".whl")
    if is_file and not Path(wheel).is_file():
        raise ConfigError(f"--wheel {wheel}: there is no such file.")
    if importlib.util.find_spec("pip") is None:
        raise ConfigError("The rehearsal installs with pip, which is not in this environment.")
    run = _Run(note)
    version = why = ""
    with tempfile.TemporaryDirectory(prefix="sublimate-rehearsal-") as name:
        folder = Path(name)
        try:
            run.timed("scratch environment", lambda: _make_environment(folder, borrow=not fetch))
            run.timed("install", lambda: _install(folder, wheel, fetch=fetch or not is_file))
            version = _serve(run, folder, serve)
        except SublimateError as error:
            why = str(error)
    return Rehearsal(wheel=wheel, version=version, steps=run.steps, why=why)


def _make_environment(folder: Path, *, borrow: bool) -> str:
    """Raises EngineError."""
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], INSTALL_SECONDS)
    if not borrow:
        return ""
    packages = next((folder / "env" / "lib").glob("python*/site-packages"))
    lent = [
        *site.getsitepackages(),
        *([site.getusersitepackages()] if site.ENABLE_USER_SITE else []),
    ]
    paths = [path for path in lent if Path(path).is_dir()]
    # Behind the environment's own: what is installed there comes first.
    (packages / "borrowed.pth").write_text("\n".join(paths) + "\n", encoding="utf-8")
    return "with this environment's dependencies"


def _install(folder: Path, wheel: str, *, fetch: bool) -> str:
    """Raises EngineError."""
    interpreter = str(folder / "env" / "bin" / "python")
    command = [sys.executable, "-m", "pip", "--python", interpreter, "install", "--quiet"]
    command += ["--disable-pip-version-check", "--no-input"]
    if wheel.endswith(".whl"):
        command += [wheel] if fetch else ["--no-deps", "--no-index", wheel]
    else:
        command += ["--only-binary", "sublimate", f"sublimate=={wheel}"]
    _run(command, INSTALL_SECONDS)
    return ""


def _run(command: Sequence[str], seconds: float) -> None:
    """Raises EngineError with the end of what was said."""
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter
            command, capture_output=True, text=True, timeout=seconds, env=_environment()
        )
    except subprocess.TimeoutExpired:
        raise EngineError(f"{command[2]} took longer than {seconds:.0f} s.") from None
    if done.returncode != 0:
        raise EngineError(_end_of(done.stderr or done.stdout, f"{command[2]} failed"))


def _environment() -> dict[str, str]:
    """Of the scratch environment's programs: not that of this one."""
    return {name: value for name, value in os.environ.items() if name not in HIDDEN_VARIABLES}


def _end_of(text: str, what: str) -> str:
    return "\n".join([f"{what}:", *text.strip().splitlines()[-SHOWN_LINES:]])


def _serve(run: _Run, folder: Path, serve: Sequence[str]) -> str:
    """Start, ask, stop; the version. Raises EngineError, PeerError."""
    command = [str(folder / "env" / "bin" / "python"), "-m", "sublimate", "serve", "--json"]
    log = folder / "log"
    variables = {**_environment(), "XDG_DATA_HOME": str(folder)}
    with (
        log.open("wb") as errors,
        subprocess.Popen(  # noqa: S603 - what was just installed
            [*command, "--port", "0", *serve],
            stdout=subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            env=variables,
            cwd=folder,
        ) as process,
    ):
        try:
            url = run.timed("start to ready", lambda: _wait_ready(process, log))
            version = str(_ask(url, "/version", b"").get("version", ""))
            run.timed("first answer", lambda: _answer(url))
            run.timed("second answer", lambda: _answer(url))
            run.timed("stop", lambda: _stop(process))
        finally:
            if process.poll() is None:
                process.kill()
    return version


def _wait_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    timer = threading.Timer(START_SECONDS, process.kill)
    timer.start()
    try:
        for line in process.stdout or ():
            try:
                said = msgspec.json.decode(line, type=_Ready)
            except msgspec.DecodeError:
                continue
            if said.event == "ready" and said.url:
                return said.url
    finally:
        timer.cancel()
    raise EngineError(_end_of(log.read_text(errors="replace"), "It did not start"))


def _ask(url: str, path: str, body: bytes) -> dict[str, Any]:
    """Raises PeerError."""
    target = Target.parse(url)
    headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
    method = "POST" if body else "GET"
    got = asyncio.run(exchange(target, method, path, body, headers, ANSWER_SECONDS))
    if got.status != OK_STATUS:
        raise PeerError(f"{path} answered {got.status} {got.error}".strip() + ".")
    return msgspec.json.decode(got.body(), type=dict[str, Any])


def _answer(url: str) -> str:
    asked = [{"role": "user", "content": "Say hello."}]
    body = {"model": "default", "max_tokens": TOKENS, "messages": asked}
    got = _ask(url, "/v1/messages", msgspec.json.encode(body))
    tokens = int(got.get("usage", {}).get("output_tokens", 0))
    if not tokens or not got.get("content"):
        raise PeerError("The answer to a message had nothing in it.")
    return f"{tokens} tokens"


def _stop(process: subprocess.Popen[bytes]) -> str:
    process.send_signal(signal.SIGTERM)
    try:
        code = process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        raise EngineError(f"It did not stop within {STOP_SECONDS:.0f} s.") from None
    if code != 0:
        raise EngineError(f"It ended with exit code {code}.")
    return ""
