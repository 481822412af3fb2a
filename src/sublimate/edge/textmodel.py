"""What the edge knows of the model: its names, tokenizer, template and the bytes of its tokens.

defines: TextModel, load_text_model
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import _core
from ..errors import ConfigError, ModelError, nearest
from ..grammar.compiler import Grammars
from ..model.conversation import ConversationTokenizer
from ..model.template import ChatTemplate, template_from_metadata
from ..model.tokenizer import Tokenizer, tokenizer_from_metadata
from . import limits
from .errors import ApiError

VENDOR_PREFIX = "claude-"
"""Any id that begins so names the loaded model: clients work by changing the base URL alone, and
one of them lists only ids that contain this word."""
ALWAYS = ("default", "sublimate")


class TextModel:
    """One loaded model, seen from the text side. What it says of a text never changes."""

    def __init__(
        self,
        name: str,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        display_name: str = "",
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.display_name = display_name or name
        self.facts = dict(facts or {})
        """What its file says of the model, without its tokenizer."""
        self.file_bytes = 0
        self.created_seconds = int(time.time())
        self.tokenizer = tokenizer
        self.template = template
        self.conversations = ConversationTokenizer(tokenizer)
        self.vocabulary = _core.Vocabulary(tokenizer.token_bytes)
        self.grammars = Grammars(tokenizer, template.tool_format, template.thinking_format)
        self.listed = (name, VENDOR_PREFIX + name)
        self._names = {name, name.lower(), display_name, *self.listed, *ALWAYS}

    def add_aliases(self, aliases: Sequence[str]) -> None:
        """More names, each as ALIAS=MODEL with a name that is known. Raises ConfigError."""
        for text in aliases:
            alias, _, target = text.partition("=")
            if not alias or len(alias) > limits.IDENTIFIER_CHARACTERS_MAX:
                raise ConfigError(f"alias {text!r}: expected ALIAS=MODEL.")
            if target not in self._names:
                raise ConfigError(
                    f"alias {text!r}: no model {target!r} is served.{nearest(target, self._names)}"
                )
            self._names.add(alias)
            self.listed = (*self.listed, alias)

    def resolve(self, requested: str) -> str:
        """The model's own name for an id of a request. Raises ApiError (404) for an unknown one.

        A request's id is looked up, never joined to anything.
        """
        known = requested in self._names or requested.startswith(VENDOR_PREFIX)
        if known and len(requested) <= limits.IDENTIFIER_CHARACTERS_MAX:
            return self.name
        shown = requested[: limits.IDENTIFIER_CHARACTERS_MAX]
        raise ApiError("unknown_model", model=shown)


def text_model_from_metadata(
    name: str, metadata: Mapping[str, Any], tool_format: str = ""
) -> TextModel:
    """From GGUF metadata. Raises ModelError."""
    tokenizer = tokenizer_from_metadata(metadata)
    template = template_from_metadata(metadata, tokenizer, tool_format)
    facts = {
        key: value
        for key, value in metadata.items()
        if not key.startswith("tokenizer.") and not isinstance(value, list)
    }
    return TextModel(name, tokenizer, template, str(metadata.get("general.name", "")), facts)


def load_text_model(path: str, name: str = "", tool_format: str = "") -> TextModel:
    """From a GGUF file; `tool_format` as in ChatTemplate. Raises ModelError."""
    try:
        metadata = _core.Gguf(path).metadata
    except _core.CoreError as error:
        raise ModelError(str(error)) from None
    model = text_model_from_metadata(name or Path(path).stem, metadata, tool_format)
    model.file_bytes = Path(path).stat().st_size
    return model
