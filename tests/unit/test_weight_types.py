"""Every weight of every type against the gguf package's own reading of the same random blocks; and
the files of random weights that are made to measure with.

The model of the first has layers of zeros and an identity for its head, so that its logits are the
normalised embedding of each token: from the file's blocks in the exact mode, else from panels.
"""

import os
import subprocess
import sys
from pathlib import Path

import gguf
import msgspec
import numpy as np
import pytest
from gguf.quants import dequantize
from numpy.typing import NDArray

from sublimate import _core

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from random_blocks import BLOCKS, random_blocks
from random_model import TYPES, Shape, write_model

BENCH = Path(__file__).resolve().parents[2] / "bench"
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


def write_tokenizer_only(path: Path) -> Path:
    tokenizer = gguf.GGUFWriter(path, "llama")
    tokenizer.add_tokenizer_model("gpt2")
    tokenizer.add_token_list(["a", "b", "c"])
    tokenizer.add_token_types([1, 1, 3])
    tokenizer.add_token_merges(["a b"])
    tokenizer.add_eos_token_id(2)
    tokenizer.write_header_to_file()
    tokenizer.write_kv_data_to_file()
    tokenizer.write_tensors_to_file()
    tokenizer.close()
    return path


@pytest.mark.parametrize("kind", TYPES)
def test_files_of_random_weights_load_and_stay_finite(tmp_path: Path, kind: str) -> None:
    tokenizer = write_tokenizer_only(tmp_path / "tokenizer.gguf")
    shape = Shape(256, 8, 4, 2, 64, 512, 40, 128, 10000.0)
    write_model(tmp_path / "model.gguf", shape, kind, tokenizer)
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    assert len(reader.fields["tokenizer.ggml.tokens"].contents()) == shape.vocabulary
    held = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    if kind == "q4_k_m":
        values = [held[f"blk.{i}.attn_v.weight"] for i in range(8)]
        assert values == ["Q6_K", "Q4_K", "Q4_K", "Q6_K", "Q4_K", "Q4_K", "Q6_K", "Q6_K"]
        assert held["token_embd.weight"] == "Q6_K" and held["blk.0.ffn_up.weight"] == "Q4_K"
    else:
        assert held["blk.3.ffn_down.weight"] == held["token_embd.weight"] == kind.upper()
    model = _core.Model.load(str(tmp_path / "model.gguf"), kv_bytes=4 << 20, threads=1)
    logits = model.logits(list(range(shape.vocabulary)))
    assert np.isfinite(logits).all() and 0.05 < float(np.std(logits)) < 50


def block_types(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(part for part in sys.path if part)
    return subprocess.run(
        [sys.executable, str(BENCH / "block_types.py"), *arguments],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path},
    )


def test_types_are_measured_as_files_and_ratios_printed(tmp_path: Path) -> None:
    records = tmp_path / "records"
    for subject, rate in (("sublimate", 30.0), ("llama.cpp", 10.0)):
        turn = {"round": 0, "section": "q2_k", "subject": subject, "figures": {"decode_1": rate}}
        with records.open("ab") as file:
            file.write(msgspec.json.encode(turn) + b"\n")
    tokenizer = write_tokenizer_only(tmp_path / "tokenizer.gguf")
    done = block_types(
        *("--records", str(records), "--rounds", "0", "--types", "q2_k", "--shape", "tiny"),
        *("--models", str(tmp_path / "made"), "--tokenizer", str(tokenizer)),
    )
    assert done.returncode == 0, done.stderr
    made = gguf.GGUFReader(tmp_path / "made" / "tiny-q2_k.gguf")
    assert {tensor.tensor_type.name for tensor in made.tensors} == {"F32", "Q2_K"}
    assert "| q2_k |" in done.stdout and "3.00" in done.stdout
    refused = block_types("--records", str(records), "--types", "q2_k,q9_k")
    assert refused.returncode == 2 and "unknown types: q9_k; known are q8_0" in refused.stderr
