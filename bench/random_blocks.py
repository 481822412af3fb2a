"""Random blocks of GGUF's quantised types, for types that the gguf package can read but not write.

Every byte of the weights and of the small scales is random; only the halves are chosen, so that a
weight's mean is about zero and its deviation about what is asked for. Layouts: ggml-common.h.

defines: random_blocks
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Block:
    """One type. `steps` is the deviation of a weight for d = 1, `middle` minus the mean of what d
    multiplies: the minimum's half is middle * d. Offsets are those of the halves; `power`: d is a
    power of two and a byte holds its exponent."""

    columns: int
    size: int
    steps: float
    scale_at: int
    middle: float = 0.0
    minimum_at: int = -1
    power: bool = False


BLOCKS = {
    "Q8_0": Block(32, 34, 73.9, 0),
    "Q4_0": Block(32, 18, 4.61, 0),
    "Q4_1": Block(32, 20, 4.61, 0, -7.5, 2),
    "Q5_0": Block(32, 22, 9.24, 0),
    "Q5_1": Block(32, 24, 9.24, 0, -15.5, 2),
    "IQ4_NL": Block(32, 18, 68.0, 0),
    "IQ4_XS": Block(256, 136, 1246.0, 0),
    "MXFP4": Block(32, 17, 2.1, 0, power=True),
    "Q2_K": Block(256, 84, 13.9, 80, 1.5, 82),
    "Q3_K": Block(256, 110, 43.0, 108),
    "Q4_K": Block(256, 144, 255.0, 0, 7.5, 2),
    "Q5_K": Block(256, 176, 525.0, 0, 15.5, 2),
    "Q6_K": Block(256, 210, 1366.0, 208),
}


def random_blocks(
    kind: str, rows: int, columns: int, deviation: float, random: np.random.Generator
) -> NDArray[np.uint8]:
    """Whole rows of blocks, (rows, bytes of a row)."""
    block = BLOCKS[kind]
    if columns % block.columns:
        raise ValueError(f"{columns} columns are no whole blocks of {kind}")
    count = rows * columns // block.columns
    raw = np.frombuffer(random.bytes(count * block.size), dtype=np.uint8).reshape(count, -1).copy()
    scales = random.uniform(0.5, 1.5, count) * (deviation / block.steps)

    def put(at: int, numbers: NDArray[np.float64]) -> None:
        raw[:, at : at + 2] = numbers.astype("<f2")[:, None].view(np.uint8)

    if block.power:  # of what FP4's own numbers are multiplied with
        exponents = [127 + math.frexp(scale)[1] - 1 for scale in scales]
        raw[:, block.scale_at] = np.array(exponents, dtype=np.uint8)
        return raw.reshape(rows, -1)
    put(block.scale_at, scales)
    if block.minimum_at >= 0:
        put(block.minimum_at, scales * block.middle)
    return raw.reshape(rows, -1)
