"""`sublimate bench`: served endpoints, two servers in turn, or the in-process loop.

defines: Options, bench, served, native, parse_counts
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec

from ..bench.apis import APIS
from ..bench.load import Load, Round, discover
from ..bench.native import NativeRow, bench_engine
from ..bench.prompts import Counter
from ..bench.report import comparison_table, native_table, served_table, to_json
from ..bench.served import Comparison, Figures, bench_one, bench_two
from ..config import Effective, cache_folder
from ..engine.inprocess import Engine
from ..engine.text import load_text
from ..errors import ConfigError, ExitCode, ModelError, nearest
from ..model.files import locate
from .output import errors, note, out, print_plain

SEED_RANGE = 1 << 32
REQUESTS_MIN = 4
REQUESTS_PER_STREAM = 2


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the command was given; see main.bench for the help."""

    url: str | None
    compare: str | None
    engine: bool
    concurrency: int
    requests: int
    prompt: str
    generate: str
    batch: str
    rounds: int
    api: str
    served_model: str
    api_key: str
    extra: str
    seed: int | None
    json: bool


LoadSettings = Callable[..., Effective]
SETTINGS = (
    "config",
    "model",
    "exact",
    "threads",
    "isa",
    "kv",
    "kv_memory",
    "speculation",
    "context_length",
    "profile",
)


def bench(given: dict[str, Any], load_settings: LoadSettings) -> ExitCode:
    """The command. Raises SublimateError."""
    own = {name: value for name, value in given.items() if name not in SETTINGS}
    options = msgspec.convert(own, Options)
    effective = load_settings(**{name: given[name] for name in SETTINGS})
    if options.engine == (options.url is not None):
        raise ConfigError("Give either the URL of a server or --engine.")
    if options.api and options.api not in APIS:
        valid = ", ".join(APIS)
        raise ConfigError(f"--api {options.api}: expected {valid}.{nearest(options.api, APIS)}")
    if options.engine:
        return native(effective, options)
    return served(effective, options, _load(options))


def _load(options: Options) -> Load:
    prompts = parse_counts(options.prompt, "--prompt")
    generates = parse_counts(options.generate, "--generate")
    if len(prompts) != 1 or len(generates) != 1:
        raise ConfigError("--prompt and --generate take one number each for a server.")
    try:
        extra = msgspec.json.decode(options.extra, type=dict[str, Any])
    except msgspec.DecodeError:
        raise ConfigError(f"--extra {options.extra}: expected a JSON object.") from None
    least = max(REQUESTS_MIN, REQUESTS_PER_STREAM * options.concurrency)
    return Load(
        concurrency=options.concurrency,
        requests=options.requests or least,
        prompt_tokens=prompts[0],
        generate_tokens=generates[0],
        extra=extra,
        api_key=options.api_key,
    )


def _counter(effective: Effective) -> Counter | None:
    """Counts tokens with the tokenizer of --model; None if that model is not here."""
    try:
        file = locate(effective.settings.model, cache_folder(effective.settings))
    except ModelError as error:
        if effective.origins["model"] != "default":
            raise
        note(str(error))
        return None
    text = load_text(str(file.path)) if file is not None else None
    if text is None:
        note("No tokenizer is here (sublimate pull, or --model): the server's own counts are used.")
        return None
    return lambda words: len(text.encode(words))


def served(effective: Effective, options: Options, load: Load) -> ExitCode:
    """Stream at one server, or at two in turn. Raises PeerError. Exit code PEER on errors."""
    counter = _counter(effective)
    seed = options.seed
    if seed is None:
        seed = random.randrange(SEED_RANGE)  # noqa: S311 - load, not secrets

    def done(which: str, number: int, one: Round) -> None:
        if not options.json:
            bad = len(one.samples) - len(one.good)
            failed = f", {bad} errors" if bad else ""
            speed = f"{one.tokens_per_second:.1f} tokens/s"
            errors.print(f"round {number + 1} {which}: {speed}{failed}", soft_wrap=True)

    async def run(url: str) -> tuple[list[Figures], Comparison | None]:
        peer = await discover(url, options.api, options.served_model, load)
        if options.compare is None:
            return [await bench_one(peer, load, options.rounds, counter, seed, done)], None
        other = await discover(options.compare, "", "", load)
        peers = (peer, other)
        first, second, ratios = await bench_two(peers, load, options.rounds, counter, seed, done)
        return [first, second], ratios

    figures, ratios = asyncio.run(run(options.url or ""))
    if options.json:
        print_plain(to_json(figures, ratios))
    else:
        out.print(served_table(figures))
        if ratios is not None:
            out.print(comparison_table(ratios))
    return ExitCode.PEER if any(one.errors for one in figures) else ExitCode.OK


def native(effective: Effective, options: Options) -> ExitCode:
    """Time the in-process loop. Raises SublimateError."""
    settings = effective.settings
    prompts = parse_counts(options.prompt, "--prompt")
    generates = parse_counts(options.generate, "--generate")
    batches = parse_counts(options.batch, "--batch")

    def done(row: NativeRow) -> None:
        if not options.json:
            errors.print(f"{row.test} batch {row.batch}: {row.tok_s:.1f} tokens/s")

    fields = msgspec.structs.asdict(settings.engine)
    del fields["script"]
    # A model that is made to go on and on repeats itself: guesses would come true as they never do
    # for a reader's text.
    if effective.origins["speculation"] == "default":
        fields["speculation"] = "off"
    cache = cache_folder(settings)
    with Engine(settings.model, cache_dir=cache, profile=settings.edge.profile, **fields) as engine:
        try:
            rows = bench_engine(
                engine,
                prompt_tokens=prompts,
                generate_tokens=generates,
                batches=batches,
                repetitions=options.rounds,
                done=done,
            )
        except ValueError as error:
            raise ConfigError(f"{error}.") from None
    if options.json:
        print_plain(to_json(rows))
    elif rows:
        out.print(native_table(rows))
    return ExitCode.OK


def parse_counts(text: str, name: str) -> list[int]:
    """Whole numbers above 0 from a comma-separated list. Raises ConfigError."""
    try:
        counts = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        counts = []
    if any(count < 1 for count in counts) or (text.strip() and not counts):
        raise ConfigError(f"{name} = {text!r}: expected whole numbers above 0, such as 1,32.")
    return counts
