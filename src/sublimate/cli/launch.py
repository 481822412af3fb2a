"""`sublimate launch`: an agent with the environment that fits the server it will talk to.

Every figure comes from what the server serves now, never from what its model was trained for. The
agent's own prompt is known to the agent alone, so nothing is computed ahead: its first turn fills
the cache and the second reads it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import FrameType
from typing import Literal

import msgspec

from ..bench.apis import PROFILE_HEADER
from ..config import Effective
from ..errors import ConfigError, ExitCode
from .chat import KEY_BYTES, own_server
from .output import errors, note, print_plain
from .peer import AGENT_CONTEXT_TOKENS, CONTEXT_ADVICE, Model, Peer, not_ready

Shell = Literal["sh", "fish", "powershell", "json"]

CLAUDE, CODEX, OPENCODE = "claude", "codex", "opencode"
NO_KEY = "none"
"""Agents want some key, also for a server that wants none."""
PROVIDER = "sublimate"
"""The name of this server in agents that know several providers."""
KEY_VARIABLE = "SUBLIMATE_AGENT_KEY"
"""Where Codex finds the key: its configuration names a variable."""
COMPACT_WINDOW_MIN = 100_000
"""Claude Code takes a smaller CLAUDE_CODE_AUTO_COMPACT_WINDOW as this, and warns. Without it the
window is that of CLAUDE_CODE_MAX_CONTEXT_TOKENS."""
COMPACT_SHARE = 0.85
"""Codex makes room when so much of the context is in use."""
OUTPUT_SHARE = 8
"""An answer may be so small a part of the context: what it reserves is missing for the prompt."""
TIMEOUT_MILLISECONDS = 3_600_000
"""A long prompt on few cores may take minutes before its first token."""
SIGNAL_EXIT = 128


class Start(msgspec.Struct, frozen=True):
    """How an agent is started for a server."""

    flags: tuple[str, ...] = ()
    """Put before the user's own arguments."""
    variables: dict[str, str] = {}
    without: tuple[str, ...] = ()
    """Variables that would win over those."""


