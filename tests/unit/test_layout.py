"""The request record and the binding's surface, each against its pinned description."""

import ast
import json

import house
from sublimate import _core


def test_request_layout_is_frozen() -> None:
    """A change of this file is a change of REQUEST_VERSION: old and new processes must not meet."""
    pinned = json.loads(house.read("tests/unit/request_layout.json"))
    assert _core.REQUEST_VERSION == pinned["version"]
    assert _core.REQUEST_HEADER_WORDS == pinned["header_words"]
    assert {name: list(place) for name, place in _core.REQUEST_FIELDS.items()} == pinned["fields"]


def test_request_fields_cover_the_header_without_overlap() -> None:
    places = _core.REQUEST_FIELDS.values()
    words = [first + i for first, count in places for i in range(count)]
    assert sorted(words) == list(range(_core.REQUEST_HEADER_WORDS))


def stub_names() -> dict[str, ast.stmt]:
    names: dict[str, ast.stmt] = {}
    for node in ast.parse(house.read("src/sublimate/_core.pyi")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names[node.target.id] = node
    return names


def public(names: list[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def test_stub_names_what_the_extension_has() -> None:
    assert public(list(stub_names())) == public(dir(_core))


def test_stub_classes_have_the_members_of_the_extension() -> None:
    for name, node in stub_names().items():
        if not isinstance(node, ast.ClassDef) or name == "CoreError":
            continue
        members = [member.name for member in node.body if isinstance(member, ast.FunctionDef)]
        members += [ast.unparse(m.target) for m in node.body if isinstance(m, ast.AnnAssign)]
        assert public(members) == public(dir(getattr(_core, name))), name


def test_limits_are_those_of_the_header() -> None:
    """Every scalar constant of core/limits.h by its name and nothing else."""
    text = house.strip_cpp("core/limits.h")
    declared = {
        line.split("=")[0].split()[-1]
        for line in text.splitlines()
        if line.startswith("constexpr int") and "[" not in line and "(" not in line.split("=")[0]
    }
    assert set(_core.LIMITS) == declared
