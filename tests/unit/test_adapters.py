"""LoRA adapters: what their files may be, and that requests with different ones run in one batch
without anything of each other.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from peft_files import Tensors, peft_tensors, write_peft, write_safetensors
from sublimate.engine.inprocess import Engine
from sublimate.engine.script import Script
from sublimate.errors import ConfigError, EngineError, ModelError, RequestError
from sublimate.model.adapters import check_adapters, parse_adapter, read_adapter
from sublimate.model.folder.documents import DOCUMENT_BYTES_MAX
from sublimate.model.folder.safetensors import HEADER_BYTES_MAX

HIDDEN, INNER, LAYERS, VOCABULARY = 64, 96, 2, 120
MATRICES = {
    f"model.layers.{layer}.{name}": shape
    for layer in range(LAYERS)
    for name, shape in {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.v_proj": (HIDDEN // 2, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }.items()
}
PREFIX = "base_model.model.model.layers.0"
Q_A = f"{PREFIX}.self_attn.q_proj.lora_A.weight"


def tensors_of(rank: int = 4, seed: int = 1, scale: float = 0.5) -> Tensors:
    return peft_tensors(MATRICES, rank, seed, scale)


# ---- files ---------------------------------------------------------------------------------------
def test_a_folder_of_peft_is_told_to_the_core(tmp_path: Path) -> None:
    adapter = read_adapter("sql", write_peft(tmp_path / "it", tensors_of(), "BF16"))
    name, path, tensors = adapter.told()
    assert name == "sql" and Path(path).name == "adapter_model.safetensors"
    assert len(tensors) == 2 * len(MATRICES)
    known = {each[0]: each[1:] for each in tensors}
    target, kind, rows, columns, offset, factor = known[Q_A]
    assert (target, kind, rows, columns) == ("blk.0.attn_q.weight.lora_a", "BF16", 4, HIDDEN)
    assert factor == 6 / 4 and offset > 8
    assert {each[1].split(".")[2] for each in tensors} == {"attn_q", "attn_v", "ffn_down"}


@pytest.mark.parametrize("before", ["", "base_model.model.", "base_model.model.language_model."])
@pytest.mark.parametrize("behind", ["", ".default"])
def test_names_that_tools_write_are_known(tmp_path: Path, before: str, behind: str) -> None:
    name = f"{before}model.layers.3.self_attn.o_proj.lora_B{behind}.weight"
    folder = write_peft(tmp_path / "it", {name: np.ones((8, 4), np.float32)})
    (tensor,) = read_adapter("it", folder).tensors
    assert tensor.target == "blk.3.attn_output.weight.lora_b"


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "NAME=PATH"), ("sql", "NAME=PATH"), ("=x", "NAME=PATH"), ("a:b=x", "NAME=PATH"),
     ("../x=y", "NAME=PATH"), ("sql=", "NAME=PATH"), ("a" * 97 + "=x", "NAME=PATH")],
)  # fmt: skip
def test_a_wrong_setting_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_adapter(text)


def test_settings_get_absolute_paths_and_distinct_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_peft(tmp_path / "it", tensors_of())
    monkeypatch.chdir(tmp_path)
    assert check_adapters(["a=it", "b=./it"]) == (f"a={tmp_path}/it", f"b={tmp_path}/it")
    with pytest.raises(ConfigError, match="another adapter has this name"):
        check_adapters(["a=it", "a=it"])
    with pytest.raises(ConfigError, match="more than 64 adapters"):
        check_adapters(f"a{number}=it" for number in range(65))
    with pytest.raises(ModelError, match=r"adapter b: .*neither a folder nor a file"):
        check_adapters(["b=nothing"])


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "LOHA"}, "peft_type is 'LOHA'; LORA is supported"),
    ({"use_dora": True}, "DoRA is not supported"),
    ({"bias": "all"}, "bias = 'all'"),
    ({"lora_bias": True}, "biases are not supported"),
    ({"modules_to_save": ["embed_tokens"]}, "modules_to_save"),
    ({"trainable_token_indices": [1, 2]}, "trainable_token_indices"),
    ({"fan_in_fan_out": True}, "fan_in_fan_out"),
    ({"layer_replication": [[0, 1]]}, "layer_replication"),
    ({"alora_invocation_tokens": [1]}, "aLoRA"),
    ({"target_parameters": ["x"]}, "target_parameters"),
    ({"use_qalora": True}, "QALoRA"),
    ({"init_lora_weights": "pissa_niter_4"}, "changes the model's weights"),
    ({"r": 0}, "r = 0: outside 1 to 512"),
    ({"r": 513}, "r = 513: outside 1 to 512"),
    ({"r": 8}, "has the rank 4, its configuration 8"),
    ({"r": "x"}, "is damaged: Expected `int`"),
    ({"rank_pattern": {"v_proj": 2}}, "v_proj.lora_A.weight' has the rank 4, its configuration 2"),
    ({"rank_pattern": {".*_proj": 2}}, "names are read, not expressions such as '.*_proj'"),
    ({"alpha_pattern": {"(a+)+": 2.0}}, "not expressions"),
]


@pytest.mark.parametrize(("config", "reason"), REFUSED)
def test_a_configuration_that_changes_more_is_refused(
    tmp_path: Path, config: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ModelError) as error:
        read_adapter("sql", write_peft(tmp_path / "it", tensors_of(), **config))
    assert str(error.value).startswith("The adapter sql: ") and reason in str(error.value)
    assert "\n" not in str(error.value)


def changed(**change: Any) -> Callable[[Path], None]:
    """The header of the first tensor says something else."""

    def write(folder: Path) -> None:
        write_safetensors(folder / "adapter_model.safetensors", tensors_of(), **{Q_A: change})

    return write


def renamed(name: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        tensors = tensors_of()
        tensors[name] = tensors.pop(Q_A)
        write_safetensors(folder / "adapter_model.safetensors", tensors)

    return write


def weights(make: Callable[[Path], Any]) -> Callable[[Path], None]:
    return lambda folder: make(folder / "adapter_model.safetensors")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4])


def pickled(folder: Path) -> None:
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def huge_config(folder: Path) -> None:
    (folder / "adapter_config.json").write_text(" " * (DOCUMENT_BYTES_MAX + 1))


def nested(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"a":' + "[" * 100_000)


def header(length: int, text: bytes = b"{}") -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(length.to_bytes(8, "little") + text)


BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "pickle": (pickled, "adapter_model.bin is a pickle, which is not read"),
    "no weights": (weights(Path.unlink), "adapter_model.safetensors cannot be read"),
    "pipe": (weights(piped), "is not a regular file"),
    "no configuration": (
        lambda f: (f / "adapter_config.json").unlink(),
        "adapter_config.json cannot",
    ),
    "huge configuration": (huge_config, "is longer than"),
    "nested configuration": (nested, "is damaged"),
    "empty file": (weights(lambda p: p.write_bytes(b"")), "its header is longer than the file"),
    "huge header": (
        weights(header(HEADER_BYTES_MAX + 1, bytes(HEADER_BYTES_MAX + 1))),
        "a header of",
    ),
    "short header": (weights(header(100)), "its header is longer than the file"),
    "header is no JSON": (weights(header(2, b"xx")), "is damaged"),
    "nothing inside": (weights(header(2)), "holds no adapter"),
    "cut short": (weights(cut), "lies outside"),
    "type": (changed(dtype="I8"), "has the type I8; of safetensors F32"),
    "other bytes": (changed(dtype="F16"), f"Tensor '{Q_A}' is damaged: its bytes"),
    "shape": (changed(shape=[4, HIDDEN, 1]), f"tensor '{Q_A}' has the shape"),
    "no shape": (changed(shape=[0, HIDDEN]), f"Tensor '{Q_A}' is damaged: its bytes"),
    "negative offsets": (changed(data_offsets=[-1024, 0]), f"tensor '{Q_A[:80]}' lies outside"),
    "huge offsets": (
        changed(data_offsets=[2**62, 2**62 + 1024]),
        f"tensor '{Q_A[:80]}' lies outside",
    ),
    "DoRA's": (renamed(f"{PREFIX}.self_attn.q_proj.lora_magnitude_vector"), "belongs to DoRA"),
    "embedding's": (renamed("base_model.model.model.embed_tokens.lora_embedding_A"), "embedding"),
    "head's": (renamed("base_model.model.lm_head.lora_A.weight"), "adapts the output matrix"),
    "expert's": (renamed(f"{PREFIX}.mlp.experts.3.up_proj.lora_A.weight"), "adapts an expert"),
    "unknown": (renamed("base_model.model.tower.lora_A.weight"), "is no adapter of a matrix"),
    "long name": (renamed("x" * 100_000), "is no adapter of a matrix"),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_a_broken_folder_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    folder = write_peft(tmp_path / "it", tensors_of())
    damage, reason = BROKEN[name]
    damage(folder)
    with pytest.raises(ModelError) as error:
        read_adapter("sql", folder)
    assert reason in str(error.value) and str(error.value).startswith("The adapter sql: ")
    assert "\n" not in str(error.value) and len(str(error.value)) < 600


def test_a_file_that_is_no_adapter_is_refused(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.gguf")
    with pytest.raises(ModelError, match=r"general\.type would say: it has none"):
        read_adapter("sql", model)
    (tmp_path / "it.safetensors").write_bytes(b"x")
    with pytest.raises(ModelError, match="is no folder as PEFT saves it"):
        read_adapter("sql", tmp_path / "it.safetensors")
    (tmp_path / "link.gguf").symlink_to(tmp_path / os.fsdecode(b"\xff.gguf"))
    with pytest.raises(ModelError, match=r"The adapter sql: the name of .* is not UTF-8"):
        read_adapter("sql", tmp_path / "link.gguf")
    (tmp_path / "it.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="The adapter sql: "):
        read_adapter("sql", tmp_path / "it.gguf")


# ---- engines -------------------------------------------------------------------------------------
def write_model(path: Path) -> Path:
    random = np.random.default_rng(5)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)

    def add(name: str, *shape: int) -> None:
        values = random.standard_normal(shape) if len(shape) > 1 else np.ones(shape)
        scale = 1 / np.sqrt(shape[-1]) if len(shape) > 1 else 1.0
        writer.add_tensor(f"{name}.weight", (values * scale).astype(np.float32))

    add("token_embd", VOCABULARY, HIDDEN)
    add("output_norm", HIDDEN)
    for layer in range(LAYERS):
        for name, *shape in (
            ("attn_norm", HIDDEN), ("attn_q", HIDDEN, HIDDEN), ("attn_k", HIDDEN // 2, HIDDEN),
            ("attn_v", HIDDEN // 2, HIDDEN), ("attn_output", HIDDEN, HIDDEN),
            ("ffn_norm", HIDDEN), ("ffn_gate", INNER, HIDDEN), ("ffn_up", INNER, HIDDEN),
            ("ffn_down", HIDDEN, INNER),
        ):  # fmt: skip
            add(f"blk.{layer}.{name}", *shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def engine_of(folder: Path, lora: dict[str, str | Path]) -> Engine:
    model = write_model(folder / "model.gguf")
    return Engine(model, kv_memory=4 << 20, threads=1, lora=lora)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("adapters")
    first = write_peft(folder / "first", tensors_of(4, 1, 2.0))
    second = write_peft(folder / "second", tensors_of(7, 2, 2.0), r=7)
    with engine_of(folder, {"first": first, "second": second}) as engine:
        yield engine
        assert engine.audit() == ""


def test_two_adapters_and_the_base_in_one_batch_equal_each_alone(adapted: Engine) -> None:
    prompts = [[number % VOCABULARY, 7, 9, 11, number + 3] * 9 for number in range(24)]
    names = ["", "first", "second", "first"] * 6
    fields: dict[str, Any] = {"ignore_eos": True, "logprobs": 2, "cache": False}
    together = adapted.generate(prompts, 12, adapter=names, **fields)
    alone = [
        adapted.generate([prompt], 12, adapter=name, **fields)[0]
        for prompt, name in zip(prompts, names, strict=True)
    ]
    for one, other in zip(together, alone, strict=True):
        assert one.token_ids == other.token_ids and one.logprobs == other.logprobs
    texts = [adapted.generate([prompts[0]], 12, adapter=name, **fields)[0].token_ids
             for name in ("", "first", "second")]  # fmt: skip
    assert len({tuple(text) for text in texts}) == 3


def test_what_one_adapter_has_read_is_nothing_to_another(adapted: Engine) -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6] * 12
    names = ["", "first", "second", ""]
    cached = [adapted.generate([prompt], 1, adapter=name)[0].cached_tokens for name in names]
    assert cached == [0, 0, 0, 64]
    assert adapted.generate([prompt], 1, adapter="second")[0].cached_tokens == 64


def test_scores_are_an_adapters(adapted: Engine) -> None:
    ids = list(range(40))
    base, first = (adapted.score(ids, adapter=name)[0] for name in ("", "first"))
    assert np.abs(base - first).max() > 0.1


def test_an_unknown_adapter_is_refused_before_the_loop(adapted: Engine) -> None:
    with pytest.raises(RequestError, match=r"no adapter 'firsd'\. Did you mean 'first'"):
        adapted.generate([[1, 2]], adapter="firsd")
    with pytest.raises(ValueError, match="1 adapters for 2 prompts"):
        adapted.generate([[1, 2], [3]], adapter=["first"])


def test_the_engine_tells_its_adapters(adapted: Engine) -> None:
    first, second = adapted.info["adapters"]
    assert (first["name"], first["rank"], second["rank"]) == ("first", 4, 7)
    assert first["parameters"] == sum(4 * (rows + columns) for rows, columns in MATRICES.values())
    assert 4 * first["parameters"] < first["bytes"] < 64 << 10


def test_an_adapter_of_another_model_is_refused_with_its_tensor(tmp_path: Path) -> None:
    wide = peft_tensors({"model.layers.0.self_attn.q_proj": (HIDDEN, 2 * HIDDEN)}, 4, 1)
    folder = write_peft(tmp_path / "wide", wide)
    with pytest.raises(EngineError, match=f"'{Q_A}' is 128 x 4, expected 64 x 4"):
        engine_of(tmp_path, {"wide": folder})


def test_a_scripted_engine_keeps_adapters_apart() -> None:
    script = Script(answers=[], vocabulary=100, context_length=256, kv_pages=64)
    with Engine.scripted(script, adapters=["a", "b"]) as engine:
        prompt = [5] * 70
        cached = [
            engine.generate([prompt], 1, adapter=name)[0].cached_tokens
            for name in ("a", "b", "", "a", "b")
        ]
        assert cached == [0, 0, 0, 64, 64]
        assert json.dumps(engine.info["adapters"])
