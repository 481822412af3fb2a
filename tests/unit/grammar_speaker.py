"""A model that says anything its masks allow, and the loop's rules of masks, for tests of grammars.

defines: speaker_tokenizer, Speaker, has
"""

import random
from typing import Any

import numpy as np

from sublimate.grammar.constraint import Constraint
from sublimate.grammar.matcher import Matcher
from sublimate.model.byte_level import byte_characters
from sublimate.model.tokenizer import Tokenizer, tokenizer_from_metadata
from sublimate.model.vocabulary import TokenType
from tiny_model import tiny_metadata

# Tokens across the borders of markers, of JSON and of both, as real vocabularies have them.
LONG = (
    '{"',
    '": "',
    '", "',
    "</",
    "<t",
    "<tool_call>\n",
    "tool_call",
    ">\n",
    "}\n",
    '}"',
    '"}',
    "</think>\n\n",
    "<think>",
    "a<",
    "hello",
    " wor",
    "12",
    "true",
    "[{",
    "}]",
    "é",
    "```",
)


def speaker_tokenizer(control: tuple[str, ...] = (), defined: tuple[str, ...] = ()) -> Tokenizer:
    """One token per byte, the LONG ones, and markers that are tokens of their own."""
    table = {value: chr(code) for code, value in byte_characters().items()}
    metadata: dict[str, Any] = tiny_metadata()
    tokens: list[str] = list(metadata["tokenizer.ggml.tokens"])
    types: list[int] = list(metadata["tokenizer.ggml.token_type"])
    for text in (text for text in LONG if text not in (*control, *defined)):
        tokens.append("".join(table[byte] for byte in text.encode()))
        types.append(TokenType.NORMAL)
    for kind, texts in ((TokenType.CONTROL, control), (TokenType.USER_DEFINED, defined)):
        tokens += texts
        types += [kind] * len(texts)
    metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"] = tokens, types
    return tokenizer_from_metadata(metadata)


class Speaker:
    """Speaks under a constraint."""

    def __init__(self, constraint: Constraint, seed: int, prefer: bytes = b"") -> None:
        self.random = random.Random(seed)
        self.matcher = Matcher(constraint)
        self.vocabulary = constraint.vocabulary
        self.prefer = prefer
        """Text that is said as soon as it may be."""
        self.said = b""
        self.masks = 0
        self.free = 0
        self.ended = False

    def speak(self, tokens_max: int) -> bytes:
        """Up to a stop token or the budget."""
        matcher, free = self.matcher, False
        words = np.zeros(len(self.vocabulary.stop_words), np.uint32)
        everything = np.full_like(words, 0xFFFFFFFF)
        triggers = words
        for _ in range(tokens_max):
            if not free and matcher.is_free:
                free, triggers = True, matcher.triggers
            if free:
                self.free += 1
                token = self.choose(everything)
            else:
                self.masks += 1
                matcher.fill(words)
                assert not matcher.broken, matcher.broken
                token = self.choose(words)
            if token in self.vocabulary.stop_tokens:
                self.ended = True
                break
            self.said += self.vocabulary.token_bytes[token]
            if free and not has(triggers, token):
                continue
            free = False
            matcher.consume([token])
        return self.said

    def choose(self, words: np.ndarray) -> int:
        count = self.vocabulary.count
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")[:count])
        assert len(allowed), "nothing is allowed"
        longest = 0
        for token in allowed if self.prefer else ():
            text = self.vocabulary.token_bytes[token]
            if text and len(text) > longest and self.prefer.startswith(text):
                longest, best = len(text), int(token)
        if longest:
            self.prefer = self.prefer[longest:]
            return best
        stops = [token for token in self.vocabulary.stop_tokens if token in allowed]
        if stops and len(allowed) < count // 2 and self.random.random() < 0.5:
            return self.random.choice(stops)
        # Closing characters more often than others: documents come to an end.
        closing = [
            t for t in allowed if self.vocabulary.token_bytes[t] in (b'"', b"}", b"]", b'"}')
        ]
        if closing and self.random.random() < 0.3:
            return int(self.random.choice(closing))
        return int(self.random.choice(list(allowed)))


def has(words: np.ndarray, token: int) -> bool:
    return bool(words[token // 32] >> np.uint32(token % 32) & np.uint32(1))
