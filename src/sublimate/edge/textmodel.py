"""What the edge knows of a model's text: its tokenizer, template and the bytes of its tokens.

defines: TextModel, load_text_model
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _core
from ..grammar.compiler import Grammars
from ..model.conversation import ConversationTokenizer
from ..model.source import metadata_of, name_of, weight_bytes
from ..model.template import ChatTemplate, template_from_metadata
from ..model.tokenizer import Tokenizer, tokenizer_from_metadata
from .sampling import defaults_of

if TYPE_CHECKING:
    from ..model.borders import BorderFinder


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
        self.sampling = defaults_of(self.facts)
        """What it recommends, for requests that do not say."""
        self.file_bytes = 0
        self.created_seconds = int(time.time())
        self.tokenizer = tokenizer
        self.template = template
        self.conversations = ConversationTokenizer(tokenizer)
        self.vocabulary = _core.Vocabulary(tokenizer.token_bytes)
        self.grammars = Grammars(tokenizer, template.tool_format, template.thinking_format)

    @cached_property
    def borders(self) -> BorderFinder:
        """Made for the first prompt that may be cut, with numpy: a start need not wait for it."""
        from ..model.borders import BorderFinder

        return BorderFinder(self.tokenizer.token_bytes, self.tokenizer.stop_tokens)

    def warm_up(self) -> None:
        """So that no request waits for what nothing but some requests needs."""
        self.tokenizer.warm_up()
        self.grammars.warm_up()


def text_model_from_metadata(
    name: str, metadata: Mapping[str, Any], tool_format: str = ""
) -> TextModel:
    """From GGUF metadata. Raises ModelError."""
    tokenizer = tokenizer_from_metadata(metadata)
    template = template_from_metadata(metadata, tokenizer, tool_format)
    facts = {
        key: value
        for key, value in metadata.items()
        if not key.startswith(("tokenizer.", "sublimate.")) and not isinstance(value, list)
    }
    return TextModel(name, tokenizer, template, str(metadata.get("general.name", "")), facts)


def load_text_model(path: str, name: str = "", tool_format: str = "") -> TextModel:
    """From a GGUF file or a folder; `tool_format` as in ChatTemplate. Raises ModelError."""
    metadata = metadata_of(path)
    model = text_model_from_metadata(name or name_of(Path(path)), metadata, tool_format)
    model.file_bytes = weight_bytes(path)
    return model
