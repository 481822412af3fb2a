"""The zoo: files that are broken, lie, or are something else, each with what is to be said of it.

An animal is made in a folder of its own and gives what a person would pass to --model.

defines: Animal, ANIMALS
"""

import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from folders import write_folder, write_json
from gguf_bytes import (
    ARRAY,
    BOOL,
    F32,
    HIDDEN,
    I32,
    STRING,
    TOKENIZER,
    U8,
    U16,
    U32,
    VOCABULARY,
    Tensor,
    Value,
    file,
    header,
    model,
    model_tensors,
    model_values,
    text,
    value,
    write_parts,
)


class Animal(NamedTuple):
    make: Callable[[Path], str]
    """In a folder; returns the name of the model."""
    says: str
    """Part of the reason, as a regular expression."""
    of_text: bool = False
    """Only the text side is broken: an Engine takes token ids all the same."""
    to_serve: bool = False
    """Nothing is wrong with it but that this machine cannot serve it: show has no reason."""


ANIMALS: dict[str, Animal] = {}
EMBEDDING = "token_embd.weight"
TOKENS: list[str] = TOKENIZER["tokenizer.ggml.tokens"]
TYPES = [int(kind) for kind in TOKENIZER["tokenizer.ggml.token_type"]]
EVIL = "\x1b[2J\x1b]0;owned\x07\n"


def add(name: str, says: str, content: bytes | Callable[[Path], str], **more: bool) -> None:
    def write(folder: Path) -> str:
        path = folder / "model.gguf"
        path.write_bytes(content if isinstance(content, bytes) else b"")
        return str(path)

    ANIMALS[name] = Animal(write if isinstance(content, bytes) else content, says, **more)


def changed(name: str, says: str, entry: Value | None, key: str, **more: bool) -> None:
    """A model with another value of one key; None: without it."""
    add(name, says, model(**{key.replace(".", "__"): entry}), **more)


def sparse(head: bytes, size: int) -> Callable[[Path], str]:
    """A file that is longer than what it takes on the disk."""

    def write(folder: Path) -> str:
        path = folder / "model.gguf"
        path.write_bytes(head)
        os.truncate(path, size)
        return str(path)

    return write


def first_values(*extra: tuple[str, Value], **counts: int) -> bytes:
    return header({"general.architecture": Value(STRING, "llama"), **dict(extra)}, [], **counts)


def swapped(*tensors: Tensor, without: str = "") -> bytes:
    """The model with some of its tensors replaced, or one left out."""
    mine = {tensor.name: tensor for tensor in tensors}
    kept = [mine.pop(t.name, t) for t in model_tensors() if t.name != without]
    return file(model_values(), [*kept, *mine.values()])


# ---- cut at every kind of border -----------------------------------------------------------------
WHOLE = model()
_AT = {
    "nothing": 0,
    "magic": 2,
    "version": 6,
    "counts": 14,
    "key_length": 28,
    "key": WHOLE.index(b"general.name") + 5,
    "value_type": WHOLE.index(b"general.name") + len("general.name") + 2,
    "string": WHOLE.index(b"A tiny") + 3,
    "array_head": WHOLE.index(b"tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens") + 6,
    "array_of_strings": WHOLE.index(b"<|im_end|>") + 3,
    "array_of_numbers": WHOLE.index(b"token_type") + 60,
    "tensor_name": WHOLE.index(b"token_embd") + 3,
    "tensor_shape": WHOLE.index(b"token_embd.weight") + len("token_embd.weight") + 6,
    "tensor_offset": WHOLE.index(b"output_norm.weight") + len("output_norm.weight") + 18,
    "before_the_data": len(header(model_values(), model_tensors())),
    "in_the_data": len(WHOLE) // 2 + 2000,
    "last_byte": len(WHOLE) - 1,
}
for border, at in _AT.items():
    reason = "is empty" if at == 0 else r"malformed GGUF file: .*\(at byte \d+ of \d+\)"
    add(f"cut_{border}", reason, WHOLE[:at])

