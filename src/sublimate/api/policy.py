"""GET /v1/layer/policy: what `rpc GetPolicy` of proto/sublimate/v1/layer.proto answers.

defines: policy_response, get_policy
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _core
from ..config import EdgeSettings
from ..edge.exchange import JSON_TYPE, Exchange

if TYPE_CHECKING:
    from ..edge.app import EdgeServer
    from ..v1.layer_pb2 import GetPolicyResponse

PROTOBUF = "application/x-protobuf"


def policy_response(settings: EdgeSettings) -> GetPolicyResponse:
    """The policy that this process is compiled with, and the settings that come before it."""
    # Not at start: the protobuf runtime takes its time.
    from ..policy import layer_policy
    from ..v1 import layer_pb2

    def named(profile: str | None) -> str:
        """As the proto names it."""
        return (profile or "EXECUTION_PROFILE_UNSPECIFIED").upper().replace("-", "_")

    return layer_pb2.GetPolicyResponse(
        policy=layer_policy(),
        digest=_core.POLICY_DIGEST,
        default_profile=named(settings.profile),
        pinned_profile=named(settings.execution_profile),
        profile_required=settings.profile_contract == "strict",
    )


def get_policy(server: EdgeServer, exchange: Exchange) -> None:
    """As JSON by the names of the proto, or as the message's bytes."""
    response = policy_response(server.settings)
    if PROTOBUF in exchange.request.field(b"accept"):
        exchange.send(200, [("content-type", PROTOBUF)], response.SerializeToString())
        return
    from google.protobuf.json_format import MessageToJson

    text = MessageToJson(
        response,
        preserving_proto_field_name=True,
        indent=None,
        always_print_fields_with_no_presence=True,
    )
    exchange.send(200, [JSON_TYPE], text.encode())
