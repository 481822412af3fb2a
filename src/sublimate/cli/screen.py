"""What `serve` shows: a progress bar while fetching and loading, then the start-up screen. The
same as JSON lines: json_lines.py.

defines: ScreenReporter, start_screen
"""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ..config import Settings, format_size, keys_path
from ..errors import ConfigError
from ..guard.orphans import Orphan
from ..keys import read_keys

WHOLE = 1.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")
TIME_FORMAT = "%H:%M:%S"


class ScreenReporter:
    """For a person at a terminal; without one it prints plain lines and no bars."""

    def __init__(self, settings: Settings, model_name: str, started_seconds: float) -> None:
        self._settings = settings
        self.model_name = model_name
        self._started_seconds = started_seconds
        self._console = Console(highlight=False)
        self._bars: Progress | None = None
        self._task: Any = None
        self._was_ready = False

    def orphan(self, orphan: Orphan) -> None:
        """A run that was killed has left this."""
        what = "cleaned up" if orphan.is_cleaned else "is still there"
        advice = f" {orphan.advice}" if orphan.advice else ""
        self._console.print(f"Left by an earlier run, {what}: {orphan.what}.{advice}")

    def fetching(self, what: str, done: int, total: int) -> None:
        self._bar(what, done / total if total else None)

    def loading(self, fraction: float) -> None:
        if not self._was_ready:
            self._bar(f"loading {self.model_name}", fraction)

    def _bar(self, what: str, fraction: float | None) -> None:
        if not self._console.is_terminal:
            return
        if self._bars is None:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bars = Progress(*columns, console=self._console, transient=True)
            self._bars.start()
            self._task = self._bars.add_task(what, total=None)
        total = None if fraction is None else WHOLE
        self._bars.update(self._task, description=what, total=total, completed=fraction or 0)

    def _end_bar(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def ready(self, url: str, engine: dict[str, Any], edge: dict[str, Any]) -> None:
        self._end_bar()
        if self._was_ready:
            self._log(f"Ready again on {url}")
            return
        self._was_ready = True
        seconds = time.monotonic() - self._started_seconds
        screen = start_screen(self._settings, self.model_name, url, engine, edge, seconds)
        if self._console.is_terminal:
            self._console.print(Panel(screen, title="Sublimate", title_align="left", expand=False))
        else:
            self._console.print(screen)
        self._console.print(curl_line(url, self._settings), soft_wrap=True)

    def lost(self, who: str, why: str, restart_seconds: float) -> None:
        self._log(f"The {who} ended ({why}); it starts again in {restart_seconds:.1f} s.")

    def unavailable(self, url: str, reason: str, message: str) -> None:
        self._end_bar()
        self._log(f"Every request to {url} gets 503 {reason}: {message}")

    def reloaded(self, failure: str) -> None:
        self._log(f"Not reloaded. {failure}" if failure else "Reloaded.")

    def noted(self, text: str) -> None:
        """Something that was passed over."""
        self._log(text)

    def model(self, name: str, what: str) -> None:
        if self._was_ready:
            self._console.print(f"{name}: {what}", soft_wrap=True)

    def draining(self, seconds: float) -> None:
        self._end_bar()
        self._log(f"Draining: streams have {seconds:.0f} s to finish. Ctrl-C again ends at once.")

    def stopped(self) -> None:
        self._end_bar()
        self._log("Stopped.")

    def _log(self, text: str) -> None:
        """With the time, as the edge's own lines have it."""
        self._console.print(f"{time.strftime(TIME_FORMAT)} {text}", soft_wrap=True, markup=False)


def start_screen(
    settings: Settings,
    model_name: str,
    url: str,
    engine: dict[str, Any],
    edge: dict[str, Any],
    seconds: float,
) -> Table:
    """Model, template, compute path, context, memory, profile and address."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column()
    for name, value in _lines(settings, model_name, engine, edge):
        table.add_row(name, Text(value))
    table.add_row("ready", Text(f"after {seconds:.1f} s"))
    table.add_row("URL", Text(url, style="bold"))
    return table


def _lines(
    settings: Settings, model_name: str, engine: dict[str, Any], edge: dict[str, Any]
) -> list[tuple[str, str]]:
    parameters = int(engine.get("parameters", 0))
    size = f", {parameters / 1e6:.0f} M parameters" if parameters else ""
    weights = f", {format_size(engine['weight_bytes'])}" if engine.get("weight_bytes") else ""
    arithmetic = "exact (fp32)" if engine.get("exact") else "quantised"
    context = f"{engine['context_length']:,} tokens"
    trained = engine.get("trained_context_length", engine["context_length"])
    if trained != engine["context_length"]:
        context += f" (trained for {trained:,})"
    profile = settings.edge.execution_profile
    profile = f"{profile} (pinned)" if profile else settings.edge.profile
    if settings.edge.profile_contract == "strict":
        profile += ", requests must name one"
    lines = [
        ("model", f"{model_name} ({engine['architecture']}{size}{weights})"),
        ("template", str(edge.get("template", "not told"))),
        ("compute path", f"{_variant(engine)}, {arithmetic}"),
        ("context", context),
        ("KV memory", _memory(engine)),
        ("profile", profile),
    ]
    lines += [("LoRA adapter", _adapter(each)) for each in engine.get("adapters", ())]
    if "https" in edge:
        also = ", HTTP/3 on the UDP port of that number" if settings.server.http3 else ""
        lines.append(("HTTPS", edge["https"] + also))
        lines.append(("certificate", settings.edge.tls_certificate))
        lines.append(("its SHA-256", edge["certificate_sha256"]))
    if "grpc" in edge:
        lines.append(("gRPC", edge["grpc"]))
    if settings.server.workers > 1:
        count = settings.server.workers
        lines.append(("workers", f"{count} engines, {count} edges"))
    if settings.edge.fallback:
        lines.append(("fallback", settings.edge.fallback))
    if count := _keys(settings):
        lines.append(("API keys", str(count)))
    elif settings.server.host not in LOOPBACK:
        lines.append(("API keys", "none: who reaches this address may ask; `sublimate keys add`"))
    return lines


def _adapter(info: dict[str, Any]) -> str:
    return f"{info['name']} (rank {info['rank']}, {format_size(info['bytes'])})"


def _keys(settings: Settings) -> int:
    """How many there are, named ones too."""
    try:
        named = len(read_keys(keys_path(settings)))
    except (ConfigError, FileNotFoundError):
        named = 0  # the edge has told what is wrong with the file
    return len(settings.edge.api_keys) + named


def _variant(engine: dict[str, Any]) -> str:
    """Kernels and threads of large steps, and those of small ones where they were measured to
    be others."""
    many: dict[str, Any] = engine.get("many_rows", engine)
    few: dict[str, Any] = engine.get("few_rows", many)
    told = [f"{each['isa']}, {each['threads']} threads" for each in (many, few)]
    return told[0] if told[0] == told[1] else f"{told[0]} (small steps {told[1]})"


def _memory(engine: dict[str, Any]) -> str:
    from .. import _core

    tokens = int(engine.get("kv_pages", 0)) * _core.LIMITS["PAGE_TOKENS"]
    size = format_size(int(engine.get("kv_bytes", 0)))
    kind = engine.get("kv_type", "")
    return f"{size} for {tokens:,} tokens" + (f" ({kind})" if kind else "")


def curl_line(url: str, settings: Settings) -> Text:
    """A command to copy."""
    key = "YOUR_KEY" if _keys(settings) else "none"
    profile = ""
    if settings.edge.profile_contract == "strict" and not settings.edge.execution_profile:
        profile = f'"execution_profile":"{settings.edge.profile}",'
    return Text(
        f"\ncurl -N {url}/v1/messages -H 'content-type: application/json' -H 'x-api-key: {key}' "
        f'-H \'anthropic-version: 2023-06-01\' -d \'{{"model":"default","max_tokens":128,'
        f'"stream":true,{profile}"messages":[{{"role":"user","content":"Why is the sky blue?"}}]'
        f"}}'\n"
    )
