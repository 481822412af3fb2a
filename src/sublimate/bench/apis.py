"""The two API styles that a bench can speak: Messages and OpenAI-style chat completions.

defines: Api, MESSAGES, CHAT, Delta, read_event, request_body, headers
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Style = Literal["messages", "openai"]


class Api(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests of a style go."""

    style: Style
    path: str


MESSAGES = Api(style="messages", path="/v1/messages")
CHAT = Api(style="openai", path="/v1/chat/completions")
APIS: dict[str, Api] = {api.style: api for api in (MESSAGES, CHAT)}


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What one event of a stream says."""

    text: str = ""
    output_tokens: int = 0
    """As the server claims, when the event says it; only a cross-check."""
    input_tokens: int = 0
    cached_tokens: int = 0
    """Of the input tokens, those that came from a prefix cache."""
    error: str = ""
    finished: bool = False


# ---- events on the wire; only what is used is declared ----
class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _TextDelta(msgspec.Struct):
    text: str | None = None
    thinking: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    delta: _TextDelta | None = None
    finish_reason: str | None = None


class _Message(msgspec.Struct):
    usage: _Usage | None = None


class _Event(msgspec.Struct):
    type: str = ""
    delta: _TextDelta | None = None
    message: _Message | None = None
    usage: _Usage | None = None
    choices: list[_Choice] = []
    error: Any = None


_decoder = msgspec.json.Decoder(_Event)


def read_event(data: bytes) -> Delta:
    """What the data of one event says, in either style; an unreadable one is an error."""
    if data == b"[DONE]":
        return Delta(finished=True)
    try:
        event = _decoder.decode(data)
    except msgspec.DecodeError:
        return Delta(error="an event is not valid JSON")
    if event.error is not None:
        return Delta(error=msgspec.json.encode(event.error).decode()[:200])
    deltas = [event.delta, *(choice.delta for choice in event.choices)]
    text = "".join(_text(delta) for delta in deltas if delta is not None)
    usage = event.usage or (event.message.usage if event.message else None) or _Usage()
    return Delta(
        text=text,
        output_tokens=usage.output_tokens or usage.completion_tokens or 0,
        input_tokens=(usage.input_tokens or usage.prompt_tokens or 0)
        + (usage.cache_read_input_tokens or 0),
        cached_tokens=usage.cache_read_input_tokens or 0,
        finished=event.type == "message_stop",
    )


def _text(delta: _TextDelta) -> str:
    parts = (delta.reasoning_content or delta.reasoning, delta.thinking, delta.content, delta.text)
    return "".join(part for part in parts if part)


def request_body(
    api: Api, model: str, prompt: str, max_tokens: int, extra: dict[str, Any]
) -> bytes:
    """A streaming, greedy request with one user message."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": max_tokens,
        "stream": True,
        "temperature": 0,
        "messages": [{"role": "user", "content": prompt}],
        **extra,
    }
    if api.style == "openai":
        body["stream_options"] = {"include_usage": True}
    return msgspec.json.encode(body)


WELL_KNOWN = "/.well-known/sublimate"
PROFILE_HEADER = "x-execution-profile"
"""Names a request's profile, for a server whose contract is strict."""


class _Profiles(msgspec.Struct):
    default: str
    pinned: str | None = None
    required: bool = False


class _WellKnown(msgspec.Struct):
    profiles: _Profiles


def required_profile(body: bytes) -> str:
    """The execution profile to name to a server that answers WELL_KNOWN so: its own, where its
    contract wants one to be named. Empty: none is needed, or it is another kind of server."""
    try:
        profiles = msgspec.json.decode(body, type=_WellKnown).profiles
    except msgspec.DecodeError:
        return ""
    return (profiles.pinned or profiles.default) if profiles.required else ""


def headers(api_key: str, profile: str = "") -> dict[str, str]:
    """Headers that satisfy both styles; profile: as of `required_profile`."""
    key = api_key or "none"
    return {
        **({PROFILE_HEADER: profile} if profile else {}),
        "content-type": "application/json",
        "accept": "text/event-stream",
        "anthropic-version": "2023-06-01",
        "x-api-key": key,
        "authorization": f"Bearer {key}",
    }
