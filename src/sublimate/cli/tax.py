"""`sublimate tax`: the four figures, as tables, JSON and a picture.

defines: Options, plan_of, tax
"""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import msgspec

from .. import _core
from ..bench.apis import APIS
from ..bench.load import Load, Peer, discover
from ..bench.picture import draw
from ..bench.tax import FIGURES, Note, Plan, Workbench
from ..bench.tax_ceiling import Ceiling, Idle, measure_ceiling
from ..bench.tax_engine import Tax, measure_tax
from ..bench.tax_interference import Interference, measure_interference
from ..bench.tax_ledger import Ledger, measure_ledger
from ..bench.tax_report import Report, tables
from ..config import Effective, cache_folder
from ..engine.inprocess import Engine
from ..errors import ConfigError, ExitCode, PeerError, nearest
from ..model.files import fetch
from .bench import parse_counts
from .output import errors, note, out, print_plain

TWIN = Path(__file__).parents[3] / "bench" / "uvicorn_twin.py"
"""In a source tree; an installed package has none."""
PEER_APIS = {"anthropic": "messages", "messages": "messages", "openai": "openai"}
LEDGER_FIGURE = 3
HTTP_FIGURES = (2, LEDGER_FIGURE)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the command was given; see main.tax for the help."""

    figure: list[int]
    prompt: int
    generate: int
    rounds: int
    seconds: float
    ceiling: str
    concurrency: str
    streams: int
    busy: int
    twin: Path | None
    peer_url: str
    peer_model: str
    peer_api: str
    out: Path | None
    seed: int
    json: bool


def plan_of(effective: Effective, options: Options) -> Plan:
    """What is to be measured. Raises ConfigError, ModelError."""
    if not options.peer_url and (options.peer_api or options.peer_model):
        raise ConfigError("--peer-api and --peer-model say something of a --peer-url.")
    if options.peer_api and options.peer_api not in PEER_APIS:
        known = ", ".join(PEER_APIS)
        hint = nearest(options.peer_api, PEER_APIS)
        raise ConfigError(f"--peer-api {options.peer_api}: expected {known}.{hint}")
    settings = effective.settings
    engine = {
        name: value
        for name, value in msgspec.structs.asdict(settings.engine).items()
        if name != "script"
    }
    file = fetch(settings.model, cache_folder(settings))
    return Plan(
        model_path=str(file.path),
        model_name=file.name,
        engine=engine,
        figures=tuple(dict.fromkeys(options.figure)) or tuple(FIGURES),
        prompt_tokens=options.prompt,
        generate_tokens=options.generate,
        rounds=options.rounds,
        seconds=options.seconds,
        ceiling_concurrencies=tuple(parse_counts(options.ceiling, "--ceiling")),
        tax_concurrencies=tuple(parse_counts(options.concurrency, "--concurrency")),
        interference_concurrency=options.streams,
        busy_processes=options.busy,
        twin=options.twin or (TWIN if TWIN.is_file() else None),
        seed=options.seed,
    )


def tax(effective: Effective, options: Options) -> ExitCode:
    """Measure, show, store. Raises SublimateError."""
    if options.out is not None:
        _make_folder(options.out)
    plan = plan_of(effective, options)
    bench = Workbench(plan)

    def progress(text: str) -> None:
        if not options.json:
            errors.print(text, soft_wrap=True, style="dim")

    peer = _peer(options)
    report = _measure(bench, peer, progress)
    for text in report.notes:
        note(text)
    if options.json:
        print_plain(msgspec.json.encode(report).decode())
    else:
        for table in tables(report):
            out.print(table)
    if options.out is not None:
        data = msgspec.json.format(msgspec.json.encode(report), indent=2)
        (options.out / "tax.json").write_bytes(data + b"\n")
        (options.out / "tax.svg").write_text(draw(report), encoding="utf-8")
        errors.print(f"Wrote tax.json and tax.svg to {options.out}.", soft_wrap=True)
    ledger_is_wrong = any(not row.adds_up for row in report.ledger)
    return ExitCode.ENGINE if ledger_is_wrong else ExitCode.OK


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {folder}: {error.strerror}.") from None


def _peer(options: Options) -> Peer | None:
    if not options.peer_url:
        return None
    load = Load(concurrency=1, requests=1, prompt_tokens=1, generate_tokens=2)
    style = APIS[PEER_APIS[options.peer_api]].style if options.peer_api else ""
    peer = asyncio.run(discover(options.peer_url, style, options.peer_model, load))
    if peer.target.scheme != "http":
        raise PeerError("--peer-url: this measures servers that speak plain http.")
    return peer


def _measure(bench: Workbench, peer: Peer | None, progress: Note) -> Report:
    plan = bench.plan
    probe = _core.probe()
    ceiling: list[Ceiling] = []
    idle: Idle | None = None
    notes: list[str] = []
    taxes: list[Tax] = []
    ledgers: list[Ledger] = []
    interference: list[Interference] = []
    info: dict[str, Any] = {}
    if 1 in plan.figures:
        if plan.twin is None or importlib.util.find_spec("uvicorn") is None:
            notes.append("No uvicorn twin beside figure 1: it needs --twin FILE and uvicorn.")
        ceiling, idle = measure_ceiling(bench, progress)
    if any(number > 1 for number in plan.figures):
        progress("starting the server")
        with bench.serving("--log-level", "info") as server:
            if any(number in plan.figures for number in HTTP_FIGURES):
                progress("loading the in-process engine")
                with Engine(plan.model_path, profile="low-latency", **plan.engine) as engine:
                    info = engine.info
                    taxes, waves = measure_tax(bench, server.url, engine, peer, progress)
                if LEDGER_FIGURE in plan.figures:
                    ledgers = measure_ledger(waves, server.log_lines(), progress)
            if 4 in plan.figures:
                interference = measure_interference(bench, server, peer, progress)
    shown = {key: value for key, value in info.items() if isinstance(value, str | int | float)}
    return Report(
        version=_version(),
        cpu=str(probe["cpu"]),
        cores=int(probe["cores"]),
        model=plan.model_name,
        engine=shown,
        prompt_tokens=plan.prompt_tokens,
        generate_tokens=plan.generate_tokens,
        rounds=plan.rounds,
        ceiling=ceiling,
        idle=idle,
        tax=taxes,
        ledger=ledgers,
        interference=interference,
        notes=notes,
    )


def _version() -> str:
    from .. import __version__

    return __version__
