"""The paths of all surfaces.

defines: TABLE, SHAPES, begin, ROUTES
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..edge.errors import MESSAGES_SHAPE
from ..edge.routes import Handler, Methods, Routes
from . import debug, models, openapi, policy, probes, tokenise
from .batches import handlers as batches
from .batches.runner import Batches, resume
from .files import handlers as files
from .files import upload
from .messages import handlers as messages
from .messages.fingerprints import Fingerprints
from .messages.framed import retelling
from .ollama import handlers as ollama
from .ollama import models as ollama_models
from .ollama.errors import OLLAMA_ERRORS
from .openai import handlers as openai
from .openai.errors import COMPLETION_ERRORS, OPENAI_ERRORS, RESPONSES_ERRORS, SHARED_ERRORS
from .openai.response_store import ResponseStore

if TYPE_CHECKING:
    from ..edge.app import EdgeServer
    from ..edge.grpc.call import Method

TABLE: dict[str, Methods] = {
    "/v1/messages": {"POST": messages.create_message},
    "/v1/messages/count_tokens": {"POST": messages.count_tokens},
    "/v1/chat/completions": {"POST": openai.chat_completions},
    "/v1/completions": {"POST": openai.completions},
    "/v1/responses": {"POST": openai.create_response},
    "/v1/responses/input_tokens": {"POST": openai.count_input_tokens},
    "/v1/responses/compact": {"POST": openai.no_compaction},
    "/v1/responses/{id}": {"GET": openai.retrieve_response, "DELETE": openai.delete_response},
    "/v1/responses/{id}/input_items": {"GET": openai.list_input_items},
    "/v1/messages/batches": {"POST": batches.create, "GET": batches.list_batches},
    "/v1/messages/batches/{id}": {"GET": batches.retrieve, "DELETE": batches.delete},
    "/v1/messages/batches/{id}/cancel": {"POST": batches.cancel},
    "/v1/messages/batches/{id}/results": {"GET": batches.results},
    "/v1/files": {"POST": files.create, "GET": files.list_files},
    "/v1/files/{id}": {"GET": files.retrieve, "DELETE": files.delete},
    "/v1/files/{id}/content": {"GET": files.content},
    "/v1/batches": {"POST": openai.no_batches, "GET": openai.no_batches},
    "/v1/batches/{id}": {"GET": openai.no_batches},
    "/v1/batches/{id}/cancel": {"POST": openai.no_batches},
    "/v1/embeddings": {"POST": models.no_embeddings},
    "/api/embed": {"POST": models.no_embeddings},
    "/api/embeddings": {"POST": models.no_embeddings},
    "/tokenize": {"POST": tokenise.tokenize},
    "/detokenize": {"POST": tokenise.detokenize},
    "/v1/layer/policy": {"GET": policy.get_policy},
    "/v1/models": {"GET": models.list_models},
    "/v1/models/{id}": {"GET": models.retrieve_model},
    "/": {"GET": probes.empty},
    "/api/hello": {"GET": probes.empty},
    "/api/chat": {"POST": ollama.chat},
    "/api/generate": {"POST": ollama.generate_text},
    "/api/tags": {"GET": ollama_models.list_models},
    "/api/ps": {"GET": ollama_models.list_running},
    "/api/show": {"POST": ollama_models.show_model},
    "/api/pull": {"POST": ollama_models.pull_model},
    "/api/create": {"POST": ollama_models.change_model},
    "/api/copy": {"POST": ollama_models.change_model},
    "/api/push": {"POST": ollama_models.change_model},
    "/api/delete": {"DELETE": ollama_models.change_model},
    "/api/blobs/{id}": {"POST": ollama_models.change_model, "HEAD": ollama_models.change_model},
    "/api/version": {"GET": ollama_models.version},
    "/livez": {"GET": probes.live},
    "/readyz": {"GET": probes.ready},
    "/health": {"GET": probes.health},
    "/ping": {"GET": probes.live},
    "/version": {"GET": probes.version},
    "/.well-known/sublimate": {"GET": probes.well_known},
    "/metrics": {"GET": probes.metrics},
    "/v1/debug/requests": {"GET": debug.requests},
    "/v1/debug/requests/{id}": {"GET": debug.request},
    "/v1/debug/events": {"GET": debug.follow},
    "/openapi.json": {"GET": openapi.document},
    "/docs": {"GET": openapi.page},
}
SHAPES = {
    "/v1/messages": MESSAGES_SHAPE,
    "/v1/chat/": OPENAI_ERRORS,
    "/v1/completions": COMPLETION_ERRORS,
    "/v1/responses": RESPONSES_ERRORS,
    "/v1/batches": OPENAI_ERRORS,
    "/v1/": SHARED_ERRORS,
    "/api/": OLLAMA_ERRORS,
}
"""How errors look at paths that begin so; the first that fits."""


def begin(server: EdgeServer) -> None:
    """Make what worker threads will ask for, and go on with what an earlier process kept."""
    for kind in (ResponseStore, Fingerprints):
        server.part(kind)
    upload.begin(server)
    if server.settings.fallback:
        from .fallback import Fallback  # only who has one

        server.relief = server.part(Fallback)
    resume(server)


def _methods() -> Mapping[str, Method]:
    from .grpc.services import methods  # with the protobuf runtime: only who is called by gRPC

    return methods()


REPLAY_SAFE: tuple[Handler, ...] = (
    messages.count_tokens,
    tokenise.tokenize,
    tokenise.detokenize,
)
OF_FIRST: tuple[Handler, ...] = (
    batches.create,
    batches.list_batches,
    batches.retrieve,
    batches.delete,
    batches.cancel,
    batches.results,
    files.create,
    files.list_files,
    files.retrieve,
    files.delete,
    files.content,
)
ROUTES = Routes(
    TABLE,
    SHAPES,
    begin,
    {files.create: upload.Upload},
    _methods,
    REPLAY_SAFE,
    {messages.create_message: retelling},
    OF_FIRST,
    (Batches, upload.Files),
)
