"""Hugging Face folders: the same bits as a GGUF file of the same weights, and what their
config.json means."""

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from folders import (
    CONFIG,
    HEAD,
    HEADS,
    HIDDEN,
    INNER,
    KV_HEADS,
    LAYERS,
    as_bytes,
    random_tensors,
    write_folder,
)
from sublimate import _core
from sublimate.engine.inprocess import Engine
from sublimate.errors import ModelError
from sublimate.model.folder.families import FAMILIES, family_of, gguf_name, keys_of
from sublimate.model.folder.fields import Fields
from sublimate.model.folder.rope import read_rope
from sublimate.model.source import files_of, header_of, metadata_of, stamp, weight_bytes

IDS = list(range(7, 70))
TYPES = {
    "F32": gguf.GGMLQuantizationType.F32,
    "F16": gguf.GGMLQuantizationType.F16,
    "BF16": gguf.GGMLQuantizationType.BF16,
}


def in_pairs(rows: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rotating rows from two halves to neighbours, as GGUF files of llama have them."""
    halves = rows.reshape(heads, 2, HEAD // 2, HIDDEN)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


def write_gguf(path: Path, tensors: dict[str, NDArray[np.float32]], dtype: str) -> str:
    """What a converter makes of the folder: the slow twin of reading it as it is."""
    config = Fields(CONFIG, "CONFIG")
    _, family = family_of(config)
    writer = gguf.GGUFWriter(path, family.architecture)
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    writer.add_rope_freq_base(CONFIG["rope_theta"])
    for name, array in tensors.items():
        known = gguf_name(name, family)
        if known.endswith(("attn_q.weight", "attn_k.weight")):
            array = in_pairs(array, HEADS if "attn_q" in known else KV_HEADS)
        # Norms of a checkpoint in 16 bits have these bits in the folder; here as what they say.
        element = np.float32 if dtype == "F32" else np.uint16
        if array.ndim == 1 and dtype != "F32":
            half = np.frombuffer(as_bytes(array, dtype), dtype=np.uint16)
            array = (
                half.view(np.float16).astype(np.float32)
                if dtype == "F16"
                else (half.astype(np.uint32) << 16).view(np.float32)
            )
            writer.add_tensor(known, array)
            continue
        raw = np.frombuffer(as_bytes(array, dtype), dtype=element).reshape(array.shape)
        writer.add_tensor(known, raw, raw_dtype=TYPES[dtype], raw_shape=raw.shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def logits(path: str, **settings: Any) -> NDArray[np.float32]:
    found = files_of(path)
    model = _core.Model.load(
        path, kv_bytes=1 << 20, threads=1, header=found.header, files=found.files, **settings
    )
    return model.logits(IDS)


@pytest.mark.parametrize(("dtype", "shards"), [("F32", 1), ("F16", 1), ("BF16", 3)])
def test_the_bits_are_those_of_a_gguf_file(tmp_path: Path, dtype: str, shards: int) -> None:
    tensors = random_tensors()
    folder = str(write_folder(tmp_path / "m", tensors, dtype=dtype, shards=shards))
    twin = write_gguf(tmp_path / "m.gguf", tensors, dtype)
    for exact in (True, False):
        assert np.array_equal(logits(folder, exact=exact), logits(twin, exact=exact))
    assert weight_bytes(folder) == sum(size for _, size in files_of(folder).files)
    assert len(files_of(folder).files) == shards


def mixture() -> dict[str, NDArray[np.float32]]:
    """Qwen 3's: normed heads, and four feed-forwards of 32 for each layer."""
    random = np.random.default_rng(5)
    tensors = {name: t for name, t in random_tensors().items() if ".mlp." not in name}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for name in ("q_norm", "k_norm"):
            tensors[f"{prefix}.self_attn.{name}.weight"] = np.ones(HEAD, dtype=np.float32)
        shapes = {"gate": (4, HIDDEN)}
        for expert in range(4):
            own = {"gate": (32, HIDDEN), "up": (32, HIDDEN), "down": (HIDDEN, 32)}
            shapes |= {f"experts.{expert}.{name}_proj": shape for name, shape in own.items()}
        for name, shape in shapes.items():
            drawn = random.standard_normal(shape).astype(np.float32) / np.float32(8)
            tensors[f"{prefix}.mlp.{name}.weight"] = drawn
    return tensors


def test_experts_lie_side_by_side(tmp_path: Path) -> None:
    """A folder has a tensor for each, a GGUF file one for all: the same bits."""
    tensors, family = mixture(), FAMILIES["Qwen3MoeForCausalLM"]
    changes: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "head_dim": HEAD}
    changes |= {"moe_intermediate_size": 32, "norm_topk_prob": True}
    folder = write_folder(tmp_path / "m", tensors, architectures=["Qwen3MoeForCausalLM"], **changes)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", family.architecture)
    for key, value in header_of(str(folder)).metadata.items():
        if key.startswith("qwen3moe.") and isinstance(value, bool):
            writer.add_bool(key, value)
        elif key.startswith("qwen3moe."):
            (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(key, value)
    stacks: dict[str, list[NDArray[np.float32]]] = {}
    for name, array in tensors.items():
        parts = gguf_name(name, family).split(".")
        if len(parts) == 5:
            stacks.setdefault(f"{parts[0]}.{parts[1]}.{parts[2]}_exps.weight", []).append(array)
        else:
            writer.add_tensor(".".join(parts), array)
    for name, arrays in stacks.items():
        writer.add_tensor(name, np.stack(arrays))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    for exact in (True, False):
        both = [logits(str(path), exact=exact) for path in (folder, tmp_path / "m.gguf")]
        assert np.array_equal(both[0], both[1]) and np.isfinite(both[0]).all()
    missing = {name: t for name, t in tensors.items() if "layers.1.mlp.experts.3.up" not in name}
    other = write_folder(tmp_path / "n", missing, architectures=["Qwen3MoeForCausalLM"], **changes)
    with pytest.raises(_core.CoreError, match=r"no tensor 'blk\.1\.ffn_up\.3\.weight'"):
        logits(str(other))


def test_norms_less_one_and_scores_by_a_scalar(tmp_path: Path) -> None:
    """Gemma 2: what the files have of a norm is one less than what is computed with."""
    tensors = random_tensors(around=True)
    changes: dict[str, Any] = {
        "architectures": ["Gemma2ForCausalLM"],
        "hidden_act": None,
        "head_dim": HEAD,
        "query_pre_attn_scalar": 64,
        "sliding_window": 20,
    }
    folder = str(write_folder(tmp_path / "m", tensors, **changes))
    header = header_of(folder)
    assert header.metadata["gemma2.attention.scale"] == 0.125
    assert header.metadata["sublimate.full_attention_every"] == 2
    shifted = {n: t + np.float32(1) if t.ndim == 1 else t for n, t in tensors.items()}
    one = logits(folder, exact=True)
    assert not np.allclose(one, logits(str(write_folder(tmp_path / "n", shifted, **changes))))
    assert np.isfinite(one).all()


def test_tied_embeddings(tmp_path: Path) -> None:
    """The output matrix is not read where config.json says that it is the embedding."""
    tensors = random_tensors()
    tied = write_folder(tmp_path / "a", tensors, tie_word_embeddings=True)
    without = {name: t for name, t in tensors.items() if name != "lm_head.weight"}
    absent = write_folder(tmp_path / "b", without)
    assert np.array_equal(logits(str(tied)), logits(str(absent)))
    assert not np.array_equal(logits(str(tied)), logits(str(write_folder(tmp_path / "c"))))


def test_an_engine_runs_on_a_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "Tiny-0.5B", dtype="BF16")
    with Engine(folder, threads=1, kv_memory=1 << 20) as engine:
        first = engine.generate([IDS], max_tokens=5, temperature=0.0)[0].token_ids
    assert len(first) == 5
    assert metadata_of(str(folder))["general.name"] == "Tiny-0.5B"


