"""A compiled part that is missing or of another version: a line says what to do."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from house import ROOT
from sublimate import _core
from sublimate.extension import problem_of

OTHER = """
def __getattr__(name):
    raise AttributeError(f"no {name}", name=name, obj=__import__("sys").modules[__name__])
"""

MAIN = """
import runpy, sys
# An editable install finds its own compiled part whatever lies in the folder.
sys.meta_path = [finder for finder in sys.meta_path if "Scikit" not in type(finder).__name__]
del sys.argv[0]
sys.path[0] = ""
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""

DAMAGED = "raise ImportError('x: bad ELF', name=__name__)"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The sources as a checkout has them, without the compiled part."""
    package = tmp_path / "src/sublimate"
    ignored = shutil.ignore_patterns("_core*", "__pycache__", "MANIFEST")
    shutil.copytree(ROOT / "src/sublimate", package, ignore=ignored)
    (tmp_path / "pyproject.toml").touch()
    return package


def run(package: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(package.parent), "COLUMNS": "200"}
    given = [sys.executable, "-c", MAIN, *command]
    return subprocess.run(given, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "there is none"), (OTHER, "it lacks "), (DAMAGED, "bad ELF")],
    ids=["missing", "of another version", "damaged"],
)
def test_a_command_says_what_is_wrong_with_it(
    package: Path, content: str | None, said: str
) -> None:
    if content is not None:
        (package / "_core.py").write_text(content)
    ended = run(package, "sublimate", "serve", "--port", "0")
    assert ended.returncode == 4
    [line] = ended.stderr.splitlines()
    assert line.startswith("Error: The compiled part of sublimate cannot be used: ")
    assert said in line and "make build" in line


def test_what_needs_no_compiled_part_goes_without(package: Path) -> None:
    assert run(package, "sublimate", "version").stdout.startswith("sublimate ")


def test_other_errors_are_what_they_were() -> None:
    for error in (
        AttributeError("x", name="x", obj=os),
        ImportError("no", name="numpy"),
        ModuleNotFoundError("no", name="absent"),
        KeyError("_core"),
    ):
        assert problem_of(error) == ""
    with pytest.raises(AttributeError) as caught:
        _core.absent  # noqa: B018  # pyright: ignore
    assert "lacks absent" in problem_of(caught.value)
    with pytest.raises(ImportError) as imported:
        from sublimate._core import absent  # noqa: F401  # pyright: ignore
    assert "lacks absent" in problem_of(imported.value)
    with pytest.raises(TypeError) as unknown:
        _core.convert("a", "b", exact=False, absent=None)  # pyright: ignore
    assert "its convert takes no absent" in problem_of(unknown.value)
    for wrong in ({"exact": "text"}, {}):
        with pytest.raises(TypeError) as mistaken:
            _core.convert("a", 1, **wrong)  # pyright: ignore
        assert problem_of(mistaken.value) == "", "a bug keeps its traceback"
    with pytest.raises(ModuleNotFoundError) as missing:
        importlib.import_module("sublimate.absent")
    assert problem_of(missing.value) == ""
