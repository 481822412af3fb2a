"""Sizes as people write and read them.

defines: parse_size, format_size
"""

from __future__ import annotations

import re

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE | re.ASCII)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_BINARY_STEP = 1024


def parse_size(text: str) -> int:
    """Bytes from text such as 512, 512M, 1.5GiB, 2 GB (powers of 1024). ValueError if not."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("expected a size such as 512MiB or 2GiB")
    number, power, _ = match.groups()
    return int(float(number) * _BINARY_STEP ** _POWERS[power.upper()])


def format_size(size_bytes: float) -> str:
    """Bytes for a person: 93.8 MiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < _BINARY_STEP:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= _BINARY_STEP
    return f"{size_bytes:.1f} TiB"