def test_a_folder_that_changed_is_another_one(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", shards=2)
    before, found = stamp(str(folder)), files_of(str(folder))
    assert stamp(str(folder)) == before
    (folder / "chat_template.jinja").write_text("x")
    assert stamp(str(folder)) != before
    path = Path(found.files[1][0])
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(_core.CoreError, match="has changed since"):
        _core.Gguf.join(found.header, found.files)
    path.unlink()
    with pytest.raises(_core.CoreError, match="cannot open"):
        _core.Gguf.join(found.header, found.files)


# ---- config.json ---------------------------------------------------------------------------------
def keys(**changes: Any) -> dict[str, Any]:
    config = Fields(CONFIG | changes, "config.json")
    _, family = family_of(config)
    config = config.with_defaults(family.defaults)
    found = keys_of(config, family)
    name = family.architecture
    rope = read_rope(config, family, found[f"{name}.attention.key_length"])
    more = {f"{name}.{key}": value for key, value in rope.keys.items()}
    return {k.removeprefix(f"{name}."): v for k, v in (found | more | rope.divisors).items()}


def test_sizes() -> None:
    found = keys()
    assert found["general.architecture"] == "llama" and found["sublimate.rotates_halves"]
    assert found["attention.key_length"] == HEAD and found["rope.freq_base"] == 10000.0
    assert found["attention.head_count_kv"] == KV_HEADS
    assert keys(num_key_value_heads=None)["attention.head_count_kv"] == HEADS
    assert keys(head_dim=32)["rope.dimension_count"] == 32
    assert keys(head_dim=32, partial_rotary_factor=0.5)["rope.dimension_count"] == 16
    assert [family.architecture for family in FAMILIES.values()].count("gemma3") == 2


@pytest.mark.parametrize(
    ("changes", "window", "every"),
    [
        ({"architectures": ["LlamaForCausalLM"], "sliding_window": 50}, 0, 0),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": 50}, 50, 0),
        ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, 0, 0),
        ({"architectures": ["MistralForCausalLM"]}, 4096, 0),
        ({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 50}, 0, 0),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "sliding_window": 50,
                "use_sliding_window": True,
                "max_window_layers": 0,
            },
            50,
            0,
        ),
        (
            {
                "architectures": ["Qwen2ForCausalLM"],
                "sliding_window": 50,
                "use_sliding_window": True,
            },
            0,
            0,
        ),
        ({"architectures": ["Gemma2ForCausalLM"], "num_hidden_layers": 4}, 4096, 2),
        ({"architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 8}, 4096, 6),
        (
            {
                "architectures": ["Gemma3ForCausalLM"],
                "num_hidden_layers": 4,
                "sliding_window_pattern": 3,
            },
            4096,
            3,
        ),
        (
            {
                "architectures": ["Gemma3ForCausalLM"],
                "layer_types": ["sliding_attention", "full_attention"],
            },
            4096,
            2,
        ),
        (
            {"architectures": ["Gemma2ForCausalLM"], "layer_types": ["full_attention"] * 2},
            0,
            0,
        ),
    ],
)
def test_windows(changes: dict[str, Any], window: int, every: int) -> None:
    found = keys(**{"hidden_act": None, **changes})
    told = found["attention.sliding_window"], found["sublimate.full_attention_every"]
    assert told == (window, every)


