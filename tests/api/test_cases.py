"""Both case files: each line is a check here, a test elsewhere in the tree, or not offered."""

import pytest

import cases_messages
import cases_reliability
import cases_tools
import cases_wire
from cases import FILES, FOLDER, REGISTRY, load_cases
from cases_not_offered import ELSEWHERE, NOT_OFFERED
from harness import Served, wait_until
from house import ROOT

CHECKS = (cases_messages, cases_tools, cases_reliability, cases_wire)


@pytest.mark.parametrize("identifier", sorted(REGISTRY))
def test_case(shared: Served, identifier: str) -> None:
    REGISTRY[identifier](shared)
    wait_until(shared.idle)
    assert shared.engine.audit() == ""


def test_every_case_is_in_exactly_one_place() -> None:
    places = [set(REGISTRY), set(ELSEWHERE), set(NOT_OFFERED)]
    assert set.union(*places) == set(load_cases())
    assert sum(map(len, places)) == len(load_cases())
    assert len(CHECKS) > len(FILES) and all((FOLDER / name).is_file() for name in FILES)


def test_every_place_elsewhere_exists() -> None:
    missing = sorted({path for path in ELSEWHERE.values() if not (ROOT / path).exists()})
    assert not missing, missing


def test_every_reason_is_one() -> None:
    assert all(len(reason) > 20 and reason.endswith(".") for reason in NOT_OFFERED.values())
