"""What another server of the Messages API says, in the form that frames.proto has a place for.

Such a server may leave out what this one always has (cache counts, diagnostics), say null for it,
and have more: citations, blocks of server tools, counts of its own. What is missing is filled with
what it means when it is not told, what has no place is left out, with the blocks that are of a kind
without one. Pure functions of decoded JSON.

defines: OddFormError, fitted_message, FittedEvents
"""

from __future__ import annotations

from typing import Any, cast

Json = dict[str, Any]
COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
"""That a usage always has."""
COUNT_MAX = (1 << 32) - 1
LIFETIMES = ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
CLEARED = ("cleared_thinking_turns", "cleared_tool_uses")
REASONS = frozenset(
    "end_turn max_tokens stop_sequence tool_use model_context_window_exceeded refusal "
    "pause_turn".split()
)
ENDED = "end_turn"
"""Stands for a reason that has no name here."""
DELTAS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}


class OddFormError(ValueError):
    """It is no message, or no event of one."""


# ---- a whole message -----------------------------------------------------------------------------
def fitted_message(said: Any, message_id: str, model: str) -> Json:
    """A whole message. `message_id` and `model`: where it tells none. Raises OddFormError."""
    message = _object(said)
    _list(message.get("content"))
    fitted = _message(message, message_id, model)
    return {**fitted, "stop_reason": fitted["stop_reason"] or ENDED}


def _message(message: Json, message_id: str, model: str) -> Json:
    told = message.get("content")
    blocks = [_block(block) for block in _list([] if told is None else told)]
    fitted: Json = {
        "id": _text(message.get("id"), message_id),
        "type": "message",
        "role": "assistant",
        "model": _text(message.get("model"), model),
        "content": [block for block in blocks if block is not None],
        **_ending(message),
        "diagnostics": _diagnostics(message.get("diagnostics")),
        "usage": _usage(message.get("usage")),
    }
    return {**fitted, **_management(message)}


def _ending(told: Json) -> Json:
    reason, sequence = told.get("stop_reason"), told.get("stop_sequence")
    if reason is not None and _text(reason) not in REASONS:
        reason = ENDED
    return {
        "stop_reason": reason,
        "stop_sequence": None if sequence is None else _text(sequence),
        "stop_details": None,
        "container": None,
    }


def _block(said: Any) -> Json | None:
    """None: of a kind that frames have none of."""
    block = _object(said)
    match kind := block.get("type"):
        case "text":
            return {"type": kind, "text": _text(block.get("text"), "")}
        case "thinking":
            thought = {"type": kind, "thinking": _text(block.get("thinking"), "")}
            return {**thought, "signature": _text(block.get("signature"), "")}
        case "tool_use":
            named = {"id": _text(block.get("id")), "name": _text(block.get("name"))}
            given = block.get("input")
            return {"type": kind, **named, "input": {} if given is None else _object(given)}
        case _:
            return None


def _usage(said: Any) -> Json:
    told = _object({} if said is None else said)
    fitted: Json = {name: _count(told.get(name)) for name in COUNTS}
    if isinstance(created := told.get("cache_creation"), dict):
        counts = cast(Json, created)
        fitted["cache_creation"] = {name: _count(counts.get(name)) for name in LIFETIMES}
    if isinstance(details := told.get("output_tokens_details"), dict):
        thought = _count(cast(Json, details).get("thinking_tokens"))
        fitted["output_tokens_details"] = {"thinking_tokens": thought}
    if isinstance(tier := told.get("service_tier"), str):
        fitted["service_tier"] = tier
    return fitted


def _diagnostics(said: Any) -> Json | None:
    if said is None:
        return None
    told = _object(said).get("cache_miss_reason")
    if told is None:
        return {"cache_miss_reason": None}
    reason = _object(told)
    why: Json = {"type": _text(reason.get("type"))}
    if reason.get("cache_missed_input_tokens") is not None:
        why["cache_missed_input_tokens"] = _count(reason["cache_missed_input_tokens"])
    return {"cache_miss_reason": why}


