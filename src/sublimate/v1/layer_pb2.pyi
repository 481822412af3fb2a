from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExecutionProfile(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXECUTION_PROFILE_UNSPECIFIED: _ClassVar[ExecutionProfile]
    LOW_LATENCY: _ClassVar[ExecutionProfile]
    HIGH_THROUGHPUT: _ClassVar[ExecutionProfile]
    LONG_CONTEXT: _ClassVar[ExecutionProfile]

class SplitAlgorithm(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPLIT_ALGORITHM_UNSPECIFIED: _ClassVar[SplitAlgorithm]
    UNIFORM: _ClassVar[SplitAlgorithm]
    SEMANTIC: _ClassVar[SplitAlgorithm]
EXECUTION_PROFILE_UNSPECIFIED: ExecutionProfile
LOW_LATENCY: ExecutionProfile
HIGH_THROUGHPUT: ExecutionProfile
LONG_CONTEXT: ExecutionProfile
SPLIT_ALGORITHM_UNSPECIFIED: SplitAlgorithm
UNIFORM: SplitAlgorithm
SEMANTIC: SplitAlgorithm
POLICY_FIELD_NUMBER: _ClassVar[int]
policy: _descriptor.FieldDescriptor
CALL_FIELD_NUMBER: _ClassVar[int]
call: _descriptor.FieldDescriptor

class ProfilePolicy(_message.Message):
    __slots__ = ("profile", "decode_rows_max", "decode_rows_beside_short_prompt", "step_rows_max", "step_percent", "step_percent_max", "short_prompt_weight", "prefill_rows_min", "prompts_at_once", "priority")
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    DECODE_ROWS_MAX_FIELD_NUMBER: _ClassVar[int]
    DECODE_ROWS_BESIDE_SHORT_PROMPT_FIELD_NUMBER: _ClassVar[int]
    STEP_ROWS_MAX_FIELD_NUMBER: _ClassVar[int]
    STEP_PERCENT_FIELD_NUMBER: _ClassVar[int]
    STEP_PERCENT_MAX_FIELD_NUMBER: _ClassVar[int]
    SHORT_PROMPT_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    PREFILL_ROWS_MIN_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_AT_ONCE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    profile: ExecutionProfile
    decode_rows_max: int
    decode_rows_beside_short_prompt: int
    step_rows_max: int
    step_percent: int
    step_percent_max: int
    short_prompt_weight: int
    prefill_rows_min: int
    prompts_at_once: int
    priority: int
    def __init__(self, profile: _Optional[_Union[ExecutionProfile, str]] = ..., decode_rows_max: _Optional[int] = ..., decode_rows_beside_short_prompt: _Optional[int] = ..., step_rows_max: _Optional[int] = ..., step_percent: _Optional[int] = ..., step_percent_max: _Optional[int] = ..., short_prompt_weight: _Optional[int] = ..., prefill_rows_min: _Optional[int] = ..., prompts_at_once: _Optional[int] = ..., priority: _Optional[int] = ...) -> None: ...

class LayerPolicy(_message.Message):
    __slots__ = ("max_tokens_per_shard", "fallback_cpu_threshold", "split_algorithm", "semantic_system_characters_min", "semantic_shard_percent_min", "attention_block_tokens", "characters_per_token", "short_prompt_tokens", "ageing_steps", "local_cores_min", "local_memory_mib_min", "profiles")
    MAX_TOKENS_PER_SHARD_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_CPU_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    SPLIT_ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    SEMANTIC_SYSTEM_CHARACTERS_MIN_FIELD_NUMBER: _ClassVar[int]
    SEMANTIC_SHARD_PERCENT_MIN_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHARACTERS_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SHORT_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    AGEING_STEPS_FIELD_NUMBER: _ClassVar[int]
    LOCAL_CORES_MIN_FIELD_NUMBER: _ClassVar[int]
    LOCAL_MEMORY_MIB_MIN_FIELD_NUMBER: _ClassVar[int]
    PROFILES_FIELD_NUMBER: _ClassVar[int]
    max_tokens_per_shard: int
    fallback_cpu_threshold: float
    split_algorithm: SplitAlgorithm
    semantic_system_characters_min: int
    semantic_shard_percent_min: int
    attention_block_tokens: int
    characters_per_token: int
    short_prompt_tokens: int
    ageing_steps: int
    local_cores_min: int
    local_memory_mib_min: int
    profiles: _containers.RepeatedCompositeFieldContainer[ProfilePolicy]
    def __init__(self, max_tokens_per_shard: _Optional[int] = ..., fallback_cpu_threshold: _Optional[float] = ..., split_algorithm: _Optional[_Union[SplitAlgorithm, str]] = ..., semantic_system_characters_min: _Optional[int] = ..., semantic_shard_percent_min: _Optional[int] = ..., attention_block_tokens: _Optional[int] = ..., characters_per_token: _Optional[int] = ..., short_prompt_tokens: _Optional[int] = ..., ageing_steps: _Optional[int] = ..., local_cores_min: _Optional[int] = ..., local_memory_mib_min: _Optional[int] = ..., profiles: _Optional[_Iterable[_Union[ProfilePolicy, _Mapping]]] = ...) -> None: ...

class CallPolicy(_message.Message):
    __slots__ = ("replay_safe", "deadline_ms")
    REPLAY_SAFE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    replay_safe: bool
    deadline_ms: int
    def __init__(self, replay_safe: _Optional[bool] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class GetPolicyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetPolicyResponse(_message.Message):
    __slots__ = ("policy", "digest", "default_profile", "pinned_profile", "profile_required")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_PROFILE_FIELD_NUMBER: _ClassVar[int]
    PINNED_PROFILE_FIELD_NUMBER: _ClassVar[int]
    PROFILE_REQUIRED_FIELD_NUMBER: _ClassVar[int]
    policy: LayerPolicy
    digest: str
    default_profile: ExecutionProfile
    pinned_profile: ExecutionProfile
    profile_required: bool
    def __init__(self, policy: _Optional[_Union[LayerPolicy, _Mapping]] = ..., digest: _Optional[str] = ..., default_profile: _Optional[_Union[ExecutionProfile, str]] = ..., pinned_profile: _Optional[_Union[ExecutionProfile, str]] = ..., profile_required: _Optional[bool] = ...) -> None: ...
