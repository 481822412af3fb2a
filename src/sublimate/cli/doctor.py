"""`sublimate doctor`: this machine, and a server with an agent's eyes.

A server is asked two turns of a conversation as agents have them. Nearly all of the first must come
back from the cache in the second; if not, it is said where the prompts parted.

defines: TwoTurns, two_turns, diagnose, doctor
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec

from ..config import Effective, Settings, cache_folder, data_folder, format_size
from ..errors import ExitCode, PeerError
from ..guard.orphans import look, places_of
from ..probe.report import Finding, examine
from ..probe.source import source_of
from .output import out
from .peer import AGENT_CONTEXT_TOKENS, CONTEXT_ADVICE, Peer, configured_peer
from .probe import findings_table
from .screen import LOOPBACK

SHARE_WANTED = 0.95
ANSWER_TOKENS = 16
ANSWER_SECONDS = 300.0
SYSTEM_SENTENCES = 40
DISK_BYTES_WANTED = 1 << 30


class TwoTurns(msgspec.Struct, frozen=True, kw_only=True):
    """What the second turn read of the first."""

    first_tokens: int
    """Of the first prompt."""
    second_tokens: int
    cached_tokens: int
    """Of the second prompt."""
    miss_reason: str = ""
    """Where the prompts parted, as the server tells; empty if they did not."""

    @property
    def share(self) -> float:
        """Of the first prompt, what the second found in the cache, at most 1."""
        return min(1.0, self.cached_tokens / self.first_tokens)


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """`doctor --json`."""

    healthy: bool
    """No finding is a problem."""
    findings: list[Finding]
    two_turns: TwoTurns | None = None


class _Usage(msgspec.Struct):
    input_tokens: int
    cache_read_input_tokens: int


class _Miss(msgspec.Struct):
    type: str


class _Diagnostics(msgspec.Struct):
    cache_miss_reason: _Miss | None = None


class _Answer(msgspec.Struct):
    id: str
    content: list[dict[str, Any]]
    usage: _Usage
    diagnostics: _Diagnostics | None = None


TEMPLATE_ADVICE = "Use a model file with a chat template that Jinja2 takes as transformers does."


def two_turns(peer: Peer) -> TwoTurns:
    """Ask them. Raises PeerError."""
    system = " ".join(
        f"Rule {number}: read a file before you change it." for number in range(SYSTEM_SENTENCES)
    )
    tool = {
        "name": "Read",
        "description": "Reads a file of this machine.",
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is in the file notes.txt?"}]
    body: dict[str, Any] = {"model": "default", "max_tokens": ANSWER_TOKENS, "system": system}
    body |= {"tools": [tool], "tool_choice": {"type": "none"}, "messages": messages}
    first = _ask(peer, {**body, "diagnostics": {"previous_message_id": None}})
    said = first.content or [{"type": "text", "text": "Nothing."}]
    messages += [
        {"role": "assistant", "content": said},
        {"role": "user", "content": "And in the file next to it?"},
    ]
    second = _ask(peer, {**body, "diagnostics": {"previous_message_id": first.id}})
    found = second.diagnostics
    miss = found.cache_miss_reason if found else None
    return TwoTurns(
        first_tokens=_total(first.usage),
        second_tokens=_total(second.usage),
        cached_tokens=second.usage.cache_read_input_tokens,
        miss_reason=miss.type if miss else "",
    )


def _ask(peer: Peer, body: dict[str, Any]) -> _Answer:
    try:
        return msgspec.convert(peer.json("/v1/messages", body, ANSWER_SECONDS), _Answer)
    except msgspec.ValidationError:
        raise PeerError(f"{peer.url} does not answer messages as Sublimate does.") from None


def _total(usage: _Usage) -> int:
    return usage.input_tokens + usage.cache_read_input_tokens


def _turns_finding(turns: TwoTurns) -> Finding:
    text = (
        f"Turn 2 read {turns.cached_tokens:,} of its {turns.second_tokens:,} tokens from the "
        f"cache: {turns.share:.0%} of turn 1."
    )
    if turns.share >= SHARE_WANTED and not turns.miss_reason:
        return Finding(topic="two turns", verdict="good", text=text)
    reason = turns.miss_reason or "unknown"
    advice = "Give the cache more memory (--kv-memory), or let it hold more (--kv int8)."
    if reason != "unavailable":
        advice = "Look at what changes between turns: a proxy, or the model's chat template."
    text = f"{text} It parted there: {reason}."
    return Finding(topic="two turns", verdict="problem", text=text, advice=advice)


def _context(tokens: int) -> Finding:
    if tokens >= AGENT_CONTEXT_TOKENS:
        return Finding(topic="context", verdict="good", text=f"{tokens:,} tokens are served.")
    return Finding(
        topic="context",
        verdict="notice",
        text=f"{tokens:,} tokens are served; agents need {AGENT_CONTEXT_TOKENS:,}.",
        advice=f"For agents, {CONTEXT_ADVICE}.",
    )


def _keys(peer: Peer, settings: Settings) -> Finding:
    is_open = Peer(peer.url, certificate=peer.trusted).ask("/v1/models")[0] < 400
    if not is_open:
        return Finding(topic="keys", verdict="good", text="The server asks for a key.")
    if settings.server.host in LOOPBACK:
        text = "The server asks for no key; it listens on this machine alone."
        return Finding(topic="keys", verdict="good", text=text)
    return Finding(
        topic="keys",
        verdict="notice",
        text=f"The server asks for no key and listens on {settings.server.host}.",
        advice="sublimate keys add NAME makes one.",
    )


def _clock() -> Finding:
    """A clock behind our own files' is wrong for certain."""
    if time.time() < Path(__file__).stat().st_mtime:
        text = "The clock is behind the date of this program's files."
        advice = "Set the clock: certificates and log times depend on it."
        return Finding(topic="clock", verdict="notice", text=text, advice=advice)
    return Finding(
        topic="clock",
        verdict="good",
        text="The clock is not behind the dates of this program's files.",
    )


