"""The script of a scripted engine: which token ids answer which prompt. For tests.

defines: Script, read_script
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..errors import ConfigError


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments of LoopEngine.with_script. `answers`: (sequence in the prompt, ids to answer)."""

    answers: list[tuple[list[int], list[int]]]
    vocabulary: int
    context_length: int = 8192
    kv_pages: int = 4096
    stop_token: int = 2
    step_delay_us: int = 0
    prefill_delay_us_per_token: int = 0
    speculation: bool = False


def read_script(path: str) -> Script:
    """The script of a JSON file. Raises ConfigError."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Script)
    except OSError as error:
        raise ConfigError(f"The script {path} cannot be read: {error.strerror}.") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"The script {path} is not valid: {error}.") from None
