"""A request's story in words, and as plain data, as `sublimate debug` and the endpoints tell it.

The edge's part comes from the stages, the loop's from its trace where there is one, both on the
same clock. Steps that only decode, in one bucket and on the same kernels, become one line.

defines: Line, told_record, events_of, view
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ..._core import LIMITS, POLICY
from ...policy.decision import Decision
from .stories import FALLBACK, UNPREPARED, UNTIL_ENDED, Story
from .timing import NS_PER_MS
from .trace import RECORD_BYTES

PAGE_TOKENS = LIMITS["PAGE_TOKENS"]
SHARD_TOKENS = POLICY["max_tokens_per_shard"]
MS_DIGITS = 4


class Line(msgspec.Struct, frozen=True):
    """Something that was decided or done. side: edge or loop."""

    ns: int
    side: str
    text: str


# ---- the loop's records --------------------------------------------------------------------------
def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _tokens(first: int, count: int) -> str:
    return f"tokens {first:,}\u2013{first + count - 1:,}" if count else "no token"


def _taken(event: dict[str, Any]) -> str:
    return (
        f"taken: {_count(event['prompt_tokens'], 'token')} and up to {event['token_budget']:,} to "
        f"come, {event['profile']}; {event['waiting']:,} wait before it, {event['running']:,} run"
    )


def _waiting(event: dict[str, Any]) -> str:
    if event["reason"] == "rows":
        return f"waits: all {event['running']:,} places of the batch are taken"
    if event["reason"] == "turn":
        return f"waits for its turn, one of {event['waiting']:,}"
    return (
        f"waits for pages: it needs {event['pages_needed']:,}; {event['pages_available']:,} are "
        f"free or cached, {event['pages_promised']:,} of these promised"
    )


def _lookup(found: int, blocks: int) -> str:
    text = f"prefix lookup found {found:,}/{_count(blocks, 'block')}"
    return f"{text} ({_tokens(0, found * PAGE_TOKENS)})" if found else text


def _admitted(event: dict[str, Any]) -> str:
    text = f"admitted: {_lookup(event['blocks_found'], event['blocks_looked_up'])}"
    if event["blocks_running"]:
        text += f", {event['blocks_running']:,} of running requests"
    return (
        f"{text}; {_count(event['pages_reserved'], 'page')} reserved of "
        f"{event['pages_available']:,} available; {event['running']:,} run, "
        f"{event['waiting']:,} wait"
    )


def _adopted(event: dict[str, Any]) -> str:
    found = _tokens(event["position"], event["blocks"] * PAGE_TOKENS)
    return f"takes over {_count(event['blocks'], 'block')} computed meanwhile by another ({found})"


def _finished(event: dict[str, Any]) -> str:
    reason = event["reason"].replace("_", " ")
    detail = f" ({event['detail'].replace('_', ' ')})" if event["detail"] else ""
    return f"ends: {reason}{detail} after {_count(event['output_tokens'], 'token')}; pages returned"


def _step(event: dict[str, Any]) -> str:
    parts = [f"{_count(event['rows'], 'row')} of {_count(event['requests'], 'request')}"]
    if event["prompt_rows"]:
        parts.append(f"{event['prompt_rows']:,} of prompts")
    if event["draft_rows"]:
        parts.append(_count(event["draft_rows"], "draft"))
    return (
        f"step {event['step']:,}: {', '.join(parts)}; {_bucket(event)}, "
        f"{_ms(event['took_ns'])}; {event['pages_owned']:,} pages in use"
    )


def _refused(event: dict[str, Any]) -> str:
    return f"refused: {event['reason'].replace('_', ' ')}"


def _cancelled(event: dict[str, Any]) -> str:
    where, tokens = event["state"].replace("_", " "), _count(event["output_tokens"], "token")
    return f"the cancel is seen in state {where}, after {tokens}"


def _published(event: dict[str, Any]) -> str:
    return f"a record with {_count(event['rows'], 'row')} is published"


_TOLD = {
    "taken": _taken,
    "refused": _refused,
    "waiting": _waiting,
    "admitted": _admitted,
    "adopted": _adopted,
    "step": _step,
    "cancelled": _cancelled,
    "finished": _finished,
    "published": _published,
}


def _bucket(step: dict[str, Any]) -> str:
    kernels = f", {step['kernels']}" if step["kernels"] else ""
    return f"bucket {step['bucket_rows']:,} \u00d7 {step['bucket_tokens']:,}{kernels}"


def _ms(nanoseconds: float) -> str:
    return f"{nanoseconds / NS_PER_MS:.2f} ms"


def _part(part: dict[str, Any], step: dict[str, Any] | None) -> str:
    rows, prompt_rows = part["rows"], part["prompt_rows"]
    what = f"{prompt_rows:,} prompt rows ({_tokens(part['position'], prompt_rows)})"
    if not prompt_rows:
        what = f"{_count(part['tokens'], 'token')} at {part['position']:,}"
    arithmetic = part["arithmetic"]
    if step is not None and step["as_prompt"]:
        arithmetic = "prompt"
    text = f"step {part['step']:,}: {what}, {arithmetic} arithmetic"
    if part["drafted"]:
        text += f", {part['accepted']:,} of {_count(part['drafted'], 'draft')} right"
    if not part["sampled"]:
        text += ", its mask is not there yet: the last row runs again"
    if step is None:
        return text
    others = step["rows"] - rows
    beside = f" beside {_count(others, 'row')} of others" if others else ""
    return f"{text}{beside}; {_bucket(step)}, {_ms(step['took_ns'])}"


def told_record(event: dict[str, Any], step: dict[str, Any] | None = None) -> str:
    """A record of the loop as a sentence. step: of a part, its step, where it is known."""
    return _part(event, step) if event["what"] == "part" else _TOLD[event["what"]](event)


# ---- decode steps, joined ------------------------------------------------------------------------
class _Run:
    """Decode steps in a row that differ in nothing but their number and time."""

    def __init__(self, part: dict[str, Any], step: dict[str, Any]) -> None:
        self.kind = (step["bucket_rows"], step["bucket_tokens"], step["kernels"])
        self._first = part
        self._step = step
        self._last_step = 0
        self._took: list[int] = []
        self._rows: list[int] = []
        self._said = self._drafted = self._accepted = 0
        self.add(part, step)

    def add(self, part: dict[str, Any], step: dict[str, Any]) -> None:
        self._last_step = part["step"]
        self._took.append(step["took_ns"])
        self._rows.append(step["rows"])
        self._said += part["tokens"]
        self._drafted += part["drafted"]
        self._accepted += part["accepted"]

    def line(self) -> Line:
        if len(self._took) == 1:
            return Line(self._step["ns"], "loop", told_record(self._first, self._step))
        low, high = min(self._rows), max(self._rows)
        rows = f"{low:,} rows" if low == high else f"{low:,}\u2013{high:,} rows"
        first, count = self._first["step"], len(self._took)
        text = (
            f"steps {first:,}\u2013{self._last_step:,}: {_count(self._said, 'token')} in {count:,} "
            f"steps of {'1 row' if rows == '1 rows' else rows}"
        )
        if self._drafted:
            text += f", {self._accepted:,} of {_count(self._drafted, 'draft')} right"
        took = (
            f"{_ms(min(self._took))} to {_ms(max(self._took))} each, {_ms(sum(self._took))} in all"
        )
        return Line(self._step["ns"], "loop", f"{text}; {_bucket(self._step)}, {took}")


def _loop_lines(events: list[dict[str, Any]]) -> Iterator[Line]:
    step: dict[str, Any] | None = None
    run: _Run | None = None
    for event in events:
        if event["what"] == "step":
            step = event
            continue
        of_step = step if step is not None and step["step"] == event.get("step") else None
        plain = event["what"] == "part" and not event["prompt_rows"] and event["sampled"]
        if plain and of_step is not None:
            kind = (of_step["bucket_rows"], of_step["bucket_tokens"], of_step["kernels"])
            if run is not None and run.kind == kind:
                run.add(event, of_step)
                continue
            if run is not None:
                yield run.line()
            run = _Run(event, of_step)
            continue
        if run is not None:
            yield run.line()
            run = None
        ns = of_step["ns"] if of_step is not None else event["ns"]
        yield Line(ns, "loop", told_record(event, of_step))
    if run is not None:
        yield run.line()


# ---- the edge's side -----------------------------------------------------------------------------
LAST_STAGES = (UNTIL_ENDED, UNPREPARED, FALLBACK)
STAGE_TEXTS = {
    "read": "head parsed, body there, its turn come",
    "parse": "decoded, checked and normalised",
    "template": "rendered by the chat template",
    "tokenise": "{prompt_tokens:,} token ids",
    "publish": "record in slot {slot}, generation {generation}, handed to the loop",
    "admit": "the loop has admitted it",
    "first_token": "record with the first token published",
    "generate": "record with the last row published",
    "wake": "the edge has polled that record",
    "encode": "text path: detokenised, escaped, framed",
    "write": "handed to the connection",
    UNTIL_ENDED: "counted and logged",
    UNPREPARED: "answered",
    FALLBACK: "another server has answered it",
}


def _edge_lines(story: Story, now_ns: int) -> Iterator[Line]:
    carried = f" over {story.protocol}" if story.protocol else " of a batch"
    yield Line(story.began_ns, "edge", f"{story.method} {story.path}{carried}: head parsed")
    stages = story.stages(now_ns)
    for at, (name, begin, end) in enumerate(stages):
        is_last = at == len(stages) - 1
        if is_last and name not in LAST_STAGES:
            break  # it did not get beyond this one
        text = STAGE_TEXTS[name].format(
            prompt_tokens=story.prompt_tokens, slot=story.slot, generation=story.generation
        )
        if name == "publish" and story.constrained and story.timing is not None:
            held_ns = story.timing.handed_ns
            yield Line(held_ns, "edge", f"constraint compiled or found ({_ms(held_ns - begin)})")
        if name == "admit" and not story.records:
            text += f": {_admission_text(story)}"
        yield Line(end, "edge", f"{name}: {text} ({_ms(end - begin)})")
        if name == "tokenise" and story.decision is not None:
            yield Line(end, "edge", f"shard decision: {_decision_text(story, story.decision)}")
    if story.timing is not None and story.timing.first_sent_ns:
        yield Line(story.timing.first_sent_ns, "edge", "first bytes of the text written")
    if story.admission_seen_ns and not story.stream:
        yield Line(story.admission_seen_ns, "edge", "admission seen")
    if story.ended_ns:
        name, begin, end = stages[-1]
        where = "" if name in LAST_STAGES else f", {_ms(end - begin)} into {name}"
        status = f"status {story.status}" if story.status else "no answer"
        why = f", {story.end}" if story.end else ""
        whole = _ms(story.ended_ns - story.began_ns)
        tokens = f", {_count(story.output_tokens, 'token')}" if story.slot >= 0 else ""
        yield Line(end, "edge", f"end: {status}{why}{where}{tokens}; {whole} in all")


def _decision_text(story: Story, decision: Decision) -> str:
    count = len(decision.shard_ends)
    text = f"{_count(count, 'shard')} for {_count(decision.prompt_tokens, 'token')}"
    text += f" (up to {SHARD_TOKENS:,} in one), {decision.target}"
    if decision.reason:
        text += f" ({decision.reason})"
    if count > 1:
        ends = ", ".join(f"{end:,}" for end in decision.shard_ends)
        text += f"; split {decision.split}, shards end at {ends}; the loop reads them in order"
    return text


def _blocks(story: Story) -> int:
    """Of the prompt, those that could come from the cache: its last token is always computed."""
    return max(0, story.prompt_tokens - 1) // PAGE_TOKENS


def _admission_text(story: Story) -> str:
    found = _lookup(story.cached_tokens // PAGE_TOKENS, _blocks(story))
    if story.expected_tokens > story.cached_tokens:
        found += f", where {story.expected_tokens // PAGE_TOKENS:,} were computed before"
    pages = _count(_pages_reserved(story), "page")
    return f"{found}; {pages} reserved; bucket of {_count(story.bucket_rows, 'row')}"


def _pages_reserved(story: Story) -> int:
    positions = story.prompt_tokens + max(0, story.token_budget - 1)
    return -(-positions // PAGE_TOKENS) - story.cached_tokens // PAGE_TOKENS


# ---- all of it -----------------------------------------------------------------------------------
def events_of(story: Story) -> list[dict[str, Any]]:
    """What was traced of it, in the order in which it was told."""
    if story.engine is None:
        return []
    size = len(story.records)
    return [story.engine.told(story.records, at) for at in range(0, size, RECORD_BYTES)]


def _admission(story: Story) -> dict[str, Any] | None:
    if story.slot < 0 or not story.bucket_rows:
        return None
    found = story.cached_tokens // PAGE_TOKENS
    return {
        "blocks_found": found,
        "blocks": _blocks(story),
        "block_tokens": PAGE_TOKENS,
        "cached_ranges": [[0, found * PAGE_TOKENS]] if found else [],
        "pages_reserved": _pages_reserved(story),
        "bucket_rows": story.bucket_rows,
    }


def view(story: Story, now_ns: int, *, with_events: bool = True) -> dict[str, Any]:
    """The whole story; cached ranges are [first, end) in tokens of the prompt."""
    events = events_of(story) if with_events else []
    stages = [
        {"name": name, "begin_ns": begin, "end_ns": end, "ms": _round_ms(end - begin)}
        for name, begin, end in story.stages(now_ns)
    ]
    # By time; what happened at one moment stays in the order in which it was told.
    lines = sorted([*_edge_lines(story, now_ns), *_loop_lines(events)], key=lambda line: line.ns)
    told = {
        "id": story.request_id,
        "state": "ended" if story.ended_ns else "running",
        "request": {
            "method": story.method,
            "path": story.path,
            "protocol": story.protocol,
            "model": story.model,
            "profile": story.profile,
            "stream": story.stream,
        },
        "answer": {
            "status": story.status,
            "end": story.end,
            "prompt_tokens": story.prompt_tokens,
            "cached_tokens": story.cached_tokens,
            "expected_tokens": story.expected_tokens,
            "output_tokens": story.output_tokens,
        },
        "began_ns": story.began_ns,
        "ended_ns": story.ended_ns,
        "end_to_end_ms": _round_ms((story.ended_ns or now_ns) - story.began_ns),
        "stages": stages,
        "admission": _admission(story),
        "shard": story.decision,
        "lines": lines,
        "missed_records": story.missed,
        "left_out_records": story.left_out,
        "clock_ns": now_ns,
    }
    return {**told, "events": events} if with_events else told


def _round_ms(nanoseconds: int) -> float:
    return round(nanoseconds / NS_PER_MS, MS_DIGITS)
