"""The default model, loaded once per mode, and the reference outputs.

defines: golden, engines
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sublimate

REFERENCE = Path(__file__).parent / "smollm2-135m-q4_1.json"


@pytest.fixture(scope="session")
def golden() -> list[dict[str, Any]]:
    """Cases: messages, rendered prompt, ids, greedy continuation, gaps, NLL of the prompt."""
    return json.loads(REFERENCE.read_text())["cases"]


@pytest.fixture(scope="session")
def engines() -> Iterator[Callable[[bool], sublimate.Engine]]:
    """exact -> an engine of the default model; made when first asked for."""
    made: dict[bool, sublimate.Engine] = {}

    def engine(exact: bool) -> sublimate.Engine:
        if exact not in made:
            made[exact] = sublimate.Engine(exact=exact, context_length=4096, kv_memory=1 << 30)
        return made[exact]

    yield engine
    for each in made.values():
        each.close()
