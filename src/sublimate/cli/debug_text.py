"""How `sublimate debug` looks: a story line by line with its stages, and what is followed live.

defines: Filter, matches, show_story, live_line, is_shown
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

NS_PER_MS = 1_000_000
NS_PER_SECOND = 1_000_000_000
BAR_COLUMNS = 30
BAR = "\u2588"
SIDES = {"client": "cyan", "edge": "blue", "loop": "green"}
SHORT_ID_CHARACTERS = 8
BAD_REQUEST = 400
COMPLETE = ("end_turn", "max_tokens", "stop_sequence", "tool_use")
QUIET = frozenset(("step", "published"))


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """What of it is shown live."""

    path: str = ""
    """Paths that begin so."""
    errors: bool = False
    """Only requests that have no whole answer, once they have ended."""
    slow_ms: float = 0.0
    """Only requests that took as long, once they have ended."""
    steps: bool = False
    """Also each step of the loop, and each one that only decodes."""

    @property
    def waits_for_ends(self) -> bool:
        return self.errors or self.slow_ms > 0


def matches(story: dict[str, Any], chosen: Filter) -> bool:
    """Whether a story, perhaps not ended, is among what was asked for."""
    if not story["request"]["path"].startswith(chosen.path):
        return False
    if story["state"] != "ended":
        return not chosen.waits_for_ends
    answer = story["answer"]
    is_whole = not answer["end"] or answer["end"] in COMPLETE
    if chosen.errors and is_whole and 0 < answer["status"] < BAD_REQUEST:
        return False
    return story["end_to_end_ms"] >= chosen.slow_ms


# ---- one story -----------------------------------------------------------------------------------
def show_story(
    console: Console, story: dict[str, Any], client: list[tuple[int, str]] | None = None
) -> None:
    """client: what the caller did, in nanoseconds of the server's clock; None: it was another."""
    request, answer = story["request"], story["answer"]
    about = [request["model"], request["profile"], "streamed" if request["stream"] else ""]
    title = Text(story["id"], style="bold")
    title.append(f"  {request['method']} {request['path']}", style="default")
    title.append("  " + ", ".join(word for word in about if word), style="dim")
    console.print(title, soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    lines = [(line["ns"], line["side"], line["text"]) for line in story["lines"]]
    lines += [(ns, "client", text) for ns, text in client or ()]
    begin_ns = min(story["began_ns"], *(ns for ns, _, _ in lines))
    for ns, side, text in sorted(lines, key=lambda line: line[0]):
        table.add_row(f"{(ns - begin_ns) / NS_PER_MS:.2f} ms", Text(side, SIDES[side]), Text(text))
    console.print(table)
    console.print(_stages(story))
    if answer["prompt_tokens"] and story["admission"] is not None:
        ranges = story["admission"]["cached_ranges"]
        told = ", ".join(f"[{first:,}, {end:,})" for first, end in ranges) or "none"
        console.print(Text(f"cached token ranges: {told} of {answer['prompt_tokens']:,}"))
    if not story["events"] and story["admission"] is not None:
        note = "Nobody followed while it ran, so its steps were not traced: sublimate serve --trace"
        console.print(Text(note, style="dim"))
    if missed := story["missed_records"] + story["left_out_records"]:
        console.print(Text(f"{missed:,} records of the loop are not kept.", style="yellow"))
    if choices := story.get("choices"):
        console.print(Text(f"Its other answers: sublimate debug {' or '.join(choices)}"))


def _stages(story: dict[str, Any]) -> Table:
    """Each stage with its share of the whole."""
    whole = story["end_to_end_ms"] or 1.0
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_column(justify="right", style="dim")
    table.add_column()
    table.add_row("stage", Text("ms", style="dim"), "share", "")
    for stage in story["stages"]:
        share = stage["ms"] / whole
        bar = BAR * round(share * BAR_COLUMNS)
        table.add_row(stage["name"], f"{stage['ms']:.3f}", f"{share:.1%}", Text(bar, "blue"))
    total = sum(stage["ms"] for stage in story["stages"])
    table.add_row("sum", f"{total:.3f}", f"{total / whole:.1%}", f"of {whole:.3f} ms end to end")
    return table


# ---- what is followed ----------------------------------------------------------------------------
def live_line(ns: int, offset_ns: int, request_id: str, side: str, text: str) -> Text:
    """One line: time of day, the end of the request's id, who, what. offset_ns: from the server's
    monotonic clock to the time of day."""
    at = (ns + offset_ns) / NS_PER_SECOND
    clock = time.strftime("%H:%M:%S", time.localtime(at))
    line = Text(f"{clock}.{int(at % 1 * 1000):03d}  ", style="dim")
    line.append(f"{request_id[-SHORT_ID_CHARACTERS:]:{SHORT_ID_CHARACTERS}}  ", style="bold")
    line.append(f"{side:5} ", style=SIDES[side])
    return line.append(text, style="default")


def is_shown(event: dict[str, Any], chosen: Filter) -> bool:
    """Of the loop's records, live: without `steps` those of single requests that say something."""
    if chosen.steps:
        return event["what"] != "published"
    is_plain = event["what"] == "part" and not event["prompt_rows"] and event["sampled"]
    return event["what"] not in QUIET and not is_plain
