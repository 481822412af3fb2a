"""grpc.reflection: which services there are, and the files that describe them, for tools that have
no .proto. v1 and v1alpha differ in their names alone.

defines: REFLECTION, REFLECTION_ALPHA, Reflection
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.message import DecodeError
from grpc_reflection.v1alpha import reflection_pb2

from ...edge.errors import ApiError, grpc_code
from ...edge.grpc.call import Call
from ...edge.grpc.route import check_access
from ...v1 import messages_pb2

REFLECTION = "grpc.reflection.v1.ServerReflection"
REFLECTION_ALPHA = "grpc.reflection.v1alpha.ServerReflection"
DOCUMENT_TARGET = b"/openapi.json"
"""Says as much of the HTTP API: who may read that may read this."""


class Reflection:
    """An answer to each message, in order."""

    def __init__(self, services: Sequence[str], call: Call) -> None:
        """Raises ApiError for who may not ask."""
        check_access(call, DOCUMENT_TARGET)
        self._services = services
        self._call = call
        self._pool: Any = messages_pb2.DESCRIPTOR.pool or descriptor_pool.Default()

    def message(self, data: bytes) -> None:
        try:
            request: Any = reflection_pb2.ServerReflectionRequest.FromString(data)
        except DecodeError:
            raise ApiError("call_message") from None
        answer: Any = reflection_pb2.ServerReflectionResponse(
            valid_host=request.host, original_request=request
        )
        try:
            self._fill(answer, request)
        except KeyError:
            error = ApiError("call_not_described")
            answer.error_response.error_code = grpc_code(error.kind)
            answer.error_response.error_message = error.text
        self._call.reply([answer.SerializeToString()])

    def end(self) -> None:
        self._call.complete()

    def gone(self, error: ApiError | None) -> None:
        """Nothing runs for it."""

    # ---- what is asked -------------------------------------------------------------------------
    def _fill(self, answer: Any, request: Any) -> None:
        """Raises KeyError for what is not described here."""
        known = self._files()
        match request.WhichOneof("message_request"):
            case "list_services":
                for name in self._services:
                    answer.list_services_response.service.add(name=name)
            case "file_by_filename":
                self._tell(answer, known[request.file_by_filename])
            case "file_containing_symbol":
                self._tell(answer, known[self._file_of(request.file_containing_symbol).name])
            case "file_containing_extension":
                asked = request.file_containing_extension
                kind = self._pool.FindMessageTypeByName(asked.containing_type)
                found = self._pool.FindExtensionByNumber(kind, asked.extension_number)
                self._tell(answer, known[found.file.name])
            case "all_extension_numbers_of_type":
                name = request.all_extension_numbers_of_type
                kind = self._pool.FindMessageTypeByName(name)
                told = answer.all_extension_numbers_response
                told.base_type_name = name
                found = self._pool.FindAllExtensions(kind)
                told.extension_number.extend(
                    sorted(one.number for one in found if one.file.name in known)
                )
            case _:
                raise KeyError

    def _file_of(self, symbol: str) -> Any:
        """Raises KeyError."""
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:
            return self._pool.FindMethodByName(symbol).containing_service.file

    def _files(self) -> dict[str, Any]:
        """By name, those that the services need: not all that this process has loaded."""
        known: dict[str, Any] = {}
        wanted = [self._pool.FindServiceByName(name).file for name in self._services]
        while wanted:
            file = wanted.pop()
            if file.name not in known:
                known[file.name] = file
                wanted += file.dependencies
        return known

    def _tell(self, answer: Any, file: Any) -> None:
        """The file and all that it imports, itself first."""
        told: dict[str, bytes] = {}
        wanted = [file]
        while wanted:
            one = wanted.pop()
            if one.name not in told:
                told[one.name] = one.serialized_pb
                wanted += one.dependencies
        answer.file_descriptor_response.file_descriptor_proto.extend(told.values())
