"""The `tokenizers` library, in one place: it reads a setting of its own when it is first imported.

defines: AddedToken, Backend, Regex, models, normalizers, pre_tokenizers, is_refusal
"""

import os

# It would otherwise start a thread per core, beside the engine's own.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

__all__ = [
    "AddedToken",
    "Backend",
    "Regex",
    "is_refusal",
    "models",
    "normalizers",
    "pre_tokenizers",
]


def is_refusal(error: BaseException) -> bool:
    """Whether it is the library's, of what it was given. It raises plain Exception; where it does
    not look, a check of its language stops it, whose exception is none."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"