def test_experts() -> None:
    found = keys(architectures=["Qwen3MoeForCausalLM"], num_experts=4, norm_topk_prob=True)
    assert (found["expert_count"], found["expert_used_count"]) == (4, 8)
    assert found["expert_feed_forward_length"] == 768 and found["expert_weights_norm"] is True
    assert "expert_count" not in keys()


LLAMA3 = {
    "type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def test_rotary_embeddings_of_old_and_new_files() -> None:
    old = keys(rope_scaling=LLAMA3, rope_theta=5e5)
    new = keys(rope_parameters={"rope_theta": 5e5, **LLAMA3}, rope_theta=1.0)
    assert old == new and old["rope.freq_base"] == 5e5
    divisors = old["rope_freqs.weight"]
    assert divisors[0] == 1.0 and divisors[-1] == 8.0 and sorted(divisors) == divisors
    linear = keys(rope_scaling={"rope_type": "linear", "factor": 4})
    assert linear["rope.scaling.type"] == "linear" and linear["rope.scaling.factor"] == 4.0
    yarn = keys(rope_scaling={"type": "yarn", "factor": 4.0})
    assert yarn["rope.scaling.attn_factor"] == 1.0
    assert yarn["rope.scaling.original_context_length"] == 256
    plain = keys(rope_scaling={"type": "yarn", "factor": 4.0, "attention_factor": 1.0})
    assert 0.87 < plain["rope.scaling.attn_factor"] < 0.88
    longrope = keys(
        architectures=["Phi3ForCausalLM"],
        original_max_position_embeddings=64,
        rope_scaling={"type": "su", "long_factor": [2.0] * 8, "short_factor": [1] * 8},
    )
    assert longrope["rope_factors_long.weight"] == [2.0] * 8
    assert round(longrope["rope.scaling.attn_factor"], 4) == 1.1547
    gemma = {"architectures": ["Gemma3ForCausalLM"], "hidden_act": None, "rope_theta": 1e6}
    old = keys(**gemma, rope_local_base_freq=1e4, rope_scaling={"rope_type": "linear", "factor": 8})
    full = {"rope_type": "linear", "factor": 8, "rope_theta": 1e6}
    windowed = {"rope_type": "default", "rope_theta": 1e4}
    nested = {"full_attention": full, "sliding_attention": windowed}
    assert old == keys(**gemma, rope_parameters=nested) and old["rope.freq_base_swa"] == 1e4


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "names MambaForCausalLM; supported are Llama"),
        ({"architectures": None}, "architectures names nothing"),
        ({"architectures": "x"}, "architectures must be a list of texts"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size must be a whole number, not str '64'"),
        ({"hidden_size": True}, "hidden_size must be a whole number"),
        ({"hidden_size": 0}, "hidden_size is 0, outside 1"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps must be a number"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; llama has silu"),
        ({"quantization_config": {"quant_method": "gptq"}}, r"quantised \(gptq\)"),
        ({"final_logit_softcapping": 30.0}, "not part of a llama model"),
        (
            {"architectures": ["Qwen3MoeForCausalLM"], "mlp_only_layers": [0]},
            "layers without experts are not supported",
        ),
        ({"num_hidden_layers": 1 << 30}, "num_hidden_layers is 1073741824, outside 1 to 1024"),
        (
            {"architectures": ["Gemma3ForCausalLM"], "hidden_act": None, "head_dim": 1 << 30},
            "head_dim .* is 1073741824, outside 1 to 256",
        ),
        ({"hidden_size": 1 << 30, "rope_scaling": LLAMA3}, r"head_dim .*, outside 1 to 256"),
        ({"num_attention_heads": 65}, "head_dim .* is 0, outside 1 to 256"),
        ({"partial_rotary_factor": 1e30, "rope_scaling": LLAMA3}, "factor is 1e.30, above 1"),
        (
            {"rope_scaling": {"type": "yarn", "factor": math.e, "mscale_all_dim": -10}},
            "mscale_all_dim must not be below zero",
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "'dynamic' is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
        ({"rope_scaling": "x"}, "rope_scaling must be an object"),
        ({"rope_scaling": {"type": "yarn", "factor": 2, "truncate": False}}, "truncate"),
        ({"rope_parameters": {"full_attention": {}}}, "by the kind of a layer is not supported"),
        (
            {"architectures": ["Phi3ForCausalLM"], "rope_scaling": {"type": "longrope"}},
            "long_factor must be a list of 8 numbers",
        ),
        (
            {
                "architectures": ["MistralForCausalLM"],
                "sliding_window": 9,
                "layer_types": ["full_attention", "sliding_attention"],
            },
            "layers of no regular pattern",
        ),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ModelError, match=text):
        keys(**changes)


def test_names_of_tensors() -> None:
    llama, gemma = FAMILIES["LlamaForCausalLM"], FAMILIES["Gemma3ForConditionalGeneration"]
    norm = "model.layers.1.post_attention_layernorm.weight"
    assert gguf_name(norm, llama) == "blk.1.ffn_norm.weight"
    assert gguf_name(norm, gemma) == "blk.1.post_attention_norm.weight"
    assert gguf_name(f"language_model.{norm}", gemma) == "blk.1.post_attention_norm.weight"
    assert gguf_name("model.language_model.norm.weight", gemma) == "output_norm.weight"
    assert gguf_name("vision_tower.a.b", gemma) == ""
    assert gguf_name("model.layers.0.self_attn.rotary_emb.inv_freq", llama) == ""
    moe = FAMILIES["Qwen3MoeForCausalLM"]
    down = gguf_name("model.layers.3.mlp.experts.12.down_proj.weight", moe)
    assert down == "blk.3.ffn_down.12.weight"
    assert gguf_name("model.layers.3.mlp.gate.weight", moe) == "blk.3.ffn_gate_inp.weight"
    for wrong in (
        "model.layers.0.mlp.experts.weight",
        "model.layers.0.mlp.gate.weight",
        "x" * 500,
        "model.layers.0.ffn.weight",
        "",
    ):
        with pytest.raises(ModelError, match="not part of a supported llama model"):
            gguf_name(wrong, llama)
