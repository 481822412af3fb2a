"""The list of planted bugs fits the tree. `make mutants` runs them."""

from collections import Counter

import pytest

from mutants import ROOT, BrokenError, Mutant, changed, missing_suite, read_list

MUTANTS = read_list()
FOLDERS = (
    "core/loop/", "core/ring/", "core/text/", "src/sublimate/edge/access.py",
    "src/sublimate/keys.py", "src/sublimate/edge/quota.py", "src/sublimate/edge/ledger.py",
    "src/sublimate/edge/idempotency.py", "src/sublimate/api/batches/", "src/sublimate/api/files/",
)  # fmt: skip
MUTANTS_MIN = 120


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_a_planted_bug_applies_and_its_suites_exist(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text()
    assert changed(mutant, text) != text
    assert mutant.suite and [missing_suite(suite) for suite in mutant.suite] == [""] * len(
        mutant.suite
    )


def test_the_list_covers_what_it_is_for() -> None:
    assert len(MUTANTS) >= MUTANTS_MIN
    assert not [name for name, count in Counter(one.id for one in MUTANTS).items() if count > 1]
    for folder in FOLDERS:
        assert any(one.file.startswith(folder) for one in MUTANTS), folder


def test_a_change_that_no_longer_applies_is_an_error() -> None:
    mutant = Mutant("x", "a bug", "core/limits.h", [("no such text", "")], ["test_ring"])
    with pytest.raises(BrokenError, match="0 places"):
        changed(mutant, "some text")
    with pytest.raises(BrokenError, match="2 places"):
        changed(mutant, "no such text, no such text")


@pytest.mark.parametrize(
    "suite", ["test_nothing", "tests/api/test_nothing.py", "tests/unit/test_keys.py::test_nothing"]
)
def test_a_suite_that_is_not_there_is_an_error(suite: str) -> None:
    assert missing_suite(suite)
