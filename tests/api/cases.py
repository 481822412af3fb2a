"""The case files of tests/cases: what went wrong for others, as requests for this server.

defines: load_cases, Case, request_of, case, REGISTRY
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from harness import Served

FOLDER = Path(__file__).resolve().parents[1] / "cases"
FILES = ("messages_api.jsonl", "reliability.jsonl")

Check = Callable[[Served], None]
REGISTRY: dict[str, Check] = {}


@functools.cache
def load_cases() -> dict[str, dict[str, Any]]:
    """Id -> line."""
    lines = [line for name in FILES for line in (FOLDER / name).read_bytes().splitlines()]
    cases = [msgspec.json.decode(line) for line in lines]
    found = {case["id"]: case for case in cases}
    assert len(found) == len(cases), "every id is unique"
    return found


def request_of(identifier: str, index: int | None = None, **changes: Any) -> dict[str, Any]:
    """The request of a case for the model `tiny`; index: of a list of requests."""
    request = load_cases()[identifier]["request"]
    if index is not None:
        request = request[index]
    made = expand(request)
    assert isinstance(made, dict), f"{identifier} has no request"
    made.pop("endpoint", None)
    return {**made, "model": "tiny", **changes}


def expand(value: Any) -> Any:
    """{"$repeat": [text, n]} stands for text * n."""
    if isinstance(value, dict):
        if "$repeat" in value:
            text, count = value["$repeat"]
            return text * count
        return {name: expand(part) for name, part in value.items()}
    if isinstance(value, list):
        return [expand(part) for part in value]
    return value


def case(*identifiers: str) -> Callable[[Check], Check]:
    """Registers a check of the shared server for these cases.

    It runs once for all of them: what held for the first id need not be waited for again. One that
    fails is run, and fails, for each id.
    """

    def register(check: Check) -> Check:
        held_for: list[Served] = []

        def once(served: Served) -> None:
            if not any(one is served for one in held_for):
                check(served)
                held_for.append(served)

        for identifier in identifiers:
            assert identifier not in REGISTRY, identifier
            assert identifier in load_cases(), identifier
            REGISTRY[identifier] = once
        return check

    return register
