"""`sublimate convert`: what it writes serves as what it was made of; and what every wrong call or
file says, in one line. (The file's own fields: tests/cpp/test_packed_file.cpp.)"""

from pathlib import Path

import gguf
import numpy as np
import pytest

import sublimate
from sublimate import _core
from sublimate.cli.convert import convert
from sublimate.cli.serve import check_header
from sublimate.errors import ConfigError, EngineError, ExitCode, ModelError, SublimateError
from sublimate.model.registry import LocalPath, parse_name

HIDDEN, LAYERS = 64, 2
WORDS = ["<unk>", "</s>", "a", "b", "c", "d", "ab", "cd"]


def write_model(
    path: Path, kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32
) -> Path:
    """Of random weights, with a vocabulary of a few words."""
    draw = np.random.default_rng(9)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("small")
    writer.add_context_length(256)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(WORDS)
    writer.add_token_types([2, 3, *[1] * (len(WORDS) - 2)])
    writer.add_token_scores([0.0, 0.0, *[-1.0] * 4, -0.5, -0.5])
    writer.add_eos_token_id(1)
    rows = {"token_embd": len(WORDS)}
    for layer in range(LAYERS):
        own = {"attn_q": HIDDEN, "attn_k": HIDDEN // 2, "attn_v": HIDDEN // 2}
        own |= dict.fromkeys(("attn_output", "ffn_gate", "ffn_up", "ffn_down"), HIDDEN)
        rows |= {f"blk.{layer}.{name}": count for name, count in own.items()}
    for name, count in rows.items():
        values = draw.standard_normal((count, HIDDEN), dtype=np.float32) / np.float32(8)
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    for name in ("output_norm", *(f"blk.{i}.{n}_norm" for i in range(LAYERS) for n in NORMS)):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


NORMS = ("attn", "ffn")


@pytest.fixture(autouse=True)
def without_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a start would measure (tests/unit/test_remember.py) takes longer than all else here."""
    monkeypatch.setattr("sublimate.cli.convert._measure", lambda *given: None)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("source") / "small.gguf")


def load(path: Path, **options: object) -> _core.Model:
    return _core.Model.load(str(path), kv_bytes=4 << 20, threads=1, **options)


def failure(
    capsys: pytest.CaptureFixture[str], *given: object, **options: object
) -> tuple[int, str]:
    """Exit code and text of a call that fails."""
    with pytest.raises(sublimate_exit()) as ended:
        convert(*given, **options)
    said = capsys.readouterr().err
    assert said.startswith("Error: ") and said.count("\n") == 1
    return ended.value.exit_code, said


def sublimate_exit() -> type[BaseException]:
    import typer

    return typer.Exit


@pytest.mark.parametrize("form", [{}, {"exact": True}, {"quantize": "int8"}, {"quantize": "int4"}])
def test_a_packed_model_answers_as_the_model(
    source: Path, tmp_path: Path, form: dict[str, object]
) -> None:
    packed = tmp_path / "small.sublimate"
    convert(str(source), packed, **form)
    exact = bool(form.get("exact"))
    one, two = load(source, **form), load(packed, exact=exact)
    ids = [2, 3, 6, 7, 2, 5]
    for decode in (False, True):
        assert np.array_equal(one.logits(ids, decode=decode), two.logits(ids, decode=decode))
    assert two.info["weights_mapped"] and not one.info["weights_mapped"]
    assert two.info["quantize"] == one.info["quantize"] == form.get("quantize", "")
    fields = ("parameters", "weight_bytes", "architecture", "context_length")
    assert all(one.info[name] == two.info[name] for name in fields)
    header, origin = _core.Gguf(str(packed)), _core.Gguf(str(source))
    assert header.metadata == origin.metadata and header.tensors == origin.tensors
    assert header.packed is not None and header.packed["exact"] == exact
    assert origin.packed is None
    assert header.file_bytes == packed.stat().st_size


def test_an_engine_of_a_packed_file_says_the_same(source: Path, tmp_path: Path) -> None:
    packed = tmp_path / "small.sublimate"
    convert(str(source), packed)
    answers = []
    for path in (source, packed):
        with sublimate.Engine(path, kv_memory=4 << 20, threads=1) as engine:
            answers.append(engine.generate(["abcd"], max_tokens=8, ignore_eos=True, logprobs=2)[0])
    first, second = answers
    assert (first.text, first.token_ids, first.logprobs) == (
        second.text,
        second.token_ids,
        second.logprobs,
    )
    assert len(first.token_ids) == 8 and first.text


def test_quantisation_says_what_it_lost(source: Path) -> None:
    """int4 is further from the weights than int8, and both are near."""
    whole = load(source).logits([2, 3, 6, 7])
    off = {}
    for name in ("int8", "int4"):
        logits = load(source, quantize=name).logits([2, 3, 6, 7])
        off[name] = float(np.linalg.norm(logits - whole) / np.linalg.norm(whole))
    assert 0 < off["int8"] < 0.05 < off["int4"] < 0.5


def test_int8_is_as_near_as_the_formats_own(tmp_path: Path) -> None:
    """As the gguf package's Q8_0 of the same weights; activations are rounded in both."""
    whole = write_model(tmp_path / "whole.gguf")
    other = write_model(tmp_path / "q8_0.gguf", gguf.GGMLQuantizationType.Q8_0)
    wanted = load(whole, exact=True).logits([2, 3, 6, 7])
    ours = load(whole, quantize="int8").logits([2, 3, 6, 7])
    theirs = load(other).logits([2, 3, 6, 7])
    assert np.linalg.norm(ours - wanted) <= 1.25 * np.linalg.norm(theirs - wanted)


def test_settings_that_exclude_each_other(source: Path) -> None:
    with pytest.raises(EngineError, match="leave it or --quantize out"):
        sublimate.Engine(source, exact=True, quantize="int8", kv_memory=4 << 20)


def test_a_quantised_file_is_not_quantised_again(tmp_path: Path) -> None:
    path = write_model(tmp_path / "q8_0.gguf", gguf.GGMLQuantizationType.Q8_0)
    with pytest.raises(EngineError, match=r"quantised already .*leave --quantize out"):
        sublimate.Engine(path, quantize="int4", kv_memory=4 << 20)


def test_wrong_calls(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = tmp_path / "small.sublimate"
    usage, model = ExitCode.USAGE, ExitCode.MODEL
    assert failure(capsys, str(source), None)[0] == usage
    code, said = failure(capsys, str(source), tmp_path / "small.gguf")
    assert code == usage and "ends with .sublimate" in said
    code, said = failure(capsys, str(source), packed, exact=True, quantize="int8")
    assert code == usage and "leave it or --quantize out" in said
    assert failure(capsys, str(source), packed, threads=1000)[0] == usage
    code, said = failure(capsys, str(tmp_path / "none.gguf"), packed)
    assert code == model and "none.gguf" in said
    convert(str(source), packed)
    assert "small.sublimate" in capsys.readouterr().out
    code, said = failure(capsys, str(source), packed)
    assert code == model and "--replace" in said
    convert(str(source), packed, replace=True)
    code, said = failure(capsys, str(packed), tmp_path / "again.sublimate")
    assert code == model and "packed already" in said
    assert failure(capsys, str(packed), packed, check=True)[0] == usage
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.sublimate"]


def test_check_reads_the_weights(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = tmp_path / "small.sublimate"
    convert(str(source), packed)
    convert(str(packed), None, check=True)
    assert "as it was written" in capsys.readouterr().out
    with packed.open("r+b") as file:
        file.seek(-9, 2)
        file.write(b"\xff")
    code, said = failure(capsys, str(packed), None, check=True)
    assert code == ExitCode.MODEL and "damaged: convert the model again" in said
    code, said = failure(capsys, str(source), None, check=True)
    assert code == ExitCode.MODEL and "is not packed" in said


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda data: data[:20], "ends within its header"),
        (lambda data: data[:4000], "bytes: copy it again"),
        (lambda data: data[:-1], "bytes: copy it again"),
        (lambda data: data + b"\0", "bytes: copy it again"),
        (lambda data: data[:8] + b"\7" + data[9:], "has format 7, this Sublimate reads 1"),
        (lambda data: data[:16] + b"\0" + data[17:], "header is damaged"),
        (lambda data: data[:40] + b"\1" + data[41:], "header is damaged"),
        (lambda data: data[:4096] + b"x" + data[4097:], "metadata is damaged"),
        (lambda data: data[:6000] + b"\xfe" + data[6001:], "damaged"),
        (lambda data: data[:7] + b"x" + data[8:], "not a GGUF file"),
        (lambda data: b"\0" * len(data), "not a GGUF file"),
        (lambda data: data[:2], "not a GGUF file|shorter"),
    ],
)
def test_a_broken_file_is_told_before_anything_starts(
    source: Path, tmp_path: Path, damage: object, told: str
) -> None:
    packed = tmp_path / "small.sublimate"
    convert(str(source), packed)
    packed.write_bytes(damage(packed.read_bytes()))
    with pytest.raises(ModelError, match=told) as refused:
        check_header(str(packed))
    assert "\n" not in str(refused.value) and str(packed) in str(refused.value)


def test_the_other_form_is_an_error(source: Path, tmp_path: Path) -> None:
    packed = tmp_path / "small.sublimate"
    convert(str(source), packed)
    with pytest.raises(EngineError, match="was packed without --exact: load its source"):
        sublimate.Engine(packed, exact=True, kv_memory=4 << 20)
    with pytest.raises(EngineError, match="was packed without --quantize int4: leave it out"):
        sublimate.Engine(packed, quantize="int4", kv_memory=4 << 20)


def test_names_of_packed_files_are_paths() -> None:
    assert parse_name("model.sublimate") == LocalPath(Path("model.sublimate"))
    with pytest.raises(SublimateError):
        parse_name("model.sublimat")
    assert issubclass(ConfigError, SublimateError)
