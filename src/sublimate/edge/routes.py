"""Which handler answers which path. One table, matched on the parsed path alone.

defines: Handler, find_handler
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from . import messages, models, openapi, probes
from .errors import ApiError
from .exchange import Exchange, Request

if TYPE_CHECKING:
    from .app import EdgeServer

Handler = Callable[["EdgeServer", Exchange], Awaitable[None] | None]

TABLE: dict[str, dict[str, Handler]] = {
    "/v1/messages": {"POST": messages.create_message},
    "/v1/messages/count_tokens": {"POST": messages.count_tokens},
    "/v1/models": {"GET": models.list_models},
    "/": {"GET": probes.empty},
    "/api/hello": {"GET": probes.empty},
    "/livez": {"GET": probes.live},
    "/readyz": {"GET": probes.ready},
    "/health": {"GET": probes.health},
    "/ping": {"GET": probes.live},
    "/version": {"GET": probes.version},
    "/metrics": {"GET": probes.metrics},
    "/openapi.json": {"GET": openapi.document},
    "/docs": {"GET": openapi.page},
}
MODEL_PREFIX = "/v1/models/"
DOUBLED_PREFIX = "/v1/v1"


def find_handler(request: Request) -> Handler:
    """Raises ApiError: 404 for an unknown path, 405 for a method that a path does not take."""
    methods = TABLE.get(request.path)
    if methods is None and request.path.startswith(MODEL_PREFIX):
        # A slash inside an id comes as %2F; a second part is another path.
        if "/" not in request.path[len(MODEL_PREFIX) :]:
            methods = {"GET": models.retrieve_model}
    if methods is None:
        doubled = request.path == DOUBLED_PREFIX or request.path.startswith(DOUBLED_PREFIX + "/")
        raise ApiError("doubled_prefix" if doubled else "not_found")
    method = "GET" if request.method == "HEAD" and "GET" in methods else request.method
    handler = methods.get(method)
    if handler is None:
        allowed = [*methods, *(["HEAD"] if "GET" in methods else [])]
        raise ApiError("method", allowed=", ".join(allowed))
    return handler
