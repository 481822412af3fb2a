"""The chat template of a file's metadata: one, or several by name of which one is for tools.

Files name them tokenizer.chat_template and tokenizer.chat_template.NAME; transformers takes the one
named tool_use where a request has tools, else the one named default, and so does this.

defines: template_source
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ModelError

KEY = "tokenizer.chat_template"
DEFAULT, TOOLS = "default", "tool_use"
HAS_TOOLS = "tools or messages | selectattr('role', 'equalto', 'tool') | list"


def template_source(metadata: Mapping[str, Any]) -> str:
    """Empty: there is none. Raises ModelError."""
    named: dict[str, str] = {}
    for key, value in metadata.items():
        if key != KEY and not key.startswith(KEY + "."):
            continue
        if not isinstance(value, str):
            raise ModelError("The model file is damaged: its chat template is not text.")
        named[key[len(KEY) + 1 :]] = value
    plain = named.get("") or named.get(DEFAULT) or ""
    tools = named.get(TOOLS, "")
    if plain and tools and plain != tools:
        return f"{{% if {HAS_TOOLS} %}}{_inner(tools)}{{% else %}}{_inner(plain)}{{% endif %}}"
    return plain or tools or next((named[name] for name in sorted(named) if named[name]), "")


def _inner(source: str) -> str:
    """A template that renders inside a block as it does alone: of a line end behind a tag the first
    is dropped, and of one at a template's end."""
    begin = "\n" if source.startswith("\n") else ""
    return begin + source.removesuffix("\n")
