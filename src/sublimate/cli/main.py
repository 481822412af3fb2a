"""The `sublimate` command: what each subcommand is called and takes.

Exit codes: 0 done, 1 a bug, 2 wrong usage or setting, 3 model, 4 engine or hardware, 5 cannot
listen, 6 a server that was talked to, 7 a wrong signature, 130 interrupted.

defines: main, app; serve, chat, run, launch_env, ps, debug, doctor, pull, models,
probe, limits, bench, tax, wire_compare, config_show, verify, version
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from . import options as flags
from .convert import convert
from .given import end_with as _exit
from .given import settings_of as _settings
from .guard import guard_app
from .kernel import kernel
from .keys import keys_app
from .library import ls_command, rm_command, stop_command
from .output import fold_help, print_plain, run_guarded
from .reload import reload_command
from .rollout import rollout_app
from .serve_command import SERVES, serve
from .show import show_command
from .signed import sign_command, verify_command
from .uninstall import uninstall_command

app = typer.Typer(
    name="sublimate",
    help="Serves language models through one resident loop.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Groups of the help.
SERVE, USE, MODELS, LOOK = "Serve", "Use", "Models", "Look"
MEASURE, MOVE, RELEASES = "Measure", "Move", "Releases"

config_app = typer.Typer(help="Settings.", no_args_is_help=True)
launch_app = typer.Typer(help="Start an agent that talks to a server.", no_args_is_help=True)
app.command(help=SERVES, rich_help_panel=SERVE)(serve)
for called, command, group in (
    ("reload", reload_command, SERVE),
    ("ls", ls_command, MODELS),
    ("show", show_command, MODELS),
    ("convert", convert, MODELS),
    ("rm", rm_command, MODELS),
    ("stop", stop_command, MODELS),
    ("kernel", kernel, LOOK),
    ("verify", verify_command, RELEASES),
    ("sign", sign_command, RELEASES),
    ("uninstall", uninstall_command, RELEASES),
):
    app.command(called, rich_help_panel=group)(command)
app.command("list", hidden=True)(ls_command)
for called, group_app, group in (
    ("config", config_app, SERVE),
    ("keys", keys_app, SERVE),
    ("launch", launch_app, USE),
    ("guard", guard_app, LOOK),
    ("rollout", rollout_app, MOVE),
):
    app.add_typer(group_app, name=called, rich_help_panel=group)


def main() -> None:
    """Entry of the command."""
    if sys.argv[1:2] == ["help"]:  # like `git help`
        sys.argv[1:] = [*sys.argv[2:], "--help"]
    if {"-h", "--help"} & set(sys.argv):
        fold_help()
    app()


def _print_version(is_asked: bool) -> None:
    if is_asked:
        from .. import __version__

        print_plain(f"sublimate {__version__}")
        raise typer.Exit


@app.callback()
def _command(
    is_version_asked: Annotated[
        bool,
        typer.Option(
            "--version", "-V", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Serves language models through one resident loop."""


@app.command(rich_help_panel=USE)
def chat(
    prompt: Annotated[
        str, typer.Argument(help="Answer this and exit; piped input is added after it.")
    ] = "",
    url: Annotated[
        str | None,
        typer.Option(
            help="A running server; else the one at the configured address, or a new one."
        ),
    ] = None,
    model: flags.Model = None,
    exact: flags.Exact = None,
    context_length: flags.ContextLength = None,
    api_keys: flags.ClientKeys = None,
    cacert: flags.CaCert = None,
    system: Annotated[str, typer.Option(help="System prompt.")] = "",
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer in tokens.")] = 512,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.7,
    config: flags.ConfigFile = None,
) -> None:
    """Talk to a model in the terminal."""
    given = {"model": model, "exact": exact, "context_length": context_length}

    def action() -> int:
        effective = _settings(config, api_keys=api_keys, **given)
        from .chat import chat as run

        return run(
            effective,
            config=config,
            url=url,
            cacert=cacert,
            system=system,
            max_tokens=max_tokens,
            temperature=temperature,
            prompt=prompt,
        )

    _exit(run_guarded(action))


