"""`sublimate show MODEL`: what a model is, what it takes, and what of it would not work.

defines: show_command, show
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ..config import Effective, cache_folder, format_size, load_settings
from ..errors import ExitCode, ModelError
from . import options as flags
from .library import library_folder
from .output import out, run_guarded

if TYPE_CHECKING:
    from ..model.card import Card, Sizes
    from ..model.files import ModelFile

THINKING = {
    "always": "thinks",
    "switch": "thinks if asked to",
    "never": "does not think",
    "": "",
}
MILLION, BILLION = 10**6, 10**9


def show_command(
    name: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Name or path; else the configured one.")
    ] = None,
    exact: flags.Exact = None,
    context_length: flags.ContextLength = None,
    cache_dir: flags.CacheDir = None,
    json: flags.Json = False,
    config: flags.ConfigFile = None,
) -> None:
    """Say what a model is, what serving it takes, and what of it would not work."""
    given = {
        "model": name,
        "exact": exact,
        "context_length": context_length,
        "cache_dir": cache_dir,
    }

    def action() -> int:
        chosen = {key: value for key, value in given.items() if value is not None}
        return show(load_settings(chosen, config=config), json)

    if code := run_guarded(action):
        sys.exit(code)


def show(effective: Effective, as_json: bool) -> ExitCode:
    """Raises ModelError for what is no model."""
    import msgspec
    from rich.table import Table
    from rich.text import Text

    from ..model.card import card_of

    engine = effective.settings.engine
    card = card_of(_found(effective), exact=engine.exact, context_length=engine.context_length)
    if as_json:
        out.print_json(msgspec.json.encode(card).decode())
        return ExitCode.OK
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for topic, text in _rows(card):
        table.add_row(topic, Text(text))
    for number, problem in enumerate(card.problems):
        table.add_row("" if number else "[red]problems[/red]", Text(problem))
    out.print(table)
    verdict = "It cannot be served." if card.problems else f"sublimate serve --model {card.path}"
    out.print(Text(verdict), soft_wrap=True)
    return ExitCode.OK


def _found(effective: Effective) -> ModelFile:
    """Of a name of the settings' models, one that `serve` takes, or one of the library. Raises
    ModelError."""
    from ..model.files import locate
    from ..model.models_folder import models_in

    settings, cache = effective.settings, cache_folder(effective.settings)
    paths = {one.name: one.path for one in settings.models}
    wanted = paths.get(settings.model, settings.model)
    try:
        file = locate(wanted, cache)
    except ModelError:
        kept = {one.name: one.path for one in models_in(library_folder(effective))}
        if wanted not in kept:
            raise
        file = locate(str(kept[wanted].absolute()), cache)
    if file is None:
        raise ModelError(f"{wanted} is not here: `sublimate pull {wanted}` fetches it.")
    return file


def _rows(card: Card) -> list[tuple[str, str]]:
    in_files = f"{format_size(card.file_bytes)}, {card.format}"
    if card.files > 1:
        in_files += f", in {card.files} files"
    rows = [
        ("name", f"{card.name}: {card.title}" if card.title else card.name),
        ("file", f"{card.path} ({in_files})"),
        ("architecture", _architecture(card)),
        ("parameters", _count(card.parameters)),
        ("types", "; ".join(_kinds(card)) or "no tensors"),
        ("context", _context(card.sizes)),
        ("tokens", _tokens(card)),
        ("template", _template(card)),
    ]
    if card.memory is not None:
        memory = card.memory
        rows.append(
            (
                "memory",
                f"{format_size(memory.weights)} of weights; {format_size(memory.kv_token)} a token "
                f"of context, {format_size(memory.kv_context)} for the whole of it",
            )
        )
    return rows


def _architecture(card: Card) -> str:
    sizes = card.sizes
    parts = [
        f"{sizes.layers} layers" if sizes.layers else "",
        f"{sizes.hidden} wide" if sizes.hidden else "",
        f"{sizes.feed_forward} in the feed-forward" if sizes.feed_forward else "",
        f"{sizes.heads} heads of {sizes.head_dim}" if sizes.heads else "",
        f"{sizes.kv_heads} of keys and values" if sizes.kv_heads else "",
    ]
    told = ", ".join(part for part in parts if part)
    return f"{card.architecture or 'not told'}: {told}" if told else card.architecture or "not told"


def _count(parameters: int) -> str:
    if parameters >= BILLION:
        return f"{parameters / BILLION:.2f} billion"
    return f"{parameters / MILLION:.1f} million"


def _kinds(card: Card) -> list[str]:
    return [
        f"{kind.type}: {kind.tensors} tensor{'s' * (kind.tensors != 1)}, {format_size(kind.bytes)}"
        + ("" if kind.supported else " (not supported)")
        for kind in card.types
    ]


def _context(sizes: Sizes) -> str:
    if not sizes.trained_context_length:
        return "not told"
    text = f"{sizes.trained_context_length:,} tokens as trained"
    if sizes.context_length:
        text += f", {sizes.context_length:,} served"
    if sizes.window:
        text += f"; a window of {sizes.window:,} in some layers"
    if sizes.rope_scaling and sizes.rope_scaling != "none":
        text += f"; stretched by {sizes.rope_scaling}"
    return text


def _tokens(card: Card) -> str:
    tokens = card.tokens
    if not tokens.kind:
        return "none"
    kind = f"{tokens.kind}, {tokens.pre}" if tokens.pre else tokens.kind
    named = [f"{role} {text} ({token})" for role, (token, text) in tokens.special.items()]
    stop = ", ".join(f"{text} ({token})" for token, text in tokens.stop)
    parts = [f"{tokens.vocabulary:,} ({kind})", ", ".join(named)]
    parts.append(f"an answer ends with {stop}" if stop else "")
    parts.append("every text begins with bos" if tokens.begins else "")
    return "; ".join(part for part in parts if part)


def _template(card: Card) -> str:
    template = card.template
    origin = "the file's" if template.in_file else "none; a built-in one serves it"
    if template.report is None:
        return origin if not template.in_file else "the file's, not to be used (see problems)"
    report = template.report
    if report.replaced:
        origin = f"the file's, replaced by the built-in one: {report.replaced}"
    tools = "shows tools" if report.tools == "template" else "tools are shown as text"
    return "; ".join(
        (
            f"{origin} ({report.digest[:12]})",
            f"{tools} ({report.tool_format})",
            f"system turns {report.system_turns}",
            THINKING[template.thinking],
        )
    )
