from google.protobuf import any_pb2 as _any_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from sublimate.v1 import frames_pb2 as _frames_pb2
from sublimate.v1 import layer_pb2 as _layer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateMessageRequest(_message.Message):
    __slots__ = ("json_body", "model", "max_tokens", "messages", "system", "stop_sequences", "temperature", "top_p", "top_k", "tools", "tool_choice", "thinking", "output_config", "metadata", "execution_profile", "seed", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "extra_body")
    JSON_BODY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SYSTEM_FIELD_NUMBER: _ClassVar[int]
    STOP_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_CONFIG_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_PROFILE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    EXTRA_BODY_FIELD_NUMBER: _ClassVar[int]
    json_body: bytes
    model: str
    max_tokens: int
    messages: _containers.RepeatedCompositeFieldContainer[InputMessage]
    system: str
    stop_sequences: _containers.RepeatedScalarFieldContainer[str]
    temperature: float
    top_p: float
    top_k: int
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    tool_choice: ToolChoice
    thinking: Thinking
    output_config: OutputConfig
    metadata: Metadata
    execution_profile: str
    seed: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    extra_body: _struct_pb2.Struct
    def __init__(self, json_body: _Optional[bytes] = ..., model: _Optional[str] = ..., max_tokens: _Optional[int] = ..., messages: _Optional[_Iterable[_Union[InputMessage, _Mapping]]] = ..., system: _Optional[str] = ..., stop_sequences: _Optional[_Iterable[str]] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ..., tool_choice: _Optional[_Union[ToolChoice, _Mapping]] = ..., thinking: _Optional[_Union[Thinking, _Mapping]] = ..., output_config: _Optional[_Union[OutputConfig, _Mapping]] = ..., metadata: _Optional[_Union[Metadata, _Mapping]] = ..., execution_profile: _Optional[str] = ..., seed: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., extra_body: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class InputMessage(_message.Message):
    __slots__ = ("role", "text", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    text: str
    content: _containers.RepeatedCompositeFieldContainer[InputBlock]
    def __init__(self, role: _Optional[str] = ..., text: _Optional[str] = ..., content: _Optional[_Iterable[_Union[InputBlock, _Mapping]]] = ...) -> None: ...

class InputBlock(_message.Message):
    __slots__ = ("text", "thinking", "tool_use", "tool_result", "image", "document", "block_json")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    TOOL_USE_FIELD_NUMBER: _ClassVar[int]
    TOOL_RESULT_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_JSON_FIELD_NUMBER: _ClassVar[int]
    text: _frames_pb2.TextBlock
    thinking: _frames_pb2.ThinkingBlock
    tool_use: _frames_pb2.ToolUseBlock
    tool_result: ToolResultBlock
    image: ImageBlock
    document: DocumentBlock
    block_json: str
    def __init__(self, text: _Optional[_Union[_frames_pb2.TextBlock, _Mapping]] = ..., thinking: _Optional[_Union[_frames_pb2.ThinkingBlock, _Mapping]] = ..., tool_use: _Optional[_Union[_frames_pb2.ToolUseBlock, _Mapping]] = ..., tool_result: _Optional[_Union[ToolResultBlock, _Mapping]] = ..., image: _Optional[_Union[ImageBlock, _Mapping]] = ..., document: _Optional[_Union[DocumentBlock, _Mapping]] = ..., block_json: _Optional[str] = ...) -> None: ...

class ToolResultBlock(_message.Message):
    __slots__ = ("tool_use_id", "text", "content", "is_error")
    TOOL_USE_ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    tool_use_id: str
    text: str
    content: _containers.RepeatedCompositeFieldContainer[InputBlock]
    is_error: bool
    def __init__(self, tool_use_id: _Optional[str] = ..., text: _Optional[str] = ..., content: _Optional[_Iterable[_Union[InputBlock, _Mapping]]] = ..., is_error: _Optional[bool] = ...) -> None: ...

class ImageBlock(_message.Message):
    __slots__ = ("source",)
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    source: Source
    def __init__(self, source: _Optional[_Union[Source, _Mapping]] = ...) -> None: ...

class DocumentBlock(_message.Message):
    __slots__ = ("source", "title", "context")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    source: Source
    title: str
    context: str
    def __init__(self, source: _Optional[_Union[Source, _Mapping]] = ..., title: _Optional[str] = ..., context: _Optional[str] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("text", "base64", "url", "file")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BASE64_FIELD_NUMBER: _ClassVar[int]
    URL_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    text: TextSource
    base64: Base64Source
    url: UrlSource
    file: FileSource
    def __init__(self, text: _Optional[_Union[TextSource, _Mapping]] = ..., base64: _Optional[_Union[Base64Source, _Mapping]] = ..., url: _Optional[_Union[UrlSource, _Mapping]] = ..., file: _Optional[_Union[FileSource, _Mapping]] = ...) -> None: ...

class TextSource(_message.Message):
    __slots__ = ("data", "media_type")
    DATA_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    data: str
    media_type: str
    def __init__(self, data: _Optional[str] = ..., media_type: _Optional[str] = ...) -> None: ...

class Base64Source(_message.Message):
    __slots__ = ("data", "media_type")
    DATA_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    data: str
    media_type: str
    def __init__(self, data: _Optional[str] = ..., media_type: _Optional[str] = ...) -> None: ...

class UrlSource(_message.Message):
    __slots__ = ("url",)
    URL_FIELD_NUMBER: _ClassVar[int]
    url: str
    def __init__(self, url: _Optional[str] = ...) -> None: ...

class FileSource(_message.Message):
    __slots__ = ("file_id",)
    FILE_ID_FIELD_NUMBER: _ClassVar[int]
    file_id: str
    def __init__(self, file_id: _Optional[str] = ...) -> None: ...

class Tool(_message.Message):
    __slots__ = ("type", "name", "description", "input_schema", "input_schema_json", "strict", "defer_loading")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    INPUT_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    INPUT_SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    DEFER_LOADING_FIELD_NUMBER: _ClassVar[int]
    type: str
    name: str
    description: str
    input_schema: _struct_pb2.Struct
    input_schema_json: str
    strict: bool
    defer_loading: bool
    def __init__(self, type: _Optional[str] = ..., name: _Optional[str] = ..., description: _Optional[str] = ..., input_schema: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., input_schema_json: _Optional[str] = ..., strict: _Optional[bool] = ..., defer_loading: _Optional[bool] = ...) -> None: ...

class ToolChoice(_message.Message):
    __slots__ = ("type", "name", "disable_parallel_tool_use")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DISABLE_PARALLEL_TOOL_USE_FIELD_NUMBER: _ClassVar[int]
    type: str
    name: str
    disable_parallel_tool_use: bool
    def __init__(self, type: _Optional[str] = ..., name: _Optional[str] = ..., disable_parallel_tool_use: _Optional[bool] = ...) -> None: ...

class Thinking(_message.Message):
    __slots__ = ("type", "budget_tokens", "display")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    BUDGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_FIELD_NUMBER: _ClassVar[int]
    type: str
    budget_tokens: int
    display: str
    def __init__(self, type: _Optional[str] = ..., budget_tokens: _Optional[int] = ..., display: _Optional[str] = ...) -> None: ...

class OutputConfig(_message.Message):
    __slots__ = ("effort", "format")
    EFFORT_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    effort: str
    format: OutputFormat
    def __init__(self, effort: _Optional[str] = ..., format: _Optional[_Union[OutputFormat, _Mapping]] = ...) -> None: ...

class OutputFormat(_message.Message):
    __slots__ = ("type", "schema", "schema_json")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    type: str
    schema: _struct_pb2.Struct
    schema_json: str
    def __init__(self, type: _Optional[str] = ..., schema: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., schema_json: _Optional[str] = ...) -> None: ...

class Metadata(_message.Message):
    __slots__ = ("user_id",)
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    user_id: str
    def __init__(self, user_id: _Optional[str] = ...) -> None: ...

class CountTokensResponse(_message.Message):
    __slots__ = ("input_tokens", "context_management")
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_MANAGEMENT_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    context_management: CountedEdits
    def __init__(self, input_tokens: _Optional[int] = ..., context_management: _Optional[_Union[CountedEdits, _Mapping]] = ...) -> None: ...

class CountedEdits(_message.Message):
    __slots__ = ("original_input_tokens",)
    ORIGINAL_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    original_input_tokens: int
    def __init__(self, original_input_tokens: _Optional[int] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ("after_id", "before_id", "limit")
    AFTER_ID_FIELD_NUMBER: _ClassVar[int]
    BEFORE_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after_id: str
    before_id: str
    limit: int
    def __init__(self, after_id: _Optional[str] = ..., before_id: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("data", "has_more", "first_id", "last_id")
    DATA_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    FIRST_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ID_FIELD_NUMBER: _ClassVar[int]
    data: _containers.RepeatedCompositeFieldContainer[Model]
    has_more: bool
    first_id: str
    last_id: str
    def __init__(self, data: _Optional[_Iterable[_Union[Model, _Mapping]]] = ..., has_more: _Optional[bool] = ..., first_id: _Optional[str] = ..., last_id: _Optional[str] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model_id",)
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    model_id: str
    def __init__(self, model_id: _Optional[str] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("id", "display_name", "created_at", "lifecycle", "max_input_tokens", "max_tokens", "capabilities", "template", "created", "owned_by")
    ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    LIFECYCLE_FIELD_NUMBER: _ClassVar[int]
    MAX_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    OWNED_BY_FIELD_NUMBER: _ClassVar[int]
    id: str
    display_name: str
    created_at: str
    lifecycle: str
    max_input_tokens: int
    max_tokens: int
    capabilities: _struct_pb2.Struct
    template: str
    created: int
    owned_by: str
    def __init__(self, id: _Optional[str] = ..., display_name: _Optional[str] = ..., created_at: _Optional[str] = ..., lifecycle: _Optional[str] = ..., max_input_tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., capabilities: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., template: _Optional[str] = ..., created: _Optional[int] = ..., owned_by: _Optional[str] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("code", "message", "details")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    details: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., details: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ...) -> None: ...
