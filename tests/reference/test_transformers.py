"""Logits of random tiny checkpoints against transformers on the dequantised weights: every weight
type, every kind of rotary embedding, shared and unshared KV heads, several head sizes.

The exact mode must be near in every single logit, the default mode in the norm of all of them.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sublimate import _core

pytestmark = pytest.mark.reference
if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers", "gguf")):
    pytest.skip("torch and transformers are not installed", allow_module_level=True)
sys.path.insert(0, str(Path(__file__).parent))
from checkpoints import (  # noqa: E402
    CONTEXT,
    RANDOM_BLOCKS,
    TYPES,
    Checkpoint,
    Shape,
    relative_error,
    worst_error,
)
from families import FAMILIES, WINDOW, FamilyCheckpoint  # noqa: E402

EXACT_BAR, DEFAULT_BAR = 1e-3, 2e-2
LENGTH = 200  # beyond the original context of the stretched kinds
ROPES = ("none", "linear", "yarn", "llama3")
SHAPES = {
    "grouped": Shape(),
    "unshared": Shape(kv_heads=4),
    "one KV head": Shape(kv_heads=1, tied=True),
    "head 64": Shape(heads=3, kv_heads=1, head_dim=64, hidden=192),
    "head 128": Shape(heads=2, kv_heads=1, head_dim=128, hidden=256),
    "head 48": Shape(heads=2, kv_heads=2, head_dim=48, hidden=96),
    "head 80": Shape(heads=2, kv_heads=2, head_dim=80, hidden=160, feed_forward=416),
    "three layers": Shape(layers=3, vocabulary=1000, tied=True),
    "whole blocks of 256": Shape(head_dim=64, hidden=256, feed_forward=512),
}
FAMILIES_AND_TYPES = [
    *((name, kind) for name in FAMILIES for kind in ("F32", "BF16", "Q4_0", "Q4_K", "Q6_K")),
    *(("qwen3", "Q2_K"), ("phi3", "IQ4_XS"), ("gemma2", "IQ4_XS")),
]


def check(path: Path, shape: Shape, kind: str, rope: str, record: Any) -> None:
    compare(path, shape, Checkpoint(path, shape, kind, rope, seed=7), record)


def compare(path: Path, shape: Shape, checkpoint: Any, record: Any) -> None:
    ids = np.random.default_rng(1).integers(0, shape.vocabulary, LENGTH).tolist()
    reference = checkpoint.logits(ids)
    for exact, bar in ((True, EXACT_BAR), (False, DEFAULT_BAR)):
        model = _core.Model.load(str(path), exact=exact, kv_bytes=1 << 20, threads=1)
        assert model.info["context_length"] == CONTEXT
        for decode in (False, True):
            logits = model.logits(ids, decode=decode)
            error = (worst_error if exact else relative_error)(logits, reference)
            record("exact" if exact else "default", f"{error:.6f}")
            assert error <= bar, f"{'exact' if exact else 'default'}: {error:.5f} > {bar}"


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("kind", list(TYPES))
def test_types_and_rotary_embeddings(
    tmp_path: Path, kind: str, rope: str, record_property: Any
) -> None:
    shape = SHAPES["whole blocks of 256" if kind in RANDOM_BLOCKS else "grouped"]
    check(tmp_path / "model.gguf", shape, kind, rope, record_property)


@pytest.mark.parametrize("kind", ["F32", "Q4_1"])
@pytest.mark.parametrize("name", list(SHAPES))
def test_shapes(tmp_path: Path, name: str, kind: str, record_property: Any) -> None:
    check(tmp_path / "model.gguf", SHAPES[name], kind, "none", record_property)


@pytest.mark.parametrize(("name", "kind"), FAMILIES_AND_TYPES)
def test_architectures(tmp_path: Path, name: str, kind: str, record_property: Any) -> None:
    """Longer than the window where there is one: most rows do not see the first ones."""
    assert LENGTH > 2 * WINDOW
    path = tmp_path / "model.gguf"
    shape = SHAPES["whole blocks of 256" if kind in RANDOM_BLOCKS else "grouped"]
    compare(path, shape, FamilyCheckpoint(path, name, shape, kind), record_property)


def test_the_reference_can_tell_a_wrong_file(tmp_path: Path) -> None:
    """A checkpoint with another rotary base differs by far more than the bars."""
    shape = SHAPES["grouped"]
    checkpoint = Checkpoint(tmp_path / "model.gguf", shape, "F32", "none", seed=7)
    other = Checkpoint(tmp_path / "other.gguf", shape, "F32", "linear", seed=7)
    ids = list(range(100))
    model = _core.Model.load(str(tmp_path / "other.gguf"), exact=True, kv_bytes=1 << 20, threads=1)
    assert worst_error(model.logits(ids), other.logits(ids)) <= EXACT_BAR
    assert worst_error(model.logits(ids), checkpoint.logits(ids)) > 10 * DEFAULT_BAR