def _launcher(name: str) -> Callable[..., None]:
    """The command that starts one agent."""

    def launch(
        arguments: Annotated[list[str] | None, typer.Argument(help="After --: its own.")] = None,
        url: flags.ServerUrl = "",
        any_context: flags.AnyContext = False,
        model: flags.Model = None,
        context_length: flags.ContextLength = None,
        rope_scaling: flags.RopeScaling = None,
        api_keys: flags.ClientKeys = None,
        cacert: flags.CaCert = None,
        config: flags.ConfigFile = None,
    ) -> None:
        given = {"context_length": context_length, "rope_scaling": rope_scaling}

        def action() -> int:
            effective = _settings(config, model=model, api_keys=api_keys, **given)
            from .launch import launch_agent
            from .peer import configured_peer

            peer = configured_peer(effective, url, cacert)
            words = arguments or []
            return launch_agent(
                name, effective, words, peer, config, url=url, any_context=any_context
            )

        _exit(run_guarded(action))

    return launch


for called, title in (("claude", "Claude Code"), ("codex", "Codex"), ("opencode", "OpenCode")):
    launch_app.command(
        called, help=f"Start {title} with what fits the server; starts one if none runs."
    )(_launcher(called))


@app.command(context_settings={"ignore_unknown_options": True}, rich_help_panel=USE)
def run(
    command: Annotated[list[str], typer.Argument(help="The program with its arguments, after --.")],
    profile: Annotated[
        str,
        typer.Option(help="Execution profile that its requests name; else as the server wants."),
    ] = "",
) -> None:
    """Run a program whose anthropic clients use our transport, with its code unchanged."""

    def action() -> int:
        from .run import run_program

        return run_program(command, profile)

    _exit(run_guarded(action))


@launch_app.command("env")
def launch_env(
    shell: Annotated[
        Literal["sh", "fish", "powershell", "json"], typer.Option(help="How to write it.")
    ] = "sh",
    url: flags.ServerUrl = "",
    any_context: flags.AnyContext = False,
    api_keys: flags.ClientKeys = None,
    cacert: flags.CaCert = None,
    config: flags.ConfigFile = None,
) -> None:
    """Print Claude Code's variables for a running server, the key too: eval "$(... env)"."""

    def action() -> int:
        from .launch import launch_env as run
        from .peer import configured_peer

        peer = configured_peer(_settings(config, api_keys=api_keys), url, cacert)
        return run(peer, shell, any_context=any_context)

    _exit(run_guarded(action))


@app.command(rich_help_panel=LOOK)
def ps(
    url: Annotated[str, typer.Option(help="One server; else those of this machine.")] = "",
    api_keys: flags.ClientKeys = None,
    cacert: flags.CaCert = None,
    json: flags.Json = False,
    config: flags.ConfigFile = None,
) -> None:
    """List servers: model, served context, requests, memory in use."""

    def action() -> int:
        from .peer import configured_peer
        from .ps import ps as run

        return run(configured_peer(_settings(config, api_keys=api_keys), url, cacert), url, json)

    _exit(run_guarded(action))