# ---- sizes that lie ------------------------------------------------------------------------------
add("tensors_2_63", "tensors do not fit", first_values(tensor_count=1 << 63))
add("R072_tensors_below_the_bound", "tensors do not fit", first_values(tensor_count=65535))
add("one_tensor_more", "malformed", file(model_values(), model_tensors(), tensor_count=12))
add("one_key_less", "malformed", file(model_values(), model_tensors(), value_count=16))
add("keys_65535", "keys do not fit", first_values(value_count=65535))
add(
    "R082_string_2_40",
    "too long or runs past the end",
    first_values(("general.name", Value(STRING, struct.pack("<Q", 1 << 40)))),
)
for power, count in (("2_40", 1 << 40), ("wrapping", (1 << 62) + 1), ("all", (1 << 64) - 1)):
    packed = struct.pack("<IQ", U32, count)
    add(f"array_{power}", "more than the file holds", first_values(("a", Value(ARRAY, packed))))
add(
    "R073_dimension_that_wraps",
    "is larger than",
    swapped(Tensor("token_embd.weight", (HIDDEN, (1 << 42) + 1, 1 << 22), b"")),
)
add("R070_padded_sizes_wrap", "lies outside", swapped(Tensor("a", (8,), b"", offset=2**64 - 32)))
add("R079_behind_the_file", "lies outside", swapped(Tensor("a", (8,), b"", offset=1 << 40)))
add("overlapping", "overlap", swapped(Tensor("a", (8,), bytes(32), offset=0)))
add("unaligned", "unaligned offset", swapped(Tensor("a", (8,), bytes(32), offset=8)))
for alignment in (0, 3):
    changed(
        f"R081_alignment_{alignment}",
        "no power of two",
        Value(U32, alignment),
        "general.alignment",
    )
changed("R081_no_layers", "block_count' .* is 0, outside", Value(U32, 0), "llama.block_count")
changed("layers_2_31", "block_count' .* outside", Value(U32, 2**31 - 1), "llama.block_count")
changed("more_layers", "no tensor 'blk.1", Value(U32, 2), "llama.block_count")
changed("no_kv_heads", "head_count_kv'", Value(U32, 0), "llama.attention.head_count_kv")
changed("odd_heads", "2 heads cannot share 3", Value(U32, 3), "llama.attention.head_count_kv")
changed("unequal_heads", "different values", Value(U32, [1, 2]), "llama.attention.head_count_kv")
changed("wider", "expected 64 x 260", Value(U32, 64), "llama.embedding_length")
changed("no_context", "context_length' .* is 0", Value(U32, 0), "llama.context_length")
add("five_dimensions", "5 dimensions", swapped(Tensor("a", (1,) * 5, bytes(4))))
add("dimension_of_zero", "dimension of zero", swapped(Tensor("a", (0, 4), b"")))
add("no_dimensions", "0 dimensions", swapped(Tensor("a", (), bytes(4))))
add(
    "one_token",
    "vocabulary of 1 tokens",
    swapped(Tensor(EMBEDDING, (HIDDEN, 1), bytes(4 * HIDDEN))),
)
FEWER = Tensor(EMBEDDING, (HIDDEN, VOCABULARY - 1), bytes(4 * HIDDEN * (VOCABULARY - 1)))
add("fewer_rows_than_tokens", "260 tokens but the embedding only 259", swapped(FEWER))


