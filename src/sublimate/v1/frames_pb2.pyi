from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StopReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STOP_REASON_UNSPECIFIED: _ClassVar[StopReason]
    STOP_REASON_END_TURN: _ClassVar[StopReason]
    STOP_REASON_MAX_TOKENS: _ClassVar[StopReason]
    STOP_REASON_STOP_SEQUENCE: _ClassVar[StopReason]
    STOP_REASON_TOOL_USE: _ClassVar[StopReason]
    STOP_REASON_MODEL_CONTEXT_WINDOW_EXCEEDED: _ClassVar[StopReason]
    STOP_REASON_REFUSAL: _ClassVar[StopReason]
    STOP_REASON_PAUSE_TURN: _ClassVar[StopReason]
STOP_REASON_UNSPECIFIED: StopReason
STOP_REASON_END_TURN: StopReason
STOP_REASON_MAX_TOKENS: StopReason
STOP_REASON_STOP_SEQUENCE: StopReason
STOP_REASON_TOOL_USE: StopReason
STOP_REASON_MODEL_CONTEXT_WINDOW_EXCEEDED: StopReason
STOP_REASON_REFUSAL: StopReason
STOP_REASON_PAUSE_TURN: StopReason

class StreamEvent(_message.Message):
    __slots__ = ("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "message_stop", "ping", "error")
    MESSAGE_START_FIELD_NUMBER: _ClassVar[int]
    CONTENT_BLOCK_START_FIELD_NUMBER: _ClassVar[int]
    CONTENT_BLOCK_DELTA_FIELD_NUMBER: _ClassVar[int]
    CONTENT_BLOCK_STOP_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_DELTA_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_STOP_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    message_start: MessageStart
    content_block_start: ContentBlockStart
    content_block_delta: ContentBlockDelta
    content_block_stop: ContentBlockStop
    message_delta: MessageDelta
    message_stop: MessageStop
    ping: Ping
    error: Error
    def __init__(self, message_start: _Optional[_Union[MessageStart, _Mapping]] = ..., content_block_start: _Optional[_Union[ContentBlockStart, _Mapping]] = ..., content_block_delta: _Optional[_Union[ContentBlockDelta, _Mapping]] = ..., content_block_stop: _Optional[_Union[ContentBlockStop, _Mapping]] = ..., message_delta: _Optional[_Union[MessageDelta, _Mapping]] = ..., message_stop: _Optional[_Union[MessageStop, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class MessageStart(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: Message
    def __init__(self, message: _Optional[_Union[Message, _Mapping]] = ...) -> None: ...

class ContentBlockStart(_message.Message):
    __slots__ = ("index", "content_block")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    CONTENT_BLOCK_FIELD_NUMBER: _ClassVar[int]
    index: int
    content_block: ContentBlock
    def __init__(self, index: _Optional[int] = ..., content_block: _Optional[_Union[ContentBlock, _Mapping]] = ...) -> None: ...

class ContentBlockDelta(_message.Message):
    __slots__ = ("index", "text", "thinking", "signature", "partial_json")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_JSON_FIELD_NUMBER: _ClassVar[int]
    index: int
    text: str
    thinking: str
    signature: str
    partial_json: str
    def __init__(self, index: _Optional[int] = ..., text: _Optional[str] = ..., thinking: _Optional[str] = ..., signature: _Optional[str] = ..., partial_json: _Optional[str] = ...) -> None: ...

class ContentBlockStop(_message.Message):
    __slots__ = ("index",)
    INDEX_FIELD_NUMBER: _ClassVar[int]
    index: int
    def __init__(self, index: _Optional[int] = ...) -> None: ...

class MessageDelta(_message.Message):
    __slots__ = ("stop_reason", "stop_sequence", "usage", "context_management")
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_MANAGEMENT_FIELD_NUMBER: _ClassVar[int]
    stop_reason: StopReason
    stop_sequence: str
    usage: Usage
    context_management: ContextManagement
    def __init__(self, stop_reason: _Optional[_Union[StopReason, str]] = ..., stop_sequence: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., context_management: _Optional[_Union[ContextManagement, _Mapping]] = ...) -> None: ...

class MessageStop(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Ping(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Error(_message.Message):
    __slots__ = ("type", "message", "request_id", "error_code")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_CODE_FIELD_NUMBER: _ClassVar[int]
    type: str
    message: str
    request_id: str
    error_code: str
    def __init__(self, type: _Optional[str] = ..., message: _Optional[str] = ..., request_id: _Optional[str] = ..., error_code: _Optional[str] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("id", "model", "content", "stop_reason", "stop_sequence", "usage", "diagnostics", "context_management")
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    DIAGNOSTICS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_MANAGEMENT_FIELD_NUMBER: _ClassVar[int]
    id: str
    model: str
    content: _containers.RepeatedCompositeFieldContainer[ContentBlock]
    stop_reason: StopReason
    stop_sequence: str
    usage: Usage
    diagnostics: Diagnostics
    context_management: ContextManagement
    def __init__(self, id: _Optional[str] = ..., model: _Optional[str] = ..., content: _Optional[_Iterable[_Union[ContentBlock, _Mapping]]] = ..., stop_reason: _Optional[_Union[StopReason, str]] = ..., stop_sequence: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., diagnostics: _Optional[_Union[Diagnostics, _Mapping]] = ..., context_management: _Optional[_Union[ContextManagement, _Mapping]] = ...) -> None: ...

class ContentBlock(_message.Message):
    __slots__ = ("text", "thinking", "tool_use")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    TOOL_USE_FIELD_NUMBER: _ClassVar[int]
    text: TextBlock
    thinking: ThinkingBlock
    tool_use: ToolUseBlock
    def __init__(self, text: _Optional[_Union[TextBlock, _Mapping]] = ..., thinking: _Optional[_Union[ThinkingBlock, _Mapping]] = ..., tool_use: _Optional[_Union[ToolUseBlock, _Mapping]] = ...) -> None: ...

class TextBlock(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class ThinkingBlock(_message.Message):
    __slots__ = ("thinking", "signature")
    THINKING_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    thinking: str
    signature: str
    def __init__(self, thinking: _Optional[str] = ..., signature: _Optional[str] = ...) -> None: ...

class ToolUseBlock(_message.Message):
    __slots__ = ("id", "name", "input")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    input: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., input: _Optional[str] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens", "cache_creation", "output_tokens_details", "service_tier")
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_CREATION_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_READ_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_CREATION_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_DETAILS_FIELD_NUMBER: _ClassVar[int]
    SERVICE_TIER_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    cache_creation: CacheCreation
    output_tokens_details: OutputTokensDetails
    service_tier: str
    def __init__(self, input_tokens: _Optional[int] = ..., cache_creation_input_tokens: _Optional[int] = ..., cache_read_input_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., cache_creation: _Optional[_Union[CacheCreation, _Mapping]] = ..., output_tokens_details: _Optional[_Union[OutputTokensDetails, _Mapping]] = ..., service_tier: _Optional[str] = ...) -> None: ...

class CacheCreation(_message.Message):
    __slots__ = ("ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
    EPHEMERAL_5M_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EPHEMERAL_1H_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ephemeral_5m_input_tokens: int
    ephemeral_1h_input_tokens: int
    def __init__(self, ephemeral_5m_input_tokens: _Optional[int] = ..., ephemeral_1h_input_tokens: _Optional[int] = ...) -> None: ...

class OutputTokensDetails(_message.Message):
    __slots__ = ("thinking_tokens",)
    THINKING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    thinking_tokens: int
    def __init__(self, thinking_tokens: _Optional[int] = ...) -> None: ...

class Diagnostics(_message.Message):
    __slots__ = ("cache_miss_reason",)
    CACHE_MISS_REASON_FIELD_NUMBER: _ClassVar[int]
    cache_miss_reason: CacheMissReason
    def __init__(self, cache_miss_reason: _Optional[_Union[CacheMissReason, _Mapping]] = ...) -> None: ...

class CacheMissReason(_message.Message):
    __slots__ = ("type", "cache_missed_input_tokens")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CACHE_MISSED_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    type: str
    cache_missed_input_tokens: int
    def __init__(self, type: _Optional[str] = ..., cache_missed_input_tokens: _Optional[int] = ...) -> None: ...

class ContextManagement(_message.Message):
    __slots__ = ("applied_edits",)
    APPLIED_EDITS_FIELD_NUMBER: _ClassVar[int]
    applied_edits: _containers.RepeatedCompositeFieldContainer[AppliedEdit]
    def __init__(self, applied_edits: _Optional[_Iterable[_Union[AppliedEdit, _Mapping]]] = ...) -> None: ...

class AppliedEdit(_message.Message):
    __slots__ = ("type", "cleared_input_tokens", "cleared_thinking_turns", "cleared_tool_uses")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CLEARED_INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CLEARED_THINKING_TURNS_FIELD_NUMBER: _ClassVar[int]
    CLEARED_TOOL_USES_FIELD_NUMBER: _ClassVar[int]
    type: str
    cleared_input_tokens: int
    cleared_thinking_turns: int
    cleared_tool_uses: int
    def __init__(self, type: _Optional[str] = ..., cleared_input_tokens: _Optional[int] = ..., cleared_thinking_turns: _Optional[int] = ..., cleared_tool_uses: _Optional[int] = ...) -> None: ...