def _folder(topic: str, folder: Path) -> Finding:
    """It can be written, or made, and has room."""
    there = folder
    while not there.exists():
        there = there.parent
    if not os.access(there, os.W_OK | os.X_OK):
        advice = "Choose another with --data-dir or --cache-dir, or let this user write there."
        text = f"{there} cannot be written by this user."
        return Finding(topic=topic, verdict="problem", text=text, advice=advice)
    free = shutil.disk_usage(there).free
    low = free < DISK_BYTES_WANTED
    return Finding(
        topic=topic,
        verdict="notice" if low else "good",
        text=f"{folder}: {format_size(free)} free.",
        advice="Free some space: models and batches are kept there." if low else "",
    )


def _leftovers(settings: Settings) -> Finding:
    """Of runs that were killed. Looks, and leaves all as it is."""
    found = look(places_of(settings), source_of(os.environ).nvml, clean=False)
    if not found:
        text = "No run that was killed has left anything."
        return Finding(topic="leftovers", verdict="good", text=text)
    stuck = [orphan.advice for orphan in found if orphan.advice]
    return Finding(
        topic="leftovers",
        verdict="notice",
        text=f"Left by runs that were killed: {'; '.join(orphan.what for orphan in found)}.",
        advice="; ".join(stuck) or "The next `sublimate serve` with these settings cleans up.",
    )


def _why_not(peer: Peer) -> str:
    """What keeps it from being asked: it may be there, and not ready or not trusted."""
    try:
        return f"{peer.url} answers /readyz with status {peer.ask('/readyz')[0]}: it is not ready."
    except PeerError as error:
        return str(error)


def diagnose(settings: Settings, peer: Peer, *, must_answer: bool) -> Diagnosis:
    """must_answer: a server that does not is a problem, not only something to know."""
    answers = peer.ready()
    # Of a server that would be started here; one that was named may be elsewhere.
    beside = ("port", "model", "memory") if must_answer else ("port",) if answers else ()
    findings = [each for each in examine(settings).findings if each.topic not in beside]
    findings += [_leftovers(settings), _clock(), _folder("data folder", data_folder(settings.edge))]
    findings.append(_folder("model folder", cache_folder(settings)))
    turns = None
    if answers:
        try:
            model = peer.model()
            text = f"{peer.url} serves {model.id}."
            findings.append(Finding(topic="server", verdict="good", text=text))
            findings += [
                Finding(topic="template", verdict="notice", text=warning, advice=TEMPLATE_ADVICE)
                for warning in peer.warnings()
            ]
            findings += [_context(model.max_input_tokens), _keys(peer, settings)]
            turns = two_turns(peer)
            findings.append(_turns_finding(turns))
        except PeerError as error:
            findings.append(Finding(topic="server", verdict="problem", text=str(error)))
    else:
        findings.append(
            Finding(
                topic="server",
                verdict="problem" if must_answer else "notice",
                text=_why_not(peer),
                advice="Start one with sublimate serve, or name one with --url.",
            )
        )
    healthy = all(finding.verdict != "problem" for finding in findings)
    return Diagnosis(healthy=healthy, findings=findings, two_turns=turns)


def doctor(effective: Effective, url: str, certificate: Path | None, as_json: bool) -> int:
    """Exit status 1 if there is a problem."""
    peer = configured_peer(effective, url, certificate)
    diagnosis = diagnose(effective.settings, peer, must_answer=bool(url))
    if as_json:
        out.print_json(msgspec.json.encode(diagnosis).decode())
    else:
        out.print(findings_table(diagnosis.findings))
    return int(ExitCode.OK) if diagnosis.healthy else 1
