"""tokenizer.model: SentencePiece's own file, a protobuf message.

Source: google/sentencepiece, src/sentencepiece_model.proto; the fields that are read have its
names, numbers and defaults here.

defines: read_sentencepiece
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from ...errors import ModelError
from ..vocabulary import TOKENS_MAX, TokenType
from .documents import VOCABULARY_BYTES_MAX, read_file

PACKAGE = "sublimate.sentencepiece"
Field = descriptor_pb2.FieldDescriptorProto
UNIGRAM, BPE = 1, 2
KINDS = {UNIGRAM: "t5", BPE: "llama"}
"""TrainerSpec.model_type -> value of tokenizer.ggml.model."""
MESSAGES: dict[str, list[tuple[str, int, int, str]]] = {
    "Piece": [
        ("piece", 1, Field.TYPE_STRING, ""),
        ("score", 2, Field.TYPE_FLOAT, ""),
        ("type", 3, Field.TYPE_INT32, "1"),
    ],
    "Trainer": [
        ("model_type", 3, Field.TYPE_INT32, "1"),
        ("unk_id", 40, Field.TYPE_INT32, "0"),
        ("bos_id", 41, Field.TYPE_INT32, "1"),
        ("eos_id", 42, Field.TYPE_INT32, "2"),
    ],
    "Normalizer": [
        ("precompiled_charsmap", 2, Field.TYPE_BYTES, ""),
        ("add_dummy_prefix", 3, Field.TYPE_BOOL, "true"),
        ("remove_extra_whitespaces", 4, Field.TYPE_BOOL, "true"),
        ("escape_whitespaces", 5, Field.TYPE_BOOL, "true"),
    ],
    "Model": [
        ("pieces", 1, Field.TYPE_MESSAGE, "Piece"),
        ("trainer_spec", 2, Field.TYPE_MESSAGE, "Trainer"),
        ("normalizer_spec", 3, Field.TYPE_MESSAGE, "Normalizer"),
    ],
}
"""(name, number, type, default or message) of each field."""


@cache
def _model_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="sublimate/sentencepiece.proto", package=PACKAGE, syntax="proto2"
    )
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, more in fields:
            field = message.field.add(name=field_name, number=number)
            field.type = cast(Any, kind)
            field.label = Field.LABEL_REPEATED if field_name == "pieces" else Field.LABEL_OPTIONAL
            if kind == Field.TYPE_MESSAGE:
                field.type_name = f".{PACKAGE}.{more}"
            elif more:
                field.default_value = more
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.Model"))


def read_sentencepiece(path: Path) -> dict[str, Any]:
    """Metadata of GGUF for the vocabulary. Raises ModelError."""
    model = _model_class()()
    try:
        model.ParseFromString(read_file(path, VOCABULARY_BYTES_MAX))
    except (DecodeError, ValueError):
        raise ModelError(f"{path} is damaged: it is no SentencePiece model.") from None
    pieces = list(model.pieces)
    kind = KINDS.get(model.trainer_spec.model_type)
    if kind is None:
        raise ModelError(f"{path}: of SentencePiece, unigram and BPE models are supported.")
    if not 0 < len(pieces) <= TOKENS_MAX:
        raise ModelError(f"{path} has {len(pieces)} tokens; this server takes 1 to {TOKENS_MAX}.")
    types = [int(piece.type) for piece in pieces]
    if not {*types} <= {kind.value for kind in TokenType}:
        raise ModelError(f"{path} is damaged: a token is of no known type.")
    normalizer, trainer = model.normalizer_spec, model.trainer_spec
    if not normalizer.escape_whitespaces:
        raise ModelError(f"{path}: a vocabulary with plain spaces is not supported.")
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.tokens": [str(piece.piece) for piece in pieces],
        "tokenizer.ggml.scores": [float(piece.score) for piece in pieces],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.add_space_prefix": bool(normalizer.add_dummy_prefix),
        "tokenizer.ggml.remove_extra_whitespaces": bool(normalizer.remove_extra_whitespaces),
        "tokenizer.ggml.unknown_token_id": int(trainer.unk_id),
    }
    if normalizer.precompiled_charsmap:
        metadata["tokenizer.ggml.precompiled_charsmap"] = normalizer.precompiled_charsmap
    for name in ("bos", "eos"):
        token = int(getattr(trainer, f"{name}_id"))
        metadata[f"tokenizer.ggml.{name}_token_id"] = token if 0 <= token < len(pieces) else -1
    return metadata