@app.command(rich_help_panel=LOOK)
def debug(
    target: Annotated[
        str,
        typer.Argument(help="A request-id; messages.create makes a call; else all is followed."),
    ] = "",
    url: flags.ServerUrl = "",
    api_keys: flags.ClientKeys = None,
    model: Annotated[str, typer.Option("-m", "--model", help="Model of the request.")] = "default",
    message: Annotated[str, typer.Option(help="Text of the request.")] = "Why is the sky blue?",
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer in tokens.")] = 64,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Of the call: each thing that the client did.")
    ] = False,
    steps: Annotated[bool, typer.Option("--steps", help="Follow each step of the loop.")] = False,
    path: Annotated[str, typer.Option(help="Follow requests whose path begins with this.")] = "",
    errors: Annotated[bool, typer.Option("--errors", help="Follow failed requests only.")] = False,
    slow: Annotated[
        float, typer.Option(min=0, help="Follow requests that took at least so many ms.")
    ] = 0,
    seconds: Annotated[float, typer.Option(min=0, help="Follow for so long; 0: no end.")] = 0,
    perfetto: Annotated[
        Path | None, typer.Option(help="Write a trace for ui.perfetto.dev here.")
    ] = None,
    cacert: flags.CaCert = None,
    json: flags.Json = False,
    config: flags.ConfigFile = None,
) -> None:
    """Show what a server decides: as it happens, for one request, or for a call of its own."""

    def action() -> int:
        from .debug import CALL, call, follow, show
        from .debug_text import Filter
        from .peer import configured_peer

        peer = configured_peer(_settings(config, api_keys=api_keys), url, cacert)
        if target == CALL:
            turn = {"role": "user", "content": message}
            asked = {"model": model, "max_tokens": max_tokens, "messages": [turn], "stream": True}
            return call(peer, asked, verbose=verbose, as_json=json, perfetto=perfetto)
        if target:
            return show(peer, target, as_json=json, perfetto=perfetto)
        chosen = Filter(path=path, errors=errors, slow_ms=slow, steps=steps)
        return follow(peer, chosen, as_json=json, perfetto=perfetto, seconds=seconds)

    _exit(run_guarded(action))


@app.command(rich_help_panel=LOOK)
def doctor(
    url: flags.ServerUrl = "",
    model: flags.Model = None,
    api_keys: flags.ClientKeys = None,
    data_dir: flags.DataDir = None,
    cache_dir: flags.CacheDir = None,
    cacert: flags.CaCert = None,
    json: flags.Json = False,
    config: flags.ConfigFile = None,
) -> None:
    """Check this machine, and a server with an agent's eyes; exit status 1 for a problem."""
    given = {"api_keys": api_keys, "data_dir": data_dir, "cache_dir": cache_dir}

    def action() -> int:
        effective = _settings(config, model=model, **given)
        from .doctor import doctor as run

        return run(effective, url, cacert, json)

    _exit(run_guarded(action))


@app.command(rich_help_panel=MODELS)
def pull(
    name: Annotated[str | None, typer.Argument(help="Model; else the configured one.")] = None,
    cache_dir: flags.CacheDir = None,
    config: flags.ConfigFile = None,
) -> None:
    """Fetch and verify a model."""

    def action() -> int:
        effective = _settings(config, cache_dir=cache_dir, model=name)
        from .models import pull as run

        return run(effective, effective.settings.model)

    _exit(run_guarded(action))


@app.command(rich_help_panel=MODELS)
def models(
    cache_dir: flags.CacheDir = None, json: flags.Json = False, config: flags.ConfigFile = None
) -> None:
    """List models: known, and which of them are here."""

    def action() -> int:
        from .models import models as run

        return run(_settings(config, cache_dir=cache_dir), json)

    _exit(run_guarded(action))


@app.command(rich_help_panel=LOOK)
def probe(
    model: flags.Model = None,
    host: flags.Host = None,
    port: flags.Port = None,
    isa: flags.Isa = None,
    threads: flags.Threads = None,
    kv: flags.Kv = None,
    kv_memory: flags.KvMemory = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also read memory, for a moment with all cores.")
    ] = False,
    record: Annotated[
        Path | None, typer.Option(help="File to keep all facts in, to report a problem.")
    ] = None,
    json: flags.Json = False,
    config: flags.ConfigFile = None,
) -> None:
    """Say what this machine offers, which backends run on it, and whether the model fits."""
    given: dict[str, Any] = {"host": host, "port": port, "isa": isa, "threads": threads}
    given |= {"kv": kv, "kv_memory": kv_memory}

    def action() -> int:
        effective = _settings(config, model=model, **given)
        from .probe import probe as run

        return run(effective, json, measure, record)

    _exit(run_guarded(action))


