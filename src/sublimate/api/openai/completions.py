"""POST /v1/completions: text that goes on from a prompt, without any chat template.

defines: CompletionGeneration, read_completion, CompletionDialect
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ... import _core
from ...edge.blocks import Piece
from ...edge.dialect import Dialect, Score
from ...edge.errors import field_error
from ...edge.exchange import Exchange
from ...edge.generate import choose_profile
from ...edge.generation import Generation
from ...edge.limits import CHOICES_MAX
from ...edge.stream import Answer
from ..decode import decode_body
from .chat_frames import DONE, FINISH, usage
from .errors import COMPLETION_ERRORS
from .request import StopFields, check_choices, check_not_offered, checked_sampling, with_choices
from .scores import Vocabulary, completion_scores

if TYPE_CHECKING:
    from ...edge.app import EdgeServer

ENCODE = msgspec.json.Encoder().encode
DEFAULT_TOKENS = 16
"""max_tokens of a body without it, as the API has it."""
LOGPROBS_MAX = _core.LIMITS["LOGPROBS_MAX"]


class CompletionRequest(StopFields, kw_only=True):
    prompt: str | list[Any]
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None
    response_format: Any = None


DECODER = msgspec.json.Decoder(CompletionRequest)


class CompletionGeneration(Generation, frozen=True, kw_only=True):
    """With what only this API asks for."""

    include_usage: bool = False
    echo: str = ""
    """Stands before the answer."""
    vocabulary: Vocabulary = ()
    """Of the log-probabilities, if they are asked for."""


def read_completion(server: EdgeServer, exchange: Exchange, body: bytes) -> CompletionGeneration:
    """Raises ApiError."""
    request = decode_body(DECODER, body)
    profile = choose_profile(request.execution_profile, server.settings, exchange.request)
    served = server.models.resolve(request.model)
    check_not_offered(request, "response_format")
    count = check_choices(request.n)
    if request.best_of not in (None, count):
        raise field_error("best_of", "this server returns every answer that it makes; leave it out")
    if request.suffix:
        raise field_error("suffix", "this server cannot write what stands before a suffix")
    logprobs = -1 if request.logprobs is None else request.logprobs
    if not -1 <= logprobs <= LOGPROBS_MAX:
        raise field_error("logprobs", f"expected an integer from 0 to {LOGPROBS_MAX}")
    if request.echo and logprobs >= 0:
        raise field_error("echo", "this server has no log-probabilities of a prompt")
    limit = DEFAULT_TOKENS if request.max_tokens is None else request.max_tokens
    vocabulary = served.text.tokenizer.token_bytes
    prompts = read_prompts(request.prompt, len(vocabulary))
    if len(prompts) * count > CHOICES_MAX:
        raise field_error("prompt", f"at most {CHOICES_MAX} answers in one request")
    sampling = checked_sampling(served, request, ("max_tokens", limit), request.stop, logprobs)
    generation = CompletionGeneration(
        model_name=served.name,
        turns=(),
        raw_prompt=prompts[0],
        sampling=sampling,
        profile=profile,
        stream=bool(request.stream),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        vocabulary=vocabulary if logprobs >= 0 else (),
    )
    each = [
        msgspec.structs.replace(
            generation,
            raw_prompt=prompt,
            echo=_text_of(prompt, vocabulary) if request.echo else "",
        )
        for prompt in prompts
    ]
    return with_choices(each, count)


def read_prompts(given: str | list[Any], vocabulary_size: int) -> list[str | tuple[int, ...]]:
    """Each text or ids: one prompt, or a list of prompts. Raises ApiError."""
    if isinstance(given, str) or not given or isinstance(given[0], int | float):
        return [_prompt("prompt", given, vocabulary_size)]
    if len(given) > CHOICES_MAX:
        raise field_error("prompt", f"at most {CHOICES_MAX} are taken")
    return [_prompt(f"prompt.{place}", one, vocabulary_size) for place, one in enumerate(given)]


def _prompt(path: str, given: Any, vocabulary_size: int) -> str | tuple[int, ...]:
    if not given:
        raise field_error(path, "must not be empty")
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise field_error(path, "expected text, or a list of token ids")
    ids = cast(list[Any], given)
    for index, token in enumerate(ids):
        if (
            not isinstance(token, int)
            or isinstance(token, bool)
            or not 0 <= token < vocabulary_size
        ):
            raise field_error(f"{path}.{index}", "not a token of this model")
    return tuple(ids)


def _text_of(prompt: str | tuple[int, ...], vocabulary: Vocabulary) -> str:
    if isinstance(prompt, str):
        return prompt
    return b"".join(vocabulary[token] for token in prompt).decode("utf-8", "replace")


class CompletionDialect(Dialect):
    error_shape = COMPLETION_ERRORS

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self._generation = cast(CompletionGeneration, answer.generation)
        self._created = int(time.time())
        self._head = b"data: " + ENCODE(self._envelope())[:-1]
        usage = b',"usage":null' if self._generation.include_usage else b""
        self._tail = b"}]" + usage + b"}\n\n"
        self._scores: list[Score] = []
        """Of tokens without a chunk so far."""
        self._offset = 0

    def _envelope(self) -> dict[str, Any]:
        return {
            "id": self.answer.message_id,
            "object": "text_completion",
            "created": self._created,
            "model": self._generation.model_name,
            "system_fingerprint": None,
        }

    def begin(self) -> bytes:
        echo = self._generation.echo
        return self._chunk(echo) if echo else b""

    def progress(self, pieces: Sequence[Piece], scores: list[Score]) -> bytes:
        self._scores += scores
        return b"".join(self._chunk(text) for kind, text, _ in pieces if kind == "text")

    def _chunk(self, text: str, finish: bytes = b"null") -> bytes:
        scores = b"null"
        if self._scores:
            shown = completion_scores(self._generation.vocabulary, self._scores, self._offset)
            self._offset += sum(map(len, shown["tokens"]))
            scores = ENCODE(shown)
            self._scores = []
        return (
            self._head
            + b',"choices":[{"index":0,"text":%b,"logprobs":%b,"finish_reason":%b'
            % (
                ENCODE(text),
                scores,
                finish,
            )
            + (self._tail)
        )

    def end(self, event: _core.StreamEvent) -> bytes:
        frames = self._chunk("", ENCODE(FINISH[event.stop_reason]))
        if self._generation.include_usage:
            counted = ENCODE({"choices": [], "usage": usage(self.answer, event)})
            frames += self._head + b"," + counted[1:] + b"\n\n"
        return frames + DONE

    def whole(
        self, pieces: Sequence[Piece], scores: list[Score], event: _core.StreamEvent
    ) -> dict[str, Any]:
        text = "".join(text for kind, text, _ in pieces if kind == "text")
        shown = None
        if self._generation.sampling.logprobs >= 0:
            shown = completion_scores(self._generation.vocabulary, scores, 0)
        choice = {
            "index": 0,
            "text": self._generation.echo + text,
            "logprobs": shown,
            "finish_reason": FINISH[event.stop_reason],
        }
        return {**self._envelope(), "choices": [choice], "usage": usage(self.answer, event)}
