"""Hugging Face folders as transformers saves them, against transformers itself: logits of each
architecture in F32, BF16 and F16, and ids of the tokenizers that it has for these families.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from scripts import PHRASES, strings_of_many_scripts
from sublimate import _core
from sublimate.model.conversation import ConversationTokenizer
from sublimate.model.source import files_of, metadata_of
from sublimate.model.template import Rendered
from sublimate.model.tokenizer import tokenizer_from_metadata

pytestmark = pytest.mark.reference
if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers", "gguf")):
    pytest.skip("torch and transformers are not installed", allow_module_level=True)
sys.path.insert(0, str(Path(__file__).parent))
import torch  # noqa: E402
import transformers  # noqa: E402
from checkpoints import (  # noqa: E402
    CONTEXT,
    Checkpoint,
    Shape,
    relative_error,
    worst_error,
)
from families import FAMILIES, WINDOW, FamilyCheckpoint  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers, trainers  # noqa: E402

EXACT_BAR, DEFAULT_BAR = 1e-3, 2e-2
LENGTH = 200
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def compare(folder: Path, kind: type, vocabulary: int, record: Any) -> None:
    """Prefill and decode, exact and default, of the weights as they were saved."""
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    ids = np.random.default_rng(1).integers(0, vocabulary, LENGTH).tolist()
    with torch.no_grad():
        reference = model(torch.tensor([ids])).logits[0].numpy()
    found = files_of(str(folder))
    for exact, bar in ((True, EXACT_BAR), (False, DEFAULT_BAR)):
        loaded = _core.Model.load(
            str(folder),
            exact=exact,
            kv_bytes=1 << 20,
            threads=1,
            header=found.header,
            files=found.files,
        )
        assert loaded.info["context_length"] == CONTEXT
        for decode in (False, True):
            logits = loaded.logits(ids, decode=decode)
            error = (worst_error if exact else relative_error)(logits, reference)
            record("exact" if exact else "default", f"{error:.6f}")
            assert error <= bar, f"{'exact' if exact else 'default'}: {error:.5f} > {bar}"


def saved(model: Any, folder: Path, dtype: str, **more: Any) -> Path:
    model.to(DTYPES[dtype]).save_pretrained(folder, **more)
    return folder


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("name", list(FAMILIES))
def test_architectures(tmp_path: Path, name: str, dtype: str, record_property: Any) -> None:
    """Longer than the window where there is one."""
    assert LENGTH > 2 * WINDOW
    shape = Shape()
    model = FamilyCheckpoint(tmp_path / "model.gguf", name, shape, "F32").model
    folder = saved(model, tmp_path / "model", dtype)
    compare(folder, type(model), shape.vocabulary, record_property)


@pytest.mark.parametrize("rope", ["none", "linear", "yarn", "llama3"])
def test_llama_with_each_rotary_embedding(tmp_path: Path, rope: str, record_property: Any) -> None:
    shape = Shape(tied=rope == "linear")
    model = Checkpoint(tmp_path / "model.gguf", shape, "F32", rope, seed=7).model
    folder = saved(model, tmp_path / "model", "BF16", max_shard_size="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    compare(folder, type(model), shape.vocabulary, record_property)


def test_a_window_that_is_longer_than_the_context(tmp_path: Path, record_property: Any) -> None:
    """Layers that have one rotate otherwise all the same."""
    shape = Shape()
    checkpoint = FamilyCheckpoint(tmp_path / "model.gguf", "gemma3", shape, "F32")
    config = checkpoint.model.config
    config.sliding_window = 2 * CONTEXT
    model = transformers.Gemma3ForCausalLM(config)
    model.load_state_dict(checkpoint.state, strict=True)
    folder = saved(model, tmp_path / "model", "F32")
    compare(folder, type(model), shape.vocabulary, record_property)


def test_the_text_of_a_model_that_also_sees(tmp_path: Path, record_property: Any) -> None:
    shape = Shape()
    checkpoint = FamilyCheckpoint(tmp_path / "model.gguf", "gemma3", shape, "F32")
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}
    vision = transformers.SiglipVisionConfig(
        **sizes, num_hidden_layers=1, image_size=28, patch_size=14
    )
    config = transformers.Gemma3Config(
        text_config=checkpoint.model.config, vision_config=vision, mm_tokens_per_image=4
    )
    model = transformers.Gemma3ForConditionalGeneration(config)
    text = {name.removeprefix("model."): tensor for name, tensor in checkpoint.state.items()}
    text.pop("lm_head.weight")
    model.model.language_model.load_state_dict(text, strict=True)
    folder = saved(model, tmp_path / "model", "BF16")
    compare(folder, type(model), shape.vocabulary, record_property)


# ---- tokenizers ----------------------------------------------------------------------------------
MARKS = ["<|first|>", "<|second|>"]


def learnt(tokenizer: Any, trainer: Any) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges of phrases in many scripts."""
    tokenizer.train_from_iterator(PHRASES * 3, trainer)
    model = msgspec.json.decode(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def byte_level(kind: str, special: str) -> Any:
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    vocab, merges = learnt(
        plain, trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    )
    vocab[special] = len(vocab)
    made = getattr(transformers, kind)
    return made(vocab=vocab, merges=merges, unk_token=special, eos_token=special, bos_token=special)


def pieces(kind: str, **more: Any) -> Any:
    spaced = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    spaced.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>", "<pad>", *(f"<0x{value:02X}>" for value in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=1200, special_tokens=special, show_progress=False)
    vocab, merges = learnt(spaced, trainer)
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return getattr(transformers, kind)(vocab=vocab, merges=merges, **names, **more)


TOKENIZERS = {
    "gpt2": lambda: byte_level("GPT2Tokenizer", "<|endoftext|>"),
    "qwen2": lambda: byte_level("Qwen2Tokenizer", "<|endoftext|>"),
    "llama": lambda: pieces("LlamaTokenizer", legacy=False),
    "llama legacy": lambda: pieces("LlamaTokenizer", legacy=True),
    "gemma": lambda: pieces("GemmaTokenizer", pad_token="<pad>", mask_token="<pad>"),
}


@pytest.mark.parametrize("name", list(TOKENIZERS))
def test_ids_of_many_scripts(tmp_path: Path, name: str) -> None:
    """With control tokens between texts, and without. Of what was saved: what transformers makes of
    its own file when it reads it again may be another scheme (legacy is not in it)."""
    reference = TOKENIZERS[name]()
    reference.add_tokens(MARKS, special_tokens=True)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=len(reference) + 3,
            hidden_size=32,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
        )
    )
    model.save_pretrained(tmp_path)
    reference.save_pretrained(tmp_path)
    ours = tokenizer_from_metadata(metadata_of(str(tmp_path)))
    assert len(ours) == len(reference) + 3
    ours.add_bos = False
    conversations = ConversationTokenizer(ours)
    odd = 0
    for index, text in enumerate(strings_of_many_scripts(2000)):
        said = f"{MARKS[0]}{text}{MARKS[1]} {text}" if index % 4 == 3 else text
        wanted = reference(said, add_special_tokens=False)["input_ids"]
        assert ours.encode_rendered(said) == wanted, said
        assert conversations.encode(Rendered(said, "")).tolist() == wanted, said
        odd += not text.isascii()
    assert odd > 1000