@app.command(rich_help_panel=MEASURE)
def limits(
    url: Annotated[
        str, typer.Option(help="A running server: also say what its last load reached.")
    ] = "",
    api_key: Annotated[str, typer.Option(help="Key to send to it.")] = "",
    threads: Annotated[int, typer.Option("-t", "--threads", min=0, help="0: all cores.")] = 0,
    json: flags.Json = False,
) -> None:
    """Measure what this machine gives at most: reading memory, multiplying."""

    def action() -> int:
        from .limits import limits as run

        return run(url, api_key, threads, json)

    _exit(run_guarded(action))


@app.command(rich_help_panel=MEASURE)
def bench(
    url: Annotated[str | None, typer.Argument(help="Server: http://127.0.0.1:8000")] = None,
    compare: Annotated[str | None, typer.Option(help="Second server, in turn with URL.")] = None,
    engine: Annotated[bool, typer.Option("--engine", help="The loop in this process.")] = False,
    concurrency: Annotated[int, typer.Option("-c", "--concurrency", min=1, help="At once.")] = 1,
    requests: Annotated[
        int, typer.Option("-n", "--requests", min=0, help="Per round; 0: 2 per stream, 4 or more.")
    ] = 0,
    prompt: Annotated[
        str, typer.Option("--prompt", "--prompt-tokens", help="Tokens in; a list with --engine.")
    ] = "128",
    generate: Annotated[str, typer.Option(help="Tokens out; a list with --engine.")] = "64",
    batch: Annotated[str, typer.Option(help="With --engine: streams at once.")] = "1",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, or repetitions of --engine.")] = 3,
    api: Annotated[str, typer.Option(help="messages or openai; empty: found out.")] = "",
    served_model: Annotated[str, typer.Option(help="Model to ask URL for.")] = "",
    api_key: Annotated[str, typer.Option(help="Key to send.")] = "",
    extra: Annotated[str, typer.Option(help="JSON object added to each request.")] = "{}",
    seed: Annotated[int | None, typer.Option(help="Repeats the same prompts.")] = None,
    model: flags.Model = None,
    exact: flags.Exact = None,
    threads: flags.Threads = None,
    isa: flags.Isa = None,
    kv: flags.Kv = None,
    kv_memory: flags.KvMemory = None,
    speculation: flags.Speculation = None,
    context_length: flags.ContextLength = None,
    profile: flags.ProfileFlag = None,
    json: flags.Json = False,
    config: flags.ConfigFile = None,
) -> None:
    """Time a Messages or OpenAI-style server, two in turn, or the loop in this process."""
    given: dict[str, Any] = dict(locals())

    def action() -> int:
        from .bench import bench as run

        return run(given, _settings)

    _exit(run_guarded(action))


