"""A model file with the tiny tokenizer and hardly anything else.

defines: write_tiny
"""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tiny_model import tiny_metadata


def write_tiny(path: Path, **changes: Any) -> str:
    """changes: as of tiny_metadata. Returns the path."""
    writer = gguf.GGUFWriter(str(path), "llama")
    metadata = tiny_metadata(**changes)
    writer.add_name(metadata["general.name"])
    writer.add_tokenizer_model(metadata["tokenizer.ggml.model"])
    writer.add_tokenizer_pre(metadata["tokenizer.ggml.pre"])
    writer.add_token_list(metadata["tokenizer.ggml.tokens"])
    writer.add_token_types(metadata["tokenizer.ggml.token_type"])
    writer.add_token_merges(metadata["tokenizer.ggml.merges"])
    writer.add_bos_token_id(metadata["tokenizer.ggml.bos_token_id"])
    writer.add_eos_token_id(metadata["tokenizer.ggml.eos_token_id"])
    writer.add_add_bos_token(False)
    writer.add_chat_template(metadata["tokenizer.chat_template"])
    writer.add_tensor("token_embd.weight", np.zeros((1, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)
