"""Ed25519 (RFC 8032, pure variant) in plain Python, to check a signature while the package is being
imported: a library for it would take ten times as long to load as the check takes, and at build
time there is none. Nothing here hides how long it takes, so it signs with throw-away keys alone;
keys that somebody keeps sign through the package cryptography (sign.py).

defines: public_key, sign, verify
"""

from __future__ import annotations

import hashlib

KEY_BYTES = 32
SIGNATURE_BYTES = 64

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
ROOT_OF_MINUS_1 = pow(2, (P - 1) // 4, P)

Point = tuple[int, int, int, int]
"""(X, Y, Z, T) with x = X/Z, y = Y/Z, T = XY/Z."""
NEUTRAL: Point = (0, 1, 1, 0)


def _add(a: Point, b: Point) -> Point:
    u = (a[1] - a[0]) * (b[1] - b[0]) % P
    v = (a[1] + a[0]) * (b[1] + b[0]) % P
    w = 2 * D * a[3] * b[3] % P
    z = 2 * a[2] * b[2]
    e, f, g, h = v - u, z - w, z + w, v + u
    return e * f % P, g * h % P, f * g % P, e * h % P


def _double(a: Point) -> Point:
    x, y, z, _ = a
    u, v = x * x % P, y * y % P
    h = u + v
    e = h - (x + y) * (x + y)
    g = u - v
    f = 2 * z * z + g
    return e * f % P, g * h % P, f * g % P, e * h % P


def _sum_of_products(s: int, a: Point, k: int, b: Point) -> Point:
    """s a + k b, bit by bit of both."""
    table = (NEUTRAL, a, b, _add(a, b))
    total = NEUTRAL
    for bit in range(max(s.bit_length(), k.bit_length()) - 1, -1, -1):
        total = _double(total)
        place = (s >> bit & 1) | (k >> bit & 1) << 1
        if place:
            total = _add(total, table[place])
    return total


def _point(data: bytes) -> Point | None:
    """The point that 32 bytes stand for; None if there is none."""
    number = int.from_bytes(data, "little")
    odd, y = number >> 255, number & (1 << 255) - 1
    if y >= P:
        return None
    u, v = (y * y - 1) % P, (D * y * y + 1) % P
    x = u * v**3 * pow(u * v**7 % P, (P - 5) // 8, P) % P
    if (v * x * x - u) % P:
        x = x * ROOT_OF_MINUS_1 % P
        if (v * x * x - u) % P:
            return None
    if x == 0 and odd:
        return None
    x = P - x if x & 1 != odd else x
    return x, y, 1, x * y % P


def _bytes(a: Point) -> bytes:
    inverse = pow(a[2], -1, P)
    x, y = a[0] * inverse % P, a[1] * inverse % P
    return (y | (x & 1) << 255).to_bytes(KEY_BYTES, "little")


def _base() -> Point:
    base = _point((4 * pow(5, -1, P) % P).to_bytes(KEY_BYTES, "little"))
    if base is None:
        raise ArithmeticError("the base point is on the curve")
    return base


def _hash_number(*parts: bytes) -> int:
    return int.from_bytes(hashlib.sha512(b"".join(parts)).digest(), "little")


def _expand(seed: bytes) -> tuple[int, bytes]:
    """(secret scalar, prefix of nonces)."""
    if len(seed) != KEY_BYTES:
        raise ValueError("a key has 32 bytes")
    digest = hashlib.sha512(seed).digest()
    scalar = int.from_bytes(digest[:32], "little") & (1 << 254) - 8 | 1 << 254
    return scalar, digest[32:]


def public_key(seed: bytes) -> bytes:
    """32 bytes of a seed's 32. Raises ValueError."""
    return _bytes(_sum_of_products(_expand(seed)[0], _base(), 0, NEUTRAL))


def sign(seed: bytes, message: bytes) -> bytes:
    """64 bytes, by a key that nobody keeps. Raises ValueError."""
    scalar, prefix = _expand(seed)
    nonce = _hash_number(prefix, message) % ORDER
    commitment = _bytes(_sum_of_products(nonce, _base(), 0, NEUTRAL))
    challenge = _hash_number(commitment, public_key(seed), message) % ORDER
    response = (nonce + challenge * scalar) % ORDER
    return commitment + response.to_bytes(KEY_BYTES, "little")


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """Whether the key made the signature of the message. Any bytes may be asked about."""
    if len(public) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    key = _point(public)
    commitment, response = signature[:32], int.from_bytes(signature[32:], "little")
    if key is None or response >= ORDER:
        return False
    challenge = _hash_number(commitment, public, message) % ORDER
    minus_key = (P - key[0], key[1], 1, P - key[3])
    return _bytes(_sum_of_products(response, _base(), challenge, minus_key)) == commitment