@app.command(rich_help_panel=MEASURE)
def tax(
    figure: Annotated[
        list[int] | None,
        typer.Option(
            help="1 ceiling with a mock engine, 2 tax with the real engine, 3 ledger of a request, "
            "4 interference; all if not given. May be repeated."
        ),
    ] = None,
    prompt: Annotated[int, typer.Option(help="Tokens in.")] = 128,
    generate: Annotated[int, typer.Option(help="Tokens out.")] = 64,
    rounds: Annotated[int, typer.Option(help="Rounds of everything, interleaved.")] = 2,
    seconds: Annotated[float, typer.Option(help="Of each load of figure 1.")] = 1.0,
    ceiling: Annotated[str, typer.Option(help="Figure 1: streams at once.")] = "1,8,32,64,512",
    concurrency: Annotated[
        str, typer.Option("-c", "--concurrency", help="Figures 2 and 3: streams at once.")
    ] = "1,8,32",
    streams: Annotated[int, typer.Option(help="Figure 4: streams at once.")] = 8,
    busy: Annotated[int, typer.Option(help="Figure 4: busy processes; 0: the cores.")] = 0,
    twin: Annotated[
        Path | None, typer.Option(help="bench/uvicorn_twin.py of a source tree, if not found.")
    ] = None,
    peer_url: Annotated[
        str, typer.Option(help="Another server on this machine, for figures 2 and 4.")
    ] = "",
    peer_model: Annotated[str, typer.Option(help="Model to ask it for.")] = "",
    peer_api: Annotated[str, typer.Option(help="anthropic or openai; empty: found out.")] = "",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder for tax.json and tax.svg.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 1,
    model: flags.Model = None,
    exact: flags.Exact = None,
    threads: flags.Threads = None,
    isa: flags.Isa = None,
    kv: flags.Kv = None,
    kv_memory: flags.KvMemory = None,
    context_length: flags.ContextLength = None,
    json: flags.Json = False,
    config: flags.ConfigFile = None,
) -> None:
    """Measure what serving costs on top of the engine: four figures, some minutes."""
    given: dict[str, Any] = dict(locals())

    def action() -> int:
        from .tax import Options
        from .tax import tax as run

        names = ("model", "exact", "threads", "isa", "kv", "kv_memory", "context_length")
        effective = _settings(config, **{name: given[name] for name in names})
        own = {name: given[name] for name in Options.__struct_fields__}
        own["figure"] = figure or []
        return run(effective, Options(**own))

    _exit(run_guarded(action))


@app.command("wire-compare", rich_help_panel=MEASURE)
def wire_compare(
    subject: Annotated[
        list[str] | None,
        typer.Option(help="old, uvicorn, http1, tls, frames, grpc, h3; all if not given."),
    ] = None,
    requests: Annotated[int, typer.Option("-n", "--requests", help="Of each in a round.")] = 10,
    rounds: Annotated[int, typer.Option(help="Rounds of everything, interleaved.")] = 3,
    generate: Annotated[int, typer.Option(help="Tokens out.")] = 32,
    step_ms: Annotated[float, typer.Option(help="The engine's time for each token.")] = 2.0,
    rtt: Annotated[
        float, typer.Option(help="Round trip in ms between client and server; 0: loopback.")
    ] = 0.0,
    loss: Annotated[float, typer.Option(help="Share of packets that vanish, 0 to 1.")] = 0.0,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder for wire.json and wire.svg.")
    ] = None,
    model: flags.Model = None,
    json: flags.Json = False,
    config: flags.ConfigFile = None,
) -> None:
    """Capture what a request costs on the wire, old layer against new. As root: it makes a network
    of its own."""
    given: dict[str, Any] = dict(locals())

    def action() -> int:
        from .wire import Options
        from .wire import wire_compare as run

        own = {name: given[name] for name in Options.__struct_fields__}
        own["subject"] = subject or []
        return run(_settings(config, model=model), Options(**own))

    _exit(run_guarded(action))


@config_app.command("show")
def config_show(json: flags.Json = False, config: flags.ConfigFile = None) -> None:
    """The settings that hold, and where each came from."""

    def action() -> int:
        from .config import show

        return show(_settings(config), json)

    _exit(run_guarded(action))


@app.command(rich_help_panel=RELEASES)
def version(json: flags.Json = False) -> None:
    """The version of Sublimate."""

    def action() -> int:
        import sublimate

        from .output import print_plain

        name, kind = sublimate.__version__, sublimate.provenance_kind()
        text = f"sublimate {name}" + ("" if kind == "release" else f" ({kind})")
        print_plain(f'{{"version":"{name}","kind":"{kind}"}}' if json else text)
        return 0

    _exit(run_guarded(action))
