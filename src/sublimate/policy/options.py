"""The policy as the descriptor has it: what a client of any language reads.

defines: POLICY, CALL, layer_policy, digest, call_policy
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Any

from google.protobuf.descriptor import MethodDescriptor

from ..v1 import layer_pb2

# What protoc writes says only FieldDescriptor of an extension.
POLICY: Any = layer_pb2.policy
CALL: Any = layer_pb2.call


@cache
def layer_policy() -> layer_pb2.LayerPolicy:
    """The option of `service Layer` (proto/sublimate/v1/layer.proto)."""
    service = layer_pb2.DESCRIPTOR.services_by_name["Layer"]
    return service.GetOptions().Extensions[POLICY]


@cache
def digest() -> str:
    """SHA-256 of the policy's bytes, in hex. A response whose X-Layer-Config is another came from a
    server with other numbers."""
    return hashlib.sha256(layer_policy().SerializeToString(deterministic=True)).hexdigest()


def call_policy(method: MethodDescriptor) -> layer_pb2.CallPolicy:
    """What a client may do with a call of the method; all is 0 where its proto says nothing."""
    return method.GetOptions().Extensions[CALL]
