"""Several answers to one request of chat completions or completions, as its choices.

Each answer has an exchange of its own, which no connection carries: what it sends is put together
here, under the id and the time of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from ...edge.errors import ApiError
from ...edge.exchange import EVENT_STREAM, Exchange, Header
from ...edge.generation import Prompt
from ..batches.inner import InnerExchange
from .chat_frames import DONE

Json = dict[str, Any]
ENCODE = msgspec.json.Encoder().encode
FRAME_END, DATA = b"\n\n", b"data: {"


class ChoiceExchange(InnerExchange):
    """The exchange of one answer."""

    __slots__ = ("_choices", "_place")

    def __init__(self, choices: Choices, place: int, outer: Exchange) -> None:
        super().__init__(outer.request.path, b"", outer.owner, lambda body, error: None)
        self._choices = choices
        self._place = place
        if place:
            self.request_id = f"{outer.request_id}.{place}"
        else:
            self.request_id = outer.request_id  # the one that the client has
        self.request = outer.request
        self.error_shape = outer.error_shape
        self.started_seconds = outer.started_seconds
        cast(Any, self.wire).protocol = outer.wire.protocol  # for the log

    def send(self, status: int, headers: list[Header], body: bytes) -> None:
        if self.answered:
            return
        self._end(status)
        self._choices.whole(self._place, headers, msgspec.json.decode(body))

    def fail(self, error: ApiError) -> None:
        if self.answered:
            return
        self.error_code = error.code
        self._end(self.error_shape.status(error))
        self._choices.fail(error)

    def start_stream(
        self, headers: list[Header], data: bytes, content_type: str = EVENT_STREAM
    ) -> bool:
        self.streaming, self.stream_type, self.status = True, content_type, 200
        return self._choices.begin(self._place, headers, data, content_type)

    def write(self, data: bytes) -> bool:
        return self._choices.write(self._place, data)

    def finish(self, data: bytes = b"", trailers: Sequence[Header] = ()) -> None:
        del trailers
        if self.answered:
            return
        self._end(self.status)
        self._choices.finish(self._place, data)

    def framed(self, frames: bytes) -> bytes:
        return frames

    def _end(self, status: int = 0) -> None:
        self.status = status
        self.answered = True
        self.on_gone = None
        self.streaming = False

    def unsent_bytes(self) -> int:
        return self._choices.outer.unsent_bytes()


class Choices:
    """All answers to one request."""

    def __init__(self, outer: Exchange, prompts: Sequence[Prompt]) -> None:
        self.outer = outer
        self.exchanges = [ChoiceExchange(self, place, outer) for place in range(len(prompts))]
        self._is_first = [
            place == 0 or prompt.ids is not prompts[place - 1].ids
            for place, prompt in enumerate(prompts)
        ]
        """Whether each answer is the first to its prompt, whose tokens count once."""
        self._bodies: dict[int, Json] = {}
        self._open = len(prompts)
        self._head: Json = {}
        self._usage: Json = {}
        outer.was_noted = True  # each answer notes itself
        outer.on_gone = self._cancel

    def _cancel(self) -> None:
        for exchange in self.exchanges:
            exchange.cancel()

    def fail(self, error: ApiError) -> None:
        """One has failed, so all of them do."""
        if not self.outer.answered:
            self.outer.fail(error)
            self._cancel()

    # ---- whole ---------------------------------------------------------------------------------
    def whole(self, place: int, headers: list[Header], body: Json) -> None:
        self._bodies[place] = body
        self._count(place, body["usage"])
        if len(self._bodies) < len(self.exchanges) or self.outer.answered:
            return
        choices = [
            {**self._bodies[place]["choices"][0], "index": place}
            for place in range(len(self.exchanges))
        ]
        merged = {**self._bodies[0], "choices": choices, "usage": self._usage}
        self.outer.send(200, headers, ENCODE(merged))

    # ---- streams -------------------------------------------------------------------------------
    def begin(self, place: int, headers: list[Header], data: bytes, content_type: str) -> bool:
        if not self.outer.streaming and not self.outer.answered:
            self.outer.start_stream(headers, b"", content_type)
        return self.write(place, data)

    def write(self, place: int, data: bytes) -> bool:
        frames = b"".join(self._renumbered(place, frame) for frame in data.split(FRAME_END))
        if not frames or self.outer.answered:
            return True
        return self.outer.write(self.outer.framed(frames))

    def finish(self, place: int, data: bytes) -> None:
        self.write(place, data)
        self._open -= 1
        if self._open or self.outer.answered:
            return
        last = b""
        if self._usage:
            last = b"data: " + ENCODE({**self._head, "choices": [], "usage": self._usage})
            last += FRAME_END
        self.outer.finish(self.outer.framed(last + DONE))

    def _renumbered(self, place: int, frame: bytes) -> bytes:
        if not frame.startswith(DATA):
            return b"" if not frame or frame == DONE.strip() else frame + FRAME_END
        chunk: Json = msgspec.json.decode(frame[len(DATA) - 1 :])
        if not chunk["choices"]:
            self._count(place, chunk["usage"])
            return b""
        if not self._head:
            self._head = {name: chunk[name] for name in chunk if name not in ("choices", "usage")}
        choice = {**chunk["choices"][0], "index": place}
        return b"data: " + ENCODE({**chunk, **self._head, "choices": [choice]}) + FRAME_END

    # ---- usage ---------------------------------------------------------------------------------
    def _count(self, place: int, usage: Json) -> None:
        """Add one answer's usage; a prompt counts once for all its answers."""
        if not self._is_first[place]:
            usage = {
                **usage,
                "total_tokens": usage["completion_tokens"],
                "prompt_tokens": 0,
                "prompt_tokens_details": dict.fromkeys(usage["prompt_tokens_details"], 0),
            }
        self._usage = _sum(self._usage, usage) if self._usage else usage


def _sum(first: Json, second: Json) -> Json:
    """Add two usages, whose values are numbers and objects of numbers."""
    added: Json = {}
    for name, value in first.items():
        other = second[name]
        if isinstance(value, dict):
            inner = cast(dict[str, int], value)
            added[name] = {key: count + other[key] for key, count in inner.items()}
        else:
            added[name] = value + other
    return added


def split(outer: Exchange, prompts: Sequence[Prompt]) -> Sequence[Exchange]:
    """An exchange for each answer. See Surface."""
    return Choices(outer, prompts).exchanges
