"""Where the time of one answer went: a chain of stages, each of which begins where the one before
ended, so that they add up to the whole. Costs a clock read per stage and nothing per token.

    read        head parsed -> body there and its turn come
    parse       -> JSON decoded, checked, normalised (a long body waits for its worker here)
    template    -> prompt text
    tokenise    -> token ids
    publish     -> record written and handed to the loop
    admit       -> the loop has admitted it (its sleep, the step under way, the queue)
    first_token -> the step record with the first token (prefill)
    generate    -> the step record with the last row
    wake        -> the edge has polled that record
    encode      -> detokenised, escaped, framed
    write       -> handed to the connection

defines: STAGES, Timing
"""

from __future__ import annotations

import time

from ... import _core

STAGES = (
    *("read", "parse", "template", "tokenise", "publish", "admit"),
    *("first_token", "generate", "wake", "encode", "write"),
)
PREPARED = STAGES.index("publish")
NS_PER_SECOND = 1_000_000_000
NS_PER_MS = 1_000_000
MS_DIGITS = 4


class Timing:
    """Ends of the stages in nanoseconds of the monotonic clock; 0 where one was not reached."""

    __slots__ = (
        *("_admitted_ns", "_ends", "_first_sent_ns", "_first_token_ns", "_submitted_ns"),
        *("handed_ns", "received_ns"),
    )

    def __init__(self, received_seconds: float) -> None:
        self.received_ns = int(received_seconds * NS_PER_SECOND)
        self.handed_ns = 0
        """The prompt and its constraint were ready for the engine; part of `publish`."""
        self._ends: list[int] = [time.monotonic_ns()]
        self._submitted_ns = self._admitted_ns = self._first_token_ns = self._first_sent_ns = 0

    def prepared(self, parsed_ns: int, rendered_ns: int, tokenised_ns: int) -> None:
        """The stages of Prompt; what it is held to is there, too. It may be prepared once more, if
        its model has left before its turn: then the last time counts."""
        self.handed_ns = time.monotonic_ns()
        self._ends[1:] = (parsed_ns, rendered_ns, tokenised_ns)

    def submitted(self) -> None:
        """The record is with the loop; the loop's own word for it comes with the admission."""
        self._submitted_ns = time.monotonic_ns()

    def admitted(self, event: _core.StreamEvent) -> None:
        self._submitted_ns, self._admitted_ns = event.submitted_ns, event.admitted_ns

    def first_sent(self, event: _core.StreamEvent) -> None:
        """What the event had of the first token was written."""
        self._first_token_ns = event.first_token_ns
        self._first_sent_ns = event.first_sent_ns or time.monotonic_ns()

    def ended(self, event: _core.StreamEvent) -> None:
        """The last event was written. An answer that was never admitted has no stages."""
        if not event.admitted_ns:
            return
        if event.first_token_ns and not self._first_sent_ns:
            self.first_sent(event)
        self._ends += (
            event.submitted_ns,
            event.admitted_ns,
            event.first_token_ns or event.last_record_ns,
            event.last_record_ns,
            event.polled_ns,
            event.encoded_ns,
            time.monotonic_ns(),
        )

    def prepared_ns(self) -> int:
        """When the prompt was there."""
        return self._ends[min(len(self._ends), PREPARED) - 1]

    def ends_ns(self) -> list[int]:
        """Ends of the stages that were reached, also of an answer that did not go all the way."""
        ends = list(self._ends)
        if len(ends) == PREPARED:
            for end_ns in (self._submitted_ns, self._admitted_ns, self._first_token_ns):
                if not end_ns:
                    break
                ends.append(max(end_ns, ends[-1]))
        return ends

    @property
    def first_sent_ns(self) -> int:
        """The first bytes of the answer's text were written; 0: not yet."""
        return self._first_sent_ns

    def engine_ns(self) -> tuple[int, ...] | None:
        """When the record was handed over, admitted, had its first token and its last; None unless
        the answer went all the way."""
        if len(self._ends) != len(STAGES):
            return None
        return tuple(self._ends[PREPARED : PREPARED + 4])

    def stages_ms(self) -> dict[str, float]:
        """Stage -> milliseconds; empty unless the answer went all the way."""
        if len(self._ends) != len(STAGES):
            return {}
        begins = (self.received_ns, *self._ends)
        return {
            name: _ms(end - begin)
            for name, begin, end in zip(STAGES, begins, self._ends, strict=False)
        }

    def first_way_ms(self) -> float:
        """From the record of the first token to its bytes at the connection; part of `generate`."""
        return _ms(self._first_sent_ns - self._first_token_ns)


def _ms(nanoseconds: int) -> float:
    return round(nanoseconds / NS_PER_MS, MS_DIGITS)
