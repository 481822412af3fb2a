"""Faults that were found by using the product: a test names each line of found.jsonl."""

import re
from pathlib import Path

import msgspec
import pytest

FOLDER = Path(__file__).parent
TESTS = FOLDER.parent
CASES = [msgspec.json.decode(line) for line in (FOLDER / "found.jsonl").read_bytes().splitlines()]
# A test names its case in its own name (test_f07_...) or in the id of a parameter ("F07").
TEST_NAMES = re.compile(r"\bdef test_\w+|\bTEST\(\w+")
PARAMETERS = re.compile(r"\bid=f?\"F(\d\d)")


def named_cases() -> set[str]:
    texts = [
        path.read_text()
        for path in (*TESTS.rglob("test_*.py"), *TESTS.rglob("test_*.cpp"))
        if path != Path(__file__)
    ]
    names = [name for text in texts for name in TEST_NAMES.findall(text)]
    in_names = [number for name in names for number in re.findall(r"(?<=[_(])f(\d\d)_", name)]
    in_parameters = [number for text in texts for number in PARAMETERS.findall(text)]
    return {f"F{number}" for number in (*in_names, *in_parameters)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_test_names_the_case(case: dict[str, str]) -> None:
    assert case["id"] in named_cases(), f"no test names {case['id']}: {case['input']}"
