"""How a model marks its thinking, how its template switches it, and how a block of it is signed.

defines: ThinkingFormat, choose_thinking_format, sign_thinking, is_own_signature
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Collection

import msgspec


class ThinkingFormat(msgspec.Struct, frozen=True):
    """Markers and switch of a family's thinking."""

    opening: str
    closing: str
    switch: str = ""
    """The template's variable that turns it on and off (true, false). Empty: the model always
    thinks, or by its own choice."""

    def __post_init__(self) -> None:
        if not (self.opening and self.closing) or self.opening == self.closing:
            raise ValueError("thinking has two different markers")

    @property
    def head(self) -> str:
        """Text before the thinking, as templates write it."""
        return f"{self.opening}\n"

    @property
    def tail(self) -> str:
        """Text between thinking and answer; written to end the thinking early."""
        return f"\n{self.closing}\n\n"

    def text(self, thinking: str) -> str:
        """A finished block, to stand before the answer."""
        return self.head + thinking + self.tail

    def variables(self, is_on: bool) -> dict[str, bool]:
        """What the template is given beside the conversation."""
        return {self.switch: is_on} if self.switch else {}

    def opened_by(self, prompt: str) -> bool:
        """Whether the answer to this rendered prompt begins inside the thinking."""
        return prompt.rstrip().endswith(self.opening)

    @property
    def markers(self) -> tuple[str, str]:
        return self.opening, self.closing


PAIRS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
SWITCHES = ("enable_thinking", "thinking")


def choose_thinking_format(template: str, special: Collection[str]) -> ThinkingFormat | None:
    """The format of a model, from its chat template and the texts of its control tokens; None if
    it does not think.

    Sources: the templates of Qwen3, QwQ, DeepSeek R1 and V3.1, and Mistral's v13_think.
    """
    for opening, closing in PAIRS:
        if opening in template or {opening, closing} <= set(special):
            return ThinkingFormat(opening, closing, _switch_of(template))
    return None


def _switch_of(template: str) -> str:
    code = " ".join(re.findall(r"\{[{%].*?[%}]\}", template, re.DOTALL))
    code = re.sub(r"'[^']*'|\"[^\"]*\"", " ", code)
    return next((name for name in SWITCHES if re.search(rf"(?<![\w.]){name}\b", code)), "")


def sign_thinking(key: bytes, text: str) -> str:
    """Signature of a thinking block: what TextStream writes when the block closes."""
    if not key:
        raise ValueError("everybody can sign without a key")
    digest = hmac.digest(key, text.encode(), hashlib.sha256)
    return base64.b64encode(digest).decode()


def is_own_signature(key: bytes, text: str, signature: str) -> bool:
    """Whether this server, with this key, signed this text. Takes the same time for every
    signature of a length."""
    return hmac.compare_digest(sign_thinking(key, text).encode(), signature.encode())
