"""Whether a folder holds a model in a form that is read here; else what to do.

defines: CONFIG, SINGLE, INDEX, FOR_TOOLS, check_form
"""

from __future__ import annotations

import os
from pathlib import Path

from ...errors import ModelError

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
"""Names the file of each tensor, where there are several."""
FOR_TOOLS = "additional_chat_templates/tool_use.jinja"
"""The template of requests with tools, where it is another one."""
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "consolidated.00.pth")


def check_form(folder: Path) -> None:
    """Raises ModelError for a folder that is none, or holds a model in another form."""
    try:
        names = set(os.listdir(folder))
    except OSError as error:
        raise ModelError(f"{folder} cannot be read: {error.strerror}.") from None
    ggufs = sorted(name for name in names if name.lower().endswith(".gguf"))
    if CONFIG not in names:
        if ggufs:
            raise ModelError(f"{folder} is a folder of GGUF files; name one: {folder / ggufs[0]}")
        if "adapter_config.json" in names:
            raise ModelError(f"{folder} is an adapter; name the model that it was made for.")
        raise ModelError(f"{folder} is no model: it has no {CONFIG}.")
    if SINGLE in names or INDEX in names:
        return
    if pickled := sorted(names.intersection(PICKLED)):
        raise ModelError(
            f"{folder} has its weights in {pickled[0]}, a format that can run any code when it is "
            f"loaded, and is never read. Take a repository with safetensors, or save the model as "
            f"such (save_pretrained of transformers) where you trust the file."
        )
    hint = f" It has {ggufs[0]}, which can be named." if ggufs else ""
    raise ModelError(f"{folder} has neither {SINGLE} nor {INDEX}.{hint}")
