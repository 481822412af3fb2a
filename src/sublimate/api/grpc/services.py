"""The methods that can be called, by path.

defines: SERVICES, methods
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError

from ...edge.errors import ApiError, field_error
from ...edge.exchange import new_identifier
from ...edge.grpc.call import Method
from ...edge.grpc.route import Asked, RouteMethod
from ...guard.message_form import OddFormError, fitted_message
from ...v1 import layer_pb2, messages_pb2
from ...wire.frames import InexpressibleError, message_of
from ..policy import PROTOBUF
from .bounds import check_fields
from .health import HEALTH, Check, List, Watch
from .json_form import struct_to_json, to_json
from .reflection import REFLECTION, REFLECTION_ALPHA, Reflection

MESSAGES = "sublimate.v1.Messages"
LAYER = "sublimate.v1.Layer"
SERVICES = (MESSAGES, LAYER, HEALTH, REFLECTION_ALPHA)
"""Whose health can be asked for, and which reflection lists: those whose descriptors there are."""


def parsed(kind: Any, data: bytes) -> Any:
    """A message of a kind. Raises ApiError."""
    check_fields(kind.DESCRIPTOR, data)
    try:
        return kind.FromString(data)
    except DecodeError:
        raise ApiError("call_message") from None


def _body(data: bytes) -> Asked:
    """Of a CreateMessageRequest. Raises ApiError."""
    request = parsed(messages_pb2.CreateMessageRequest, data)
    if request.json_body:
        if len(request.ListFields()) > 1:
            raise field_error("json_body", "excludes all other fields")
        return Asked(request.json_body)
    more = struct_to_json(request.extra_body, "extra_body")
    return Asked(msgspec.json.encode({**more, **to_json(request)}))


def _page(data: bytes) -> Asked:
    asked = to_json(parsed(messages_pb2.ListModelsRequest, data))
    return Asked(target=b"/v1/models?" + urlencode(asked).encode())


def _one_model(data: bytes) -> Asked:
    request = parsed(messages_pb2.GetModelRequest, data)
    if not request.model_id:
        raise field_error("model_id", "field required")
    return Asked(target=b"/v1/models/" + quote(request.model_id, safe="").encode())


def _empty(data: bytes) -> Asked:
    parsed(layer_pb2.GetPolicyRequest, data)
    return Asked()


def _message(body: bytes) -> bytes:
    """Raises ApiError for what a fallback has said that is no message."""
    said = msgspec.json.decode(body)
    try:
        return message_of(said).SerializeToString()
    except InexpressibleError:
        pass  # another server's, kept under the key of a request that came another way
    try:
        return message_of(fitted_message(said, new_identifier("msg"), "")).SerializeToString()
    except (OddFormError, InexpressibleError):
        raise ApiError("fallback_form") from None


def _written(kind: Any, body: bytes) -> bytes:
    """Members that the kind has no field for stay out."""
    told = ParseDict(msgspec.json.decode(body), kind(), ignore_unknown_fields=True)
    return told.SerializeToString()


def methods() -> Mapping[str, Method]:
    """Of every service. Called once, when the first call comes."""
    count, models = b"/v1/messages/count_tokens", b"/v1/models"
    counted = partial(_written, messages_pb2.CountTokensResponse)
    listed = partial(_written, messages_pb2.ListModelsResponse)
    shown = partial(_written, messages_pb2.Model)
    return {
        f"/{MESSAGES}/CreateMessage": RouteMethod("POST", b"/v1/messages", _body, _message),
        f"/{MESSAGES}/StreamMessage": RouteMethod("POST", b"/v1/messages", _body, None),
        f"/{MESSAGES}/CountTokens": RouteMethod("POST", count, _body, counted),
        f"/{MESSAGES}/ListModels": RouteMethod("GET", models, _page, listed),
        f"/{MESSAGES}/GetModel": RouteMethod("GET", models + b"/-", _one_model, shown),
        f"/{LAYER}/GetPolicy": RouteMethod(
            "GET", b"/v1/layer/policy", _empty, bytes, PROTOBUF.encode()
        ),
        f"/{HEALTH}/Check": partial(Check, SERVICES),
        f"/{HEALTH}/List": partial(List, SERVICES),
        f"/{HEALTH}/Watch": partial(Watch, SERVICES),
        f"/{REFLECTION}/ServerReflectionInfo": partial(Reflection, SERVICES),
        f"/{REFLECTION_ALPHA}/ServerReflectionInfo": partial(Reflection, SERVICES),
    }
