"""The `tokenizers` library, in one place: it reads a setting of its own when it is first imported.

defines: AddedToken, Backend, Regex, models, normalizers, pre_tokenizers
"""

import os

# It would otherwise start a thread per core, beside the engine's own.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

__all__ = ["AddedToken", "Backend", "Regex", "models", "normalizers", "pre_tokenizers"]