def output_tokens(model: Model) -> int:
    """The longest answer that an agent should ask for."""
    return max(1, min(model.max_tokens, model.max_input_tokens // OUTPUT_SHARE))


def environment(peer: Peer, model: Model) -> dict[str, str]:
    """Variables of Claude Code for this server, what it trusts among them."""
    context = str(model.max_input_tokens)
    names = ("OPUS", "SONNET", "HAIKU")
    named = f"{PROFILE_HEADER}: {peer.profile}"
    fits = model.max_input_tokens >= COMPACT_WINDOW_MIN
    return {
        "ANTHROPIC_BASE_URL": peer.url,
        "ANTHROPIC_AUTH_TOKEN": peer.key or NO_KEY,
        **_trusted("NODE_EXTRA_CA_CERTS", peer),
        **({"ANTHROPIC_CUSTOM_HEADERS": named} if peer.profile else {}),
        "ANTHROPIC_MODEL": model.id,
        **{f"ANTHROPIC_DEFAULT_{name}_MODEL": model.id for name in names},
        "CLAUDE_CODE_SUBAGENT_MODEL": model.id,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": context,
        **({"CLAUDE_CODE_AUTO_COMPACT_WINDOW": context} if fits else {}),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(output_tokens(model)),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "API_TIMEOUT_MS": str(TIMEOUT_MILLISECONDS),
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": str(TIMEOUT_MILLISECONDS),
    }


def _trusted(variable: str, peer: Peer) -> dict[str, str]:
    trusted = peer.trusted
    return {variable: str(trusted.absolute())} if trusted is not None else {}


def _claude(peer: Peer, model: Model) -> Start:
    without = ["ANTHROPIC_API_KEY"]  # the other name of the key
    if model.max_input_tokens < COMPACT_WINDOW_MIN:
        without.append("CLAUDE_CODE_AUTO_COMPACT_WINDOW")
    return Start(variables=environment(peer, model), without=tuple(without))


def _codex(peer: Peer, model: Model) -> Start:
    """Codex takes settings as flags, which win over the user's file."""
    context = model.max_input_tokens
    provider = f"model_providers.{PROVIDER}"
    settings: dict[str, str | int | bool] = {
        "model": model.id,
        "model_provider": PROVIDER,
        "model_context_window": context,
        "model_auto_compact_token_limit": int(context * COMPACT_SHARE),
        f"{provider}.name": "Sublimate",
        f"{provider}.base_url": f"{peer.url}/v1",
        f"{provider}.wire_api": "responses",
        f"{provider}.env_key": KEY_VARIABLE,
        f"{provider}.stream_idle_timeout_ms": TIMEOUT_MILLISECONDS,
        "web_search": "disabled",
        "check_for_update_on_startup": False,
        "analytics.enabled": False,
    }
    if peer.profile:
        settings[f"{provider}.http_headers.{PROFILE_HEADER}"] = peer.profile
    # These JSON values are TOML values too.
    pairs = [f"{name}={msgspec.json.encode(value).decode()}" for name, value in settings.items()]
    variables = {KEY_VARIABLE: peer.key or NO_KEY, **_trusted("CODEX_CA_CERTIFICATE", peer)}
    return Start(tuple(word for pair in pairs for word in ("-c", pair)), variables)


def _opencode(peer: Peer, model: Model) -> Start:
    """OpenCode reads this variable like another settings file."""
    limits = {"context": model.max_input_tokens, "output": output_tokens(model)}
    provider = {
        "npm": "@ai-sdk/openai-compatible",  # part of the program
        "name": "Sublimate",
        "options": {
            "baseURL": f"{peer.url}/v1",
            "apiKey": peer.key or NO_KEY,
            "timeout": TIMEOUT_MILLISECONDS,
            **({"headers": {PROFILE_HEADER: peer.profile}} if peer.profile else {}),
        },
        "models": {model.id: {"name": model.id, "limit": limits, "tool_call": True}},
    }
    chosen = f"{PROVIDER}/{model.id}"
    settings = {
        "provider": {PROVIDER: provider},
        "model": chosen,
        "small_model": chosen,
        "autoupdate": False,
        "share": "disabled",
    }
    variables = {
        "OPENCODE_CONFIG_CONTENT": msgspec.json.encode(settings).decode(),
        **_trusted("NODE_EXTRA_CA_CERTS", peer),
    }
    return Start(variables=variables)


class Agent(msgspec.Struct, frozen=True):
    """A program that `launch` starts."""

    title: str
    package: str
    """Its name in the npm registry."""
    start: Callable[[Peer, Model], Start]


AGENTS = {
    CLAUDE: Agent("Claude Code", "@anthropic-ai/claude-code", _claude),
    CODEX: Agent("Codex", "@openai/codex", _codex),
    OPENCODE: Agent("OpenCode", "opencode-ai", _opencode),
}


def check_context(url: str, model: Model, any_context: bool) -> None:
    """Raises ConfigError for a context that an agent's first prompt would fill."""
    served = model.max_input_tokens
    if served >= AGENT_CONTEXT_TOKENS:
        return
    text = (
        f"{url} serves a context of {served:,} tokens and an agent needs {AGENT_CONTEXT_TOKENS:,}: "
        f"{CONTEXT_ADVICE}; --any-context starts it all the same."
    )
    if not any_context:
        raise ConfigError(text)
    note(text)


def shown(variables: dict[str, str], shell: Shell) -> str:
    """The same as lines of a shell, or as JSON."""
    if shell == "json":
        return msgspec.json.encode(variables).decode()
    if shell == "fish":
        lines = [f"set -gx {name} {_quoted(value)}" for name, value in variables.items()]
    elif shell == "powershell":
        doubled = {name: value.replace("'", "''") for name, value in variables.items()}
        lines = [f"$env:{name} = '{value}'" for name, value in doubled.items()]
    else:
        lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return "\n".join(lines)


def _quoted(value: str) -> str:
    """In single quotes, where fish reads backslashes before a quote or another."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


@contextlib.contextmanager
def _running(effective: Effective, peer: Peer, config: Path | None, url: str) -> Generator[Peer]:
    """The server at the URL or at the configured address, or one for this command."""
    if peer.ready():
        yield peer
        return
    if url:
        raise not_ready(peer.url)
    errors.print(f"Nothing serves at {peer.url}; starting a server for this agent ...")
    key = secrets.token_hex(KEY_BYTES)
    with own_server(effective, config, key) as own:
        yield Peer(own, key)


def launch_agent(
    name: str,
    effective: Effective,
    arguments: Sequence[str],
    peer: Peer,
    config: Path | None,
    *,
    url: str,
    any_context: bool,
) -> int:
    """Its exit status. `name`: in AGENTS. `peer`: at that URL, or at the configured address. Raises
    ConfigError, PeerError, EngineError."""
    agent = AGENTS[name]
    program = shutil.which(name)
    if program is None:
        reason = f"{agent.title} is not installed (no {name} in PATH)"
        raise ConfigError(f"{reason}: npm install -g {agent.package}")
    with _running(effective, peer, config, url) as server:
        model = server.model()
        check_context(server.url, model, any_context)
        start = agent.start(server, model)
        variables = {**os.environ, **start.variables}
        for variable in start.without:
            variables.pop(variable, None)
        return run_child([program, *start.flags, *arguments], variables)


def run_child(command: Sequence[str], variables: dict[str, str]) -> int:
    """Its exit status. Ctrl-C is for the child, which shares our terminal; we wait for what it
    makes of it."""
    old = signal.signal(signal.SIGINT, _for_the_child)
    try:
        status = subprocess.run(command, env=variables, check=False).returncode  # noqa: S603
    finally:
        signal.signal(signal.SIGINT, old)
    return status if status >= 0 else SIGNAL_EXIT - status


def _for_the_child(number: int, frame: FrameType | None) -> None:
    """A handler and not SIG_IGN, which the agent would inherit."""


def launch_env(peer: Peer, shell: Shell, *, any_context: bool) -> ExitCode:
    """Prints the variables, the key among them. Raises ConfigError, PeerError."""
    model = peer.model()
    check_context(peer.url, model, any_context)
    print_plain(shown(environment(peer, model), shell))
    return ExitCode.OK
