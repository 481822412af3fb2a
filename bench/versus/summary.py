"""From the records of rounds to medians, spreads and ratios, as a table in Markdown.

defines: Record, OURS, Kind, FIGURES, Line, summarise, written, to_markdown
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What one subject showed in one turn."""

    round: int
    section: str
    subject: str
    figures: dict[str, float] = {}
    error: str = ""
    idle_share: float = 0.0
    """Of a core, that the subject's server took after its turn."""


OURS = "sublimate"


class Kind(msgspec.Struct, frozen=True):
    title: str
    unit: str
    scale: float = 1.0
    higher_is_better: bool = True


FIGURES = {
    "prefill_512": Kind("prefill, 512 tokens", "tok/s"),
    "prefill_2048": Kind("prefill, 2,048 tokens", "tok/s"),
    "decode_1": Kind("decode, 1 stream after 128 tokens", "tok/s"),
    "decode_1_read_share": Kind("the same, share of the read limit", "%", 100),
    "decode_32": Kind("decode, 32 streams after 128 tokens each", "tok/s"),
    "generate_32": Kind("32 streams of 128 + 64, prefill included", "tok/s"),
    "read_limit": Kind("reading memory (limit)", "GB/s", 1e-9),
    "served_32_tok_s": Kind("served, 32 streams", "tok/s"),
    "served_32_first_ms": Kind("the same, first token p50", "ms", higher_is_better=False),
    "served_32_token_ms": Kind("the same, per token p50", "ms", higher_is_better=False),
    "served_32_prompt_tokens": Kind("the same, prompt and template", "tokens"),
    "served_1_first_ms": Kind("served, 1 stream, first token p50", "ms", higher_is_better=False),
    "served_1_token_ms": Kind("the same, per token p50", "ms", higher_is_better=False),
    "alone_tok_s": Kind("8 streams, quiet", "tok/s"),
    "busy_tok_s": Kind("8 streams beside busy loops on every core", "tok/s"),
    "kept": Kind("share of the quiet rate that is kept", "%", 100),
}


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one subject over the rounds."""

    section: str
    figure: str
    subject: str
    rounds: int
    median: float
    least: float
    greatest: float
    ratios: list[float] = []
    """Ours against this subject, round by round; above 1: ours is better."""


def summarise(records: Sequence[Record]) -> list[Line]:
    """One line per section, figure and subject, in the order of FIGURES and of appearance."""
    values: dict[tuple[str, str, str], dict[int, float]] = {}
    for record in records:
        for figure, value in record.figures.items():
            if figure in FIGURES:
                key = (record.section, figure, record.subject)
                values.setdefault(key, {})[record.round] = value
    sections = list(dict.fromkeys(record.section for record in records))
    order = list(FIGURES)
    keys = sorted(values, key=lambda key: (sections.index(key[0]), order.index(key[1])))
    lines = list[Line]()
    for section, figure, subject in keys:
        rounds = values[section, figure, subject]
        ours = values.get((section, figure, OURS), {}) if subject != OURS else {}
        ratios = [
            ours[r] / rounds[r] if FIGURES[figure].higher_is_better else rounds[r] / ours[r]
            for r in sorted(rounds)
            if r in ours and min(ours[r], rounds[r]) > 0
        ]
        found = rounds.values()
        lines.append(
            Line(
                section=section,
                figure=figure,
                subject=subject,
                rounds=len(rounds),
                median=median(found),
                least=min(found),
                greatest=max(found),
                ratios=ratios,
            )
        )
    return lines


def written(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def to_markdown(lines: Sequence[Line]) -> str:
    """The table that people read: medians, ranges, ratios with their ranges."""
    rows = ["| section | figure | subject | median (range) | rounds | ours against it |"]
    rows.append("|---|---|---|---|---|---|")
    for line in lines:
        kind = FIGURES[line.figure]
        middle, least, greatest = (
            written(value * kind.scale) for value in (line.median, line.least, line.greatest)
        )
        ratio = ""
        if line.ratios:
            ratio = f"{median(line.ratios):.2f} ({min(line.ratios):.2f} to {max(line.ratios):.2f})"
        shown = f"{middle} {kind.unit} ({least} to {greatest})"
        cells = (line.section, kind.title, line.subject, shown, str(line.rounds), ratio)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"
