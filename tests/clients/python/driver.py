"""What the drivers of all Python clients share: the same questions, and a report in JSON.

defines: ASKED, LONG, RESULT, TOKENS, CALL_TOKENS, LONG_TOKENS, SCHEMA, TOOL, City, url, wait_idle,
         report
"""

import json
import sys
import time
import urllib.request
from typing import Any, Literal

import pydantic

ASKED = "Name three rivers of Europe."
LONG = "Tell me everything about the history of Rome, in detail."
RESULT = "It rains in Bern, 7 degrees."
TOKENS, CALL_TOKENS, LONG_TOKENS = 24, 64, 1800
IDLE_SECONDS = 5.0
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Rome"]}, "count": {"type": "integer"}},
    "required": ["city", "count"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Bern", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


class City(pydantic.BaseModel):
    """SCHEMA as a model."""

    city: Literal["Bern", "Rome"]
    count: int


def url() -> str:
    """Of the server, given on the command line."""
    return sys.argv[1]


def _metrics() -> dict[str, float]:
    with urllib.request.urlopen(f"{url()}/metrics") as reply:
        lines = [line for line in reply.read().decode().splitlines() if not line.startswith("#")]
    return {line.partition("{")[0].split()[0]: float(line.rpartition(" ")[2]) for line in lines}


def wait_idle() -> bool:
    """Nothing runs at the server any more, while this process and its connections live."""
    deadline = time.monotonic() + IDLE_SECONDS
    while time.monotonic() < deadline:
        if _metrics()["sublimate_num_requests_running"] == 0:
            return True
        time.sleep(0.01)
    return False


def report(version: str, **found: Any) -> None:
    """The one line that is read."""
    print(json.dumps({"version": version, **found}))
