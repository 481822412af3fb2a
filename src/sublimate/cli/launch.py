"""`sublimate launch`: an agent with the environment that fits the server it will talk to.

Every figure comes from what the server serves now, never from what its model was trained for. The
agent's own prompt is known to the agent alone, so nothing is computed ahead: its first turn fills
the cache and the second reads it.

defines: environment, check_context, shown, run_child, launch_claude, launch_env
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import shutil
import signal
import subprocess
from collections.abc import Generator, Sequence
from pathlib import Path
from types import FrameType
from typing import Literal

import msgspec

from ..config import Effective
from ..errors import ConfigError, ExitCode, PeerError
from .chat import KEY_BYTES, own_server
from .output import errors, note, print_plain
from .peer import AGENT_CONTEXT_TOKENS, CONTEXT_ADVICE, Model, Peer

Shell = Literal["sh", "fish", "powershell", "json"]

CLAUDE = "claude"
INSTALL = "npm install -g @anthropic-ai/claude-code"
NO_KEY = "none"
"""Agents want some key, also for a server that wants none."""
OUTPUT_SHARE = 8
"""An answer may be so small a part of the context: what it reserves is missing for the prompt."""
TIMEOUT_MILLISECONDS = 3_600_000
"""A long prompt on few cores may take minutes before its first token."""
SIGNAL_EXIT = 128


def environment(peer: Peer, model: Model) -> dict[str, str]:
    """Variables of Claude Code for this server, what it trusts among them."""
    context = str(model.max_input_tokens)
    names = ("OPUS", "SONNET", "HAIKU")
    output = max(1, min(model.max_tokens, model.max_input_tokens // OUTPUT_SHARE))
    trusted = peer.trusted
    return {
        "ANTHROPIC_BASE_URL": peer.url,
        "ANTHROPIC_AUTH_TOKEN": peer.key or NO_KEY,
        **({"NODE_EXTRA_CA_CERTS": str(trusted.absolute())} if trusted is not None else {}),
        "ANTHROPIC_MODEL": model.id,
        **{f"ANTHROPIC_DEFAULT_{name}_MODEL": model.id for name in names},
        "CLAUDE_CODE_SUBAGENT_MODEL": model.id,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": context,
        "CLAUDE_CODE_AUTO_COMPACT_WINDOW": context,
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(output),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "API_TIMEOUT_MS": str(TIMEOUT_MILLISECONDS),
        "CLAUDE_STREAM_IDLE_TIMEOUT_MS": str(TIMEOUT_MILLISECONDS),
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
        raise PeerError(f"Nothing that is ready answers at {peer.url}.")
    errors.print(f"Nothing serves at {peer.url}; starting a server for this agent ...")
    key = secrets.token_hex(KEY_BYTES)
    with own_server(effective, config, key) as own:
        yield Peer(own, key)


def launch_claude(
    effective: Effective,
    arguments: Sequence[str],
    peer: Peer,
    config: Path | None,
    *,
    url: str,
    any_context: bool,
) -> int:
    """Its exit status. `peer`: at that URL, or at the configured address. Raises ConfigError,
    PeerError, EngineError."""
    program = shutil.which(CLAUDE)
    if program is None:
        raise ConfigError(f"Claude Code is not installed (no {CLAUDE} in PATH): {INSTALL}")
    with _running(effective, peer, config, url) as server:
        model = server.model()
        check_context(server.url, model, any_context)
        variables = {**os.environ, **environment(server, model)}
        # The other name of the key would win over the one that fits this server.
        variables.pop("ANTHROPIC_API_KEY", None)
        return run_child([program, *arguments], variables)


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
