"""Writes the corpus of fuzz_gguf: a tiny valid model, and variants that are wrong in one place.

usage: make_gguf_corpus.py [FOLDER]     (default: corpus/gguf beside this file)
"""

import struct
import sys
from pathlib import Path

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
FORMATS = {0: "<B", U32: "<I", I32: "<i", F32: "<f", BOOL: "<B", U64: "<Q"}
BLOCKS = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    16: (256, 66),
    30: (1, 2),
}
ALIGNMENT = 32

Tensor = tuple[str, list[int], int]
Value = tuple[str, int, object]


def text(content: str) -> bytes:
    raw = content.encode()
    return struct.pack("<Q", len(raw)) + raw


def one(kind: int, content: object) -> bytes:
    return text(str(content)) if kind == STRING else struct.pack(FORMATS[kind], content)


def value(key: str, kind: int, content: object) -> bytes:
    head = text(key)
    if isinstance(content, list):
        items: list[object] = content
        head += struct.pack("<IIQ", ARRAY, kind, len(items))
        return head + b"".join(one(kind, item) for item in items)
    return head + struct.pack("<I", kind) + one(kind, content)


def tensor_bytes(dimensions: list[int], kind: int) -> int:
    elements = 1
    for dimension in dimensions:
        elements *= dimension
    block, size = BLOCKS[kind]
    return elements // block * size


def file(values: list[Value], tensors: list[Tensor], version: int = 3) -> bytes:
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values))
    out += b"".join(value(*entry) for entry in values)
    offset = 0
    for name, dimensions, kind in tensors:
        out += text(name) + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        out += struct.pack("<IQ", kind, offset)
        offset += -(-tensor_bytes(dimensions, kind) // ALIGNMENT) * ALIGNMENT
    for index, (_, dimensions, kind) in enumerate(tensors):
        out += b"\0" * (-len(out) % ALIGNMENT)
        size = tensor_bytes(dimensions, kind)
        out += bytes((7 * index + 31 * i) % 251 for i in range(size))
    return out


def model_values(**changes: Value) -> list[Value]:
    values: list[Value] = [
        ("general.architecture", STRING, "llama"),
        ("llama.block_count", U32, 1),
        ("llama.context_length", U32, 64),
        ("llama.embedding_length", U32, 32),
        ("llama.feed_forward_length", U32, 64),
        ("llama.attention.head_count", U32, 2),
        ("llama.attention.head_count_kv", U32, 1),
        ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        ("llama.rope.freq_base", F32, 10000.0),
        ("tokenizer.ggml.tokens", STRING, ["a", "b", "<0x41>"]),
        ("tokenizer.ggml.token_type", I32, [1, 1, 6]),
        ("tokenizer.ggml.scores", F32, [0.0, 0.0, 0.0]),
    ]
    return values + list(changes.values())


def model_tensors(kind: int) -> list[Tensor]:
    width = max(BLOCKS[kind][0], 32)  # of whole blocks; the values above name 32
    return [
        ("token_embd.weight", [width, 3], kind),
        ("blk.0.attn_norm.weight", [32], 0),
        ("blk.0.attn_q.weight", [width, 32], kind),
        ("blk.0.ffn_down.weight", [2 * width, 32], kind),
    ]


def variants() -> dict[str, bytes]:
    valid = file(model_values(), model_tensors(3))
    yarn: list[Value] = [
        ("llama.rope.scaling.type", STRING, "yarn"),
        ("llama.rope.scaling.factor", F32, 4.0),
        ("llama.rope.scaling.original_context_length", U32, 16),
    ]

    def change(old: bytes, new: bytes) -> bytes:
        return valid.replace(old, new, 1)

    result = {f"type_{kind}": file(model_values(), model_tensors(kind)) for kind in BLOCKS}
    result |= {
        "version_2": file(model_values(), model_tensors(0), version=2),
        "yarn": file(model_values() + yarn, model_tensors(0)),
        "rope_freqs": file(model_values(), [*model_tensors(1), ("rope_freqs.weight", [8], 0)]),
        "alignment_0": file([*model_values(), ("general.alignment", U32, 0)], []),
        "alignment_3": file([*model_values(), ("general.alignment", U32, 3)], []),
        "layers_0": change(
            text("llama.block_count") + struct.pack("<II", U32, 1),
            text("llama.block_count") + struct.pack("<II", U32, 0),
        ),
        "long_string": change(text("llama"), struct.pack("<Q", 1 << 40) + b"llama"),
        "byte_token": file([("tokenizer.ggml.tokens", STRING, ["<0x-1>"])], []),
        "scores_u8": file([("tokenizer.ggml.scores", 0, [0, 0, 0])], []),
        "wrapping": change(struct.pack("<QQ", 32, 32), struct.pack("<QQ", 32, (1 << 42) + 1)),
        "cut": valid[: len(valid) // 2],
        "each_layer": change(
            text("llama.attention.head_count_kv") + struct.pack("<II", U32, 1),
            value("llama.attention.head_count_kv", U32, [1, 1]),
        ),
        "twice": file([*model_values(), ("llama.block_count", U32, 1)], []),
        "empty": file([], []),
    }
    return result


def main() -> None:
    here = Path(__file__).parent / "corpus" / "gguf"
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else here
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in variants().items():
        (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