def _fused(name: str, rows: int) -> Tensor:
    """All rows that there should be, in one dimension more."""
    return Tensor(f"blk.0.{name}.weight", (HIDDEN, rows // 2, 2), bytes(4 * HIDDEN * rows))


PHI3 = {key.replace("llama.", "phi3."): entry for key, entry in model_values().items()}
PHI3["general.architecture"] = Value(STRING, "phi3")
UNFUSED = ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")
add(
    "fused_in_three_dimensions",
    "attn_qkv.weight' has 3 dimensions, not 2",
    file(
        PHI3,
        [
            *(t for t in model_tensors() if not any(f".{name}." in t.name for name in UNFUSED)),
            _fused("attn_qkv", 2 * HIDDEN),
            _fused("ffn_up", 2 * HIDDEN),
        ],
    ),
)

# ---- types that are not what they should be ------------------------------------------------------
changed("architecture_a_number", "must be a string", Value(U32, 1), "general.architecture")
changed("tokens_of_numbers", "array of string", Value(U32, [1] * 260), "tokenizer.ggml.tokens")
changed("R075_scores_u8", "array of float32", Value(U8, [0] * 260), "tokenizer.ggml.scores")
changed("template_a_number", "must be a string", Value(U32, 5), "tokenizer.chat_template")
EPSILON = "llama.attention.layer_norm_rms_epsilon"
changed("epsilon_a_string", "must be a number", Value(STRING, "1e-5"), EPSILON)
changed("epsilon_nan", "not finite", Value(F32, float("nan")), EPSILON)
changed("base_infinite", "not finite", Value(F32, float("inf")), "llama.rope.freq_base")
changed("bos_a_string", "bos token is outside", Value(STRING, "<s>"), "tokenizer.ggml.bos_token_id",
        of_text=True)  # fmt: skip
changed("value_type_13", "unsupported type 13", Value(13, bytes(4)), "general.name")
add("version_4", "version 4 is not supported", file(model_values(), model_tensors(), version=4))
add("big_endian", "big-endian", file(model_values(), model_tensors(), version=0x03000000))

# ---- in a circle, and without end ----------------------------------------------------------------
DEEP = struct.pack("<IQ", ARRAY, 1) * 1000 + struct.pack("<IQ", U8, 0)
add("array_of_arrays", "unsupported type 9", first_values(("a", Value(ARRAY, DEEP))))
HUGE = struct.pack("<IQ", U8, 1 << 33)
add(
    "sparse_array_of_8_gb",
    "larger than that of any model",
    sparse(first_values(("a", Value(ARRAY, HUGE))), (1 << 33) + 4096),
)
add(
    "sparse_string_of_1_tb",
    "too long|weights alone take",
    sparse(first_values(("general.name", Value(STRING, struct.pack("<Q", 1 << 40)))), 1 << 41),
)
add(
    "many_strings",
    "larger than that of any model",
    sparse(first_values(("a", Value(ARRAY, struct.pack("<IQ", STRING, 3 << 20)))), 1 << 25),
)
many = {f"k{number}": Value(BOOL, True) for number in range(65537)}
add("65537_keys", "65537 keys do not fit", file(many, []))
add("larger_than_all_memory", "weights alone take", sparse(WHOLE, 1 << 42), to_serve=True)


def _long_tokens(folder: Path) -> str:
    tokens = [f"{number:05}" + "x" * 995 for number in range(20_000)]
    values = model_values(
        tokenizer__ggml__model=Value(STRING, "llama"),
        tokenizer__ggml__tokens=Value(STRING, tokens),
        tokenizer__ggml__token_type=Value(I32, [1] * len(tokens)),
        tokenizer__ggml__merges=None,
    )
    embedding = Tensor("token_embd.weight", (HIDDEN, len(tokens)), bytes(4 * HIDDEN * len(tokens)))
    others = [tensor for tensor in model_tensors() if tensor.name != embedding.name]
    path = folder / "model.gguf"
    path.write_bytes(file(values, [embedding, *others]))
    return str(path)


add("tokens_of_1000_letters", "longer than any model's", _long_tokens, of_text=True)


def _all_control(folder: Path) -> str:
    tokens = ["a", "b", "ab", *(f"<|{number:06}|>" for number in range(60_000))]
    values = model_values(
        tokenizer__ggml__tokens=Value(STRING, tokens),
        tokenizer__ggml__token_type=Value(I32, [1] * 3 + [3] * (len(tokens) - 3)),
        tokenizer__ggml__merges=Value(STRING, ["a b"]),
    )
    embedding = Tensor("token_embd.weight", (HIDDEN, len(tokens)), bytes(4 * HIDDEN * len(tokens)))
    others = [tensor for tensor in model_tensors() if tensor.name != embedding.name]
    path = folder / "model.gguf"
    path.write_bytes(file(values, [embedding, *others]))
    return str(path)


add("nothing_but_control_tokens", "60000 control tokens", _all_control, of_text=True)

# ---- what is missing, twice or unknown -----------------------------------------------------------
add("no_tensors", "no tensor 'token_embd.weight'", file(model_values(), []))
add("no_query", "no tensor 'blk.0.attn_q.weight'", swapped(without="blk.0.attn_q.weight"))
add("one_tensor_too_many", "'blk.0.attn_q.bias' is not part", swapped(
    Tensor("blk.0.attn_q.bias", (HIDDEN,), bytes(4 * HIDDEN))))  # fmt: skip
changed("no_architecture", "no key 'general.architecture'", None, "general.architecture")
changed("no_epsilon", f"no key '{EPSILON}'", None, EPSILON)
changed("no_tokens", "no list tokenizer.ggml.tokens", None, "tokenizer.ggml.tokens", of_text=True)
changed("no_merges", "no list tokenizer.ggml.merges", None, "tokenizer.ggml.merges", of_text=True)
changed("merge_of_nothing", "a merge names unknown tokens", Value(STRING, ["a b"]),
        "tokenizer.ggml.merges", of_text=True)  # fmt: skip
changed("no_tokenizer", "tokenizer", None, "tokenizer.ggml.model", of_text=True)
changed("bos_outside", "bos token is outside", Value(U32, 9999), "tokenizer.ggml.bos_token_id",
        of_text=True)  # fmt: skip
changed("a_token_twice", "names a token twice", Value(STRING, ["a"] * 260), "tokenizer.ggml.tokens",
        of_text=True)  # fmt: skip
changed("types_too_few", "entries for 260", Value(I32, [1]), "tokenizer.ggml.token_type")
changed("type_7", "Token 0 .* has the type 7", Value(I32, [7, *TYPES[1:]]),
        "tokenizer.ggml.token_type", of_text=True)  # fmt: skip
BYTE = {
    "tokenizer__ggml__tokens": Value(STRING, [*TOKENS[:-1], "<0x-1>"]),
    "tokenizer__ggml__token_type": Value(I32, [*TYPES[:-1], 6]),
}
add("R078_byte_token", "declared a byte but is not <0xNN>", model(**BYTE))
LONG = Value(STRING, [*TOKENS[:-1], "x" * 1025])
changed("R076_long_token", "string 259 of key", LONG, "tokenizer.ggml.tokens")
TWICE = header(model_values(), model_tensors(), value_count=len(model_values()) + 1)
place = TWICE.index(text("token_embd.weight"))
TWICE = TWICE[:place] + value("llama.block_count", Value(U32, 1)) + TWICE[place:]
add("a_key_twice", "'llama.block_count' appears twice", TWICE)
add("a_tensor_twice", "appears twice", file(model_values(), [*model_tensors(), model_tensors()[1]]))
add("type_of_others", r"type 19 \(IQ1_S\)|types IQ1_S", swapped(
    Tensor("token_embd.weight", (256, 8), bytes(400), kind=19)))  # fmt: skip
add("type_of_nobody", "type 97|types unknown", swapped(Tensor("a", (256,), bytes(32), kind=97)))
changed("architecture_mamba", "'mamba' is not supported", Value(STRING, "mamba"),
        "general.architecture")  # fmt: skip
changed("architecture_evil", r"'\?\[2J\?\]0;owned\?\?' is not supported", Value(STRING, EVIL),
        "general.architecture")  # fmt: skip
changed("tokenizer_rwkv", "'rwkv' is not supported", Value(STRING, "rwkv"), "tokenizer.ggml.model",
        of_text=True)  # fmt: skip
changed("pre_evil", r"'\\x1b\[2J.* is not supported", Value(STRING, EVIL), "tokenizer.ggml.pre",
        of_text=True)  # fmt: skip
changed("scaling_evil", r"'\?\[2J.*' is not supported", Value(STRING, EVIL * 100),
        "llama.rope.scaling.type")  # fmt: skip
for kind, told in (("adapter", "adapter"), ("mmproj", "sees images"), ("imatrix", "quantiser")):
    changed(f"is_{kind}", told, Value(STRING, kind), "general.type")

# ---- alien templates -----------------------------------------------------------------------------
TEMPLATE = "tokenizer.chat_template"
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}"
for name, says, source in (
    ("unreadable", "cannot be read", "{% for %}"),
    ("endless", "too many steps", LOOP),
    ("endless_with_messages", "too many steps", "{% if messages %}" + LOOP + "{% endif %}"),
    ("of_gigabytes", "too many steps, or writes too much", "{{ 'a' * 1000000000 }}"),
    ("of_2_mb", "too long", "x" * (2 << 20)),
):
    changed(f"template_{name}", says, Value(STRING, source), TEMPLATE, of_text=True)

# ---- other formats -------------------------------------------------------------------------------
for name, says, content in (
    ("zip", "ZIP archive; one of PyTorch", b"PK\x03\x04" + bytes(26) + b"archive/data.pkl"),
    ("R083_pickle", "pickle, as PyTorch", b"\x80\x02cposix\nsystem\nq\x00X\x02\x00\x00\x00idq\x01"),
    ("old_ggml", "older GGML format", b"tjgg\x03\x00\x00\x00" + bytes(64)),
    ("git_lfs", "Git LFS pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
    ("web_page", "web page", b"<!DOCTYPE html><html><body>404</body></html>"),
    ("gzip", "compressed", b"\x1f\x8b\x08\x00" + bytes(64)),
    ("safetensors", "safetensors file; name the folder", struct.pack("<Q", 8) + b'{"a":{}}'),
    ("zeros", "begins with zeros", bytes(4096)),
    ("noise", "does not start with 'GGUF'", bytes(range(7, 256)) * 8),
):
    add(f"is_{name}", says, content)


# ---- what the file system can be made to hold ----------------------------------------------------
def _link_in_a_circle(folder: Path) -> str:
    (folder / "a.gguf").symlink_to(folder / "b.gguf")
    (folder / "b.gguf").symlink_to(folder / "a.gguf")
    return str(folder / "a.gguf")


def _link_to(target: str) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        (folder / "link.gguf").symlink_to(target)
        return str(folder / "link.gguf")

    return make


def _pipe(folder: Path) -> str:
    os.mkfifo(folder / "pipe.gguf")
    return str(folder / "pipe.gguf")


def _socket(folder: Path) -> str:
    here = os.open(folder, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"/proc/self/fd/{here}/s.gguf")
    os.close(here)
    return str(folder / "s.gguf")


def _folder_of_that_name(folder: Path) -> str:
    (folder / "d.gguf").mkdir()
    return str(folder / "d.gguf")


def _name_that_is_no_text(folder: Path) -> str:
    raw = os.fsencode(folder) + b"/\xff\xfe.gguf"
    Path(os.fsdecode(raw)).write_bytes(WHOLE)
    return os.fsdecode(raw)


for name, says, make in (
    ("link_in_a_circle", "Too many levels", _link_in_a_circle),
    ("link_to_nothing", "No such file", _link_to("/nonexistent/model.gguf")),
    ("link_to_zeros", "is not a file", _link_to("/dev/zero")),
    ("link_to_proc", "is empty", _link_to("/proc/self/environ")),
    ("pipe", "is not a file", _pipe),
    ("socket", "is not a file", _socket),
    ("folder", "it has no config.json", _folder_of_that_name),
    ("name_that_is_no_text", "is not UTF-8", _name_that_is_no_text),
    ("nul_in_the_name", "is no name of a file", lambda folder: f"{folder}/a\0.gguf"),
    ("nobodys_home", "no such user", lambda folder: "~nobody-at-all/model.gguf"),
):
    add(name, says, make)


# ---- parts ---------------------------------------------------------------------------------------
def _parts(change: Callable[[list[Path]], Any], named: int = 0) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        tensors = model_tensors()
        paths = write_parts(folder, "m", [tensors[:4], tensors[4:8], tensors[8:]])
        change(paths)
        return str(paths[named])

    return make


def _edited(path: Path, old: bytes, new: bytes) -> None:
    path.write_bytes(path.read_bytes().replace(old, new, 1))


def key(name: str, kind: int, number: int) -> bytes:
    return value(name, Value(kind, number))


for name, says, change in (
    ("missing", "part 2 of 3 .* is missing", lambda paths: paths[1].unlink()),
    ("first_missing", "part 1 of 3 .* is missing", lambda paths: paths[0].unlink()),
    ("is_a_copy", "it says that it is part 1 of 3",
     lambda paths: paths[1].write_bytes(paths[0].read_bytes())),
    ("counts_other_tensors", "parts of two models",
     lambda paths: _edited(paths[1], key("split.tensors.count", I32, 11),
                           key("split.tensors.count", I32, 12))),
    ("of_65535", "split.count",
     lambda paths: _edited(paths[0], key("split.count", U16, 3), key("split.count", U16, 65535))),
    ("cut", "00003-of-00003.gguf: malformed",
     lambda paths: paths[2].write_bytes(paths[2].read_bytes()[:-9])),
    ("is_a_pipe", "not a regular file|not a file",
     lambda paths: (paths[1].unlink(), os.mkfifo(paths[1]))),
):  # fmt: skip
    add(f"part_{name}", says, _parts(change, named=1 if "first" in name else 0))


# ---- folders -------------------------------------------------------------------------------------
def _in_folder(change: Callable[[Path], Any], **settings: Any) -> Callable[[Path], str]:
    def make(folder: Path) -> str:
        change(write_folder(folder / "model", **settings))
        return str(folder / "model")

    return make


def _safetensors(head: bytes, length: int | None = None) -> Callable[[Path], str]:
    packed = struct.pack("<Q", len(head) if length is None else length) + head
    return _in_folder(lambda folder: (folder / "model.safetensors").write_bytes(packed))


def _index(weight_map: dict[str, str]) -> Callable[[Path], str]:
    name = "model.safetensors.index.json"
    return _in_folder(lambda folder: write_json(folder / name, {"weight_map": weight_map}))


def _config(content: bytes) -> Callable[[Path], str]:
    return _in_folder(lambda folder: (folder / "config.json").write_bytes(content))


def _pickled(folder: Path) -> str:
    write_json(folder / "config.json", {})
    (folder / "pytorch_model.bin").write_bytes(b"PK\x03\x04")
    return str(folder)


for name, says, make in (
    ("config_cut", "config.json is damaged", _config(b'{"architectures": ["Llama')),
    ("config_a_list", "config.json is damaged", _config(b"[]")),
    ("config_deep", "config.json is damaged", _config(b'{"a":' + b"[" * 100_000)),
    ("config_of_lists", "config.json is longer than",
     _config(b'{"a":[' + b"[]," * (8 << 20) + b"1]}")),
    ("header_beyond_the_file", "longer than the file", _safetensors(b"{}", 1 << 40)),
    ("header_no_json", "is damaged", _safetensors(b"\xff" * 64)),
    ("tensor_outside", "lies outside",
     _safetensors(b'{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}')),
    ("shape_2_62", "is damaged|lies outside", _safetensors(
        b'{"model.norm.weight":{"dtype":"F32","shape":[4611686018427387904,4],'
        b'"data_offsets":[0,0]}}')),
    ("R087_index_leads_out", "is no safetensors file of this folder",
     _index({"a": "../../../etc/passwd"})),
    ("index_to_root", "is no safetensors file of this folder", _index({"a": "/etc/passwd"})),
    ("index_to_nothing", "cannot be read: No such file", _index({"a": "x.safetensors"})),
    ("R083_pickles_only", "can run any code", _pickled),
    ("of_a_pipe", "not a regular file", _in_folder(
        lambda folder: ((folder / "config.json").unlink(), os.mkfifo(folder / "config.json")))),
    ("unknown_model", "names Mamba; supported are", _config(b'{"architectures":["Mamba"]}')),
    ("layers_2_30", "num_hidden_layers", _in_folder(lambda f: None, num_hidden_layers=1 << 30)),
    ("head_dim_2_30", "head_dim", _in_folder(lambda f: None, head_dim=1 << 30)),
):  # fmt: skip
    add(f"folder_{name}", says, make)
