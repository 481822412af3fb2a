"""A model's text side in a few lines: one token per byte, control tokens and template of the
default model. Token ids are easy to script, and no file is needed.

defines: TINY_TEMPLATE, tiny_metadata, tiny_model, ids, STOP
"""

from typing import Any

from sublimate.edge.textmodel import TextModel, text_model_from_metadata
from sublimate.model.byte_level import byte_characters
from sublimate.model.vocabulary import TokenType

NAME = "tiny"
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
STOP = 2
TINY_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a test<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_metadata(**changes: Any) -> dict[str, Any]:
    """GGUF metadata; changes by key without the leading "tokenizer."."""
    characters = {value: chr(code) for code, value in byte_characters().items()}
    tokens = [*CONTROL, *(characters[value] for value in range(256)), "QQ"]
    types = [TokenType.CONTROL] * len(CONTROL) + [TokenType.NORMAL] * (len(tokens) - len(CONTROL))
    metadata = {
        "general.name": "Tiny Test",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": ["Q Q"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": STOP,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TINY_TEMPLATE,
    }
    metadata.update({f"tokenizer.{key}": value for key, value in changes.items()})
    return metadata


def tiny_model(**changes: Any) -> TextModel:
    return text_model_from_metadata(NAME, tiny_metadata(**changes))


def ids(text: str | bytes) -> list[int]:
    """One id per byte."""
    raw = text.encode() if isinstance(text, str) else text
    return [len(CONTROL) + value for value in raw]