def _management(said: Json) -> Json:
    """Empty where there is none."""
    if said.get("context_management") is None:
        return {}
    edits: list[Json] = []
    for edit in map(_object, _list(_object(said["context_management"]).get("applied_edits"))):
        cleared = {name: _count(edit[name]) for name in CLEARED if edit.get(name) is not None}
        tokens = _count(edit.get("cleared_input_tokens"))
        edits.append({"type": _text(edit.get("type")), **cleared, "cleared_input_tokens": tokens})
    return {"context_management": {"applied_edits": edits}}


def _object(said: Any) -> Json:
    if not isinstance(said, dict):
        raise OddFormError("an object was expected")
    return cast(Json, said)


def _list(said: Any) -> list[Any]:
    if not isinstance(said, list):
        raise OddFormError("a list was expected")
    return cast(list[Any], said)


def _count(said: Any) -> int:
    """0 for what is none."""
    is_count = isinstance(said, int) and not isinstance(said, bool) and 0 <= said <= COUNT_MAX
    return said if is_count else 0


def _text(said: Any, otherwise: str | None = None) -> str:
    """`otherwise`: where nothing is said; None: something has to be."""
    if said is None and otherwise is not None:
        return otherwise
    if not isinstance(said, str):
        raise OddFormError("a text was expected")
    return said


# ---- a stream ------------------------------------------------------------------------------------
class FittedEvents:
    """The events of one stream."""

    def __init__(self, message_id: str, model: str) -> None:
        self._message_id = message_id
        self._model = model
        self._counts: Json = {}
        """As told so far: the end of a stream need not repeat what its beginning has said."""
        self._places: dict[int, int] = {}
        """Index of a block there -> here, where blocks that are left out have none."""
        self._blocks = 0

    def event(self, said: Any) -> Json | None:
        """None: nothing of it has a place. An error is this server's own and stays as it is. Raises
        OddFormError."""
        said = _object(said)
        match kind := said.get("type"):
            case "message_start":
                message = _object(said.get("message"))
                self._counted(message.get("usage"))
                begun = _message(message, self._message_id, self._model)
                return {"type": kind, "message": begun}
            case "content_block_start":
                block = _block(said.get("content_block"))
                if block is None:
                    return None
                place = self._places[_index(said)] = self._blocks
                self._blocks += 1
                return {"type": kind, "index": place, "content_block": block}
            case "content_block_delta":
                return self._delta(said)
            case "content_block_stop":
                place = self._places.get(_index(said))
                return None if place is None else {"type": kind, "index": place}
            case "message_delta":
                delta, more = _ending(_object(said.get("delta"))), _management(said)
                usage = _usage(self._counted(said.get("usage")))
                return {"type": kind, "delta": delta, **more, "usage": usage}
            case "message_stop" | "ping":
                return {"type": kind}
            case "error":
                return said
            case _:
                return None

    def _delta(self, said: Json) -> Json | None:
        place = self._places.get(_index(said))
        delta = _object(said.get("delta"))
        kind = delta.get("type")
        key = DELTAS.get(kind) if isinstance(kind, str) else None
        if place is None or key is None:
            return None
        text = _text(delta.get(key), "")
        inner = {"type": kind, key: text}
        # Frames have no empty deltas; a signature that is empty says that there is none.
        return {"type": said["type"], "index": place, "delta": inner} if text else None

    def _counted(self, said: Any) -> Json:
        """A usage, with what was told before and is not told again."""
        told = _object({} if said is None else said)
        known = {name: told[name] for name in COUNTS if told.get(name) is not None}
        self._counts |= known
        return {**told, **self._counts}


def _index(said: Json) -> int:
    index = said.get("index")
    if not isinstance(index, int):
        raise OddFormError("an index was expected")
    return index
