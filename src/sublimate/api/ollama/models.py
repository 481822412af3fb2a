"""GET /api/tags, /api/ps, /api/version and POST /api/show: the models that are served.

defines: list_models, list_running, show_model, version, API_VERSION
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from ...edge import limits
from ...edge.errors import ApiError, field_error
from ...edge.exchange import Exchange
from ...edge.json_bounds import checked_json
from ...edge.models import LATEST
from ..decode import decode_body
from .frames import LINES

if TYPE_CHECKING:
    from ...edge.app import EdgeServer
    from ...edge.served import Served

API_VERSION = "0.13.0"
"""Of Ollama's API that is spoken here; tools compare it with what they need."""
NEVER = "2318-01-01T00:00:00Z"
"""When the model is taken out of memory."""
MILLION, BILLION = 1e6, 1e9
FILE_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1"},
    **{10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 21: "Q2_K_S"},
    **{25: "IQ4_NL", 30: "IQ4_XS", 38: "MXFP4_MOE"},
    **{14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 32: "BF16"},
}
"""general.file_type of a GGUF file."""


class ShowRequest(msgspec.Struct):
    model: str | None = None
    name: str | None = None


DECODER = msgspec.json.Decoder(ShowRequest)


def list_models(server: EdgeServer, exchange: Exchange) -> None:
    _send(exchange, {"models": [_entry(served) for served in server.models.with_adapters]})


def list_running(server: EdgeServer, exchange: Exchange) -> None:
    """Those that are in memory."""
    _send(exchange, {"models": [_running(one) for one in server.models.all if one.links]})


def _running(served: Served) -> dict[str, Any]:
    running = {
        **_entry(served),
        "expires_at": NEVER,
        "size_vram": 0,
        "context_length": served.context_tokens,
    }
    del running["modified_at"]
    return running


def show_model(server: EdgeServer, exchange: Exchange) -> Awaitable[None] | None:
    """Raises ApiError."""
    request = decode_body(DECODER, checked_json(exchange.request.body))
    requested = request.model or request.name
    if not requested:
        raise field_error("model", "field required")
    served = server.models.resolve(requested)

    async def told() -> dict[str, Any]:
        return _shown(served)

    async def read_first() -> None:
        _send(exchange, await server.models.once_loaded(exchange, told))

    if served.text_if_read is None:
        return read_first()
    _send(exchange, _shown(served))
    return None


def _shown(served: Served) -> dict[str, Any]:
    """Raises NotLoadedError."""
    model = served.text
    facts = dict(model.facts)
    architecture = facts.get("general.architecture")
    if architecture is not None and served.context_tokens:
        # What is served, which may be less or more than the model was trained for.
        facts[f"{architecture}.context_length"] = served.context_tokens
    facts["general.parameter_count"] = _parameters(served)
    capabilities = ["completion", "tools"]
    if model.template.thinking_format is not None:
        capabilities.append("thinking")
    entry = _entry(served)
    return {
        "modelfile": f"FROM {model.name}\n"
        + (f"ADAPTER {served.name}\n" if served.adapter else ""),
        "parameters": "",
        "template": str(model.template.report),
        "details": entry["details"],
        "model_info": facts,
        "capabilities": capabilities,
        "modified_at": entry["modified_at"],
    }


class PullRequest(ShowRequest):
    stream: bool | None = None


PULL_DECODER = msgspec.json.Decoder(PullRequest)
NOT_PULLED = (
    "model: {model} is not served here, and this server fetches no models for its clients. "
    "`sublimate pull` on its machine fetches one, and `--library` serves a folder of them."
)
NOT_CHANGED = "This server does not change its models through the API; see `sublimate pull`."


def pull_model(server: EdgeServer, exchange: Exchange) -> None:
    """A model that is served is here already. Raises ApiError for any other."""
    request = decode_body(PULL_DECODER, checked_json(exchange.request.body))
    requested = request.model or request.name
    if not requested:
        raise field_error("model", "field required")
    try:
        server.models.resolve(requested)
    except ApiError:
        name = requested[: limits.IDENTIFIER_CHARACTERS_MAX]
        raise ApiError("not_offered", reason=NOT_PULLED.format(model=name)) from None
    if request.stream is False:
        _send(exchange, {"status": "success"})
    else:
        lines = b'{"status":"pulling manifest"}\n{"status":"success"}\n'
        exchange.send(200, [("content-type", LINES)], lines)


def change_model(server: EdgeServer, exchange: Exchange) -> None:
    """/api/create, copy, push, delete and blobs. Raises ApiError."""
    del server, exchange
    raise ApiError("not_offered", reason=NOT_CHANGED)


def version(server: EdgeServer, exchange: Exchange) -> None:
    _send(exchange, {"version": API_VERSION, "sublimate": server.version})


def _send(exchange: Exchange, shown: dict[str, Any]) -> None:
    exchange.send_json(200, msgspec.json.encode(shown))


def _entry(served: Served) -> dict[str, Any]:
    """What is told of a model before anything was read of its file is little."""
    text = served.text_if_read
    facts = text.facts if text is not None else {}
    family = str(facts.get("general.architecture", ""))
    named = f"{served.name}{LATEST}"
    # Tells models apart. It is not the digest of the file, which would have to be read whole.
    identity = msgspec.json.encode([served.name, served.file_bytes, facts], order="sorted")
    modified = datetime.fromtimestamp(served.created_seconds, UTC)
    return {
        "name": named,
        "model": named,
        "modified_at": modified.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "size": served.file_bytes,
        "digest": hashlib.sha256(identity).hexdigest(),
        "details": {
            "parent_model": served.parent,
            "format": "gguf",
            "family": family,
            "families": [family],
            "parameter_size": _size_text(_parameters(served)),
            "quantization_level": FILE_TYPES.get(facts.get("general.file_type", -1), "unknown"),
        },
    }


def _parameters(served: Served) -> int:
    return int(served.links[0].info.get("parameters", 0)) if served.links else 0


def _size_text(parameters: int) -> str:
    if parameters >= BILLION:
        return f"{parameters / BILLION:.1f}B"
    return f"{parameters / MILLION:.2f}M"
