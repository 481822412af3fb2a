"""The paths of all surfaces.

defines: TABLE, ROUTES
"""

from __future__ import annotations

from ..edge.routes import Methods, Routes
from . import models, openapi, probes
from .messages import handlers as messages

TABLE: dict[str, Methods] = {
    "/v1/messages": {"POST": messages.create_message},
    "/v1/messages/count_tokens": {"POST": messages.count_tokens},
    "/v1/models": {"GET": models.list_models},
    "/v1/models/{id}": {"GET": models.retrieve_model},
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
ROUTES = Routes(TABLE)
