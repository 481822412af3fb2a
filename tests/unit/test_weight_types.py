"""Every weight of every type against the gguf package's own reading of the same random blocks.

The model has layers of zeros and an identity for its head, so that its logits are the normalised
embedding of each token: from the file's blocks in the exact mode, from packed panels in the other.
"""

import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from numpy.typing import NDArray

from sublimate import _core

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from random_blocks import BLOCKS, random_blocks

TOKENS, HIDDEN = 64, 512
EPSILON = 1e-5


def write_file(path: Path, kind: str) -> NDArray[np.float32]:
    """Returns the embedding as the gguf package dequantises it."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_block_count(1)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(32)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_key_length(HIDDEN // 4)
    writer.add_value_length(HIDDEN // 4)
    writer.add_layer_norm_rms_eps(EPSILON)
    quantised = gguf.GGMLQuantizationType[kind]
    blocks = random_blocks(kind, HIDDEN, HIDDEN, 1.0, np.random.default_rng(3))
    writer.add_tensor("token_embd.weight", blocks, raw_dtype=quantised)
    writer.add_tensor("output.weight", np.eye(HIDDEN, dtype=np.float32))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, dtype=np.float32))
    for name in ("q", "k", "v", "output"):
        zeros = np.zeros((HIDDEN, HIDDEN), dtype=np.float32)
        writer.add_tensor(f"blk.0.attn_{name}.weight", zeros)
    for name, shape in (("gate", (32, HIDDEN)), ("up", (32, HIDDEN)), ("down", (HIDDEN, 32))):
        writer.add_tensor(f"blk.0.ffn_{name}.weight", np.zeros(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return np.asarray(dequantize(blocks, quantised), dtype=np.float32).reshape(HIDDEN, HIDDEN)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("kind", list(BLOCKS))
def test_every_weight_is_what_the_format_says(tmp_path: Path, kind: str, exact: bool) -> None:
    embedding = write_file(tmp_path / "model.gguf", kind)
    model = _core.Model.load(str(tmp_path / "model.gguf"), exact=exact, kv_bytes=4 << 20, threads=1)
    for first in range(0, HIDDEN, TOKENS):
        rows = embedding[first : first + TOKENS]
        mean = np.square(rows.astype(np.float64)).mean(axis=1, keepdims=True)
        logits = model.logits(list(range(first, first + TOKENS)))
        wanted = rows / np.sqrt(mean + EPSILON)
        np.testing.assert_allclose(logits, wanted, rtol=3e-6, atol=1e-7)
