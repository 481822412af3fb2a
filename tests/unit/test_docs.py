"""The documents against the tree: what they name exists."""

import re
import tomllib

import house

DOCUMENTS = ["README.md", "ARCHITECTURE.md", "STYLE.md", "SECURITY.md", "CHANGELOG.md"]
SOURCE = re.compile(r"\b((?:core|src|tests|bench|proto|\.ci)/[\w./-]*\w)")
SYSTEMS = 26
README_LINES_MAX = 130
RULES = 10


def named_paths(document: str) -> set[str]:
    """Paths that a document names; a trailing line number or a folder's slash is dropped."""
    return {path for path in SOURCE.findall(house.read(document)) if "..." not in path}


def test_documents_name_only_what_exists() -> None:
    missing = [
        f"{document}: {path}"
        for document in DOCUMENTS
        for path in sorted(named_paths(document))
        if not (house.ROOT / path).exists()
    ]
    assert not missing, "\n".join(missing)


def test_documents_name_only_make_targets_that_exist() -> None:
    targets = set(re.findall(r"(?m)^([\w -]+):", house.read("Makefile")))
    targets = {word for group in targets for word in group.split()}
    named = {
        (document, target)
        for document in DOCUMENTS
        for target in re.findall(r"`make ([\w-]+)", house.read(document))
    }
    assert named and not [pair for pair in named if pair[1] not in targets]


def status_rows() -> dict[int, tuple[str, str, str]]:
    """Number of a system -> (system, status, what shows it)."""
    rows = {}
    for line in house.read("README.md").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == 4 and cells[0].isdigit():
            rows[int(cells[0])] = (cells[1], cells[2], cells[3])
    return rows


def test_readme_says_where_each_system_stands() -> None:
    rows = status_rows()
    assert sorted(rows) == list(range(1, SYSTEMS + 1))
    for number, (system, status, shown) in rows.items():
        assert system and status in ("works", "partly", "not yet"), number
        assert ("`" in shown) == (status != "not yet"), f"{number}: a command shows what works"


def test_readme_is_short_and_starts_with_the_commands() -> None:
    text = house.read("README.md")
    assert len(text.splitlines()) <= README_LINES_MAX
    assert all(words in text for words in ("make serve", "make test", "curl "))


def test_style_names_the_test_of_each_rule() -> None:
    text = house.read("STYLE.md")
    assert re.findall(r"(?m)^## (\d+)\.", text) == [str(rule) for rule in range(1, RULES + 1)]
    tests = {
        function.name
        for path in house.source_files("tests", suffixes=(".py",))
        for function in house.python_functions(path)
    }
    for section in re.split(r"(?m)^## ", text)[1:]:
        named = re.findall(r"`(test_\w+)`", section)
        if re.match(r"\d", section):
            assert named, section.splitlines()[0]
        assert set(named) <= tests, set(named) - tests


def test_changelog_has_the_version() -> None:
    version = tomllib.loads(house.read("pyproject.toml"))["project"]["version"]
    assert f"## {version}" in house.read("CHANGELOG.md")
