"""`sublimate wire-compare`: packets, handshakes, bytes and milliseconds, old layer against new.

defines: Options, wire_compare
"""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

import msgspec

from .. import __version__
from ..bench.wire_compare import Plan, compare
from ..bench.wire_report import draw_wire, wire_tables
from ..config import Effective, cache_folder
from ..errors import ConfigError, ExitCode
from ..model.files import fetch
from .certificate import own_certificate
from .output import errors, note, out, print_plain

TWIN = Path(__file__).parents[3] / "bench" / "uvicorn_twin.py"
"""In a source tree; an installed package has none."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the command was given; see main.wire_compare for the help."""

    subject: list[str]
    requests: int
    rounds: int
    generate: int
    step_ms: float
    rtt: float
    loss: float
    out: Path | None
    json: bool


def wire_compare(effective: Effective, options: Options) -> ExitCode:
    """Measure, show, store. Raises SublimateError."""
    settings = effective.settings
    file = fetch(settings.model, cache_folder(settings))
    if options.out is not None:
        try:
            options.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out {options.out}: {error.strerror}.") from None

    def progress(text: str) -> None:
        if not options.json:
            errors.print(text, soft_wrap=True, style="dim")

    has_twin = TWIN.is_file() and importlib.util.find_spec("uvicorn") is not None
    with tempfile.TemporaryDirectory(prefix="sublimate-wire-") as folder:
        certificate, key = own_certificate(Path(folder))
        plan = Plan(
            model_path=str(file.path),
            model_name=file.name,
            subjects=tuple(options.subject),
            requests=options.requests,
            rounds=options.rounds,
            generate_tokens=options.generate,
            step_ms=options.step_ms,
            round_trip_ms=options.rtt,
            loss=options.loss,
            twin=TWIN if has_twin else None,
            certificate=certificate,
            key=key,
        )
        found = compare(plan, __version__, progress)
    for text in found.notes:
        note(text)
    if options.json:
        print_plain(msgspec.json.encode(found).decode())
    else:
        for table in wire_tables(found):
            out.print(table)
    if options.out is not None:
        data = msgspec.json.format(msgspec.json.encode(found), indent=2)
        (options.out / "wire.json").write_bytes(data + b"\n")
        (options.out / "wire.svg").write_text(draw_wire(found), encoding="utf-8")
        errors.print(f"Wrote wire.json and wire.svg to {options.out}.", soft_wrap=True)
    return ExitCode.OK
