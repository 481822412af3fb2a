"""Setting up: what make installs and when it builds again, and CMake in folders of any name.

The commands of the Makefile run as they are, on a Python that writes down what it was asked to do
and installs nothing.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import house
from sublimate import _core

NAMES = ("plain", "a space", "it's", "düne", "(some) 'more' & é")
REFUSED = ('a "quote"', "a;b", "a:b", "a\\b", "a$b")
TREES = ("core", "proto", "src", "clients/policy")
FILES = ("CMakeLists.txt", "Makefile", "pyproject.toml", "constraints.txt", "README.md", "LICENSE")
STUB = """#!{real}
import os, shutil, sys
from pathlib import Path

arguments = sys.argv[1:]
asked = sys.stdin.read().split() if "/dev/stdin" in arguments else []
if arguments[:2] == ["-m", "venv"]:
    folder = Path(os.path.abspath(arguments[2]))
    (folder / "bin").mkdir(parents=True)
    shutil.copy(__file__, folder / "bin/python")
    (folder / "pyvenv.cfg").write_text(f"command = python3 -m venv {{folder}}\\n")
elif arguments[:1] == ["-c"] and "scikit_build_core" not in arguments[1]:
    os.execv({real!r}, [{real!r}, *arguments])
elif "--editable" in arguments:
    folder = Path(".venv/lib/python3.11/site-packages/sublimate")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "_core.so").touch()
elif "--target" in arguments:
    Path("build/tools").mkdir(parents=True, exist_ok=True)
if arguments[:1] == ["-m"]:
    with open({log!r}, "a") as file:
        file.write(" ".join([*arguments, *asked]) + "\\n")
"""

Make = Callable[..., list[str]]


@pytest.fixture(params=[NAMES[0], NAMES[-1]])
def checkout(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / request.param / "checkout"
    (folder / "core/ring").mkdir(parents=True)
    (folder / "proto").mkdir()
    (folder / "src/sublimate/v1").mkdir(parents=True)
    (folder / "core/policy").mkdir()
    (folder / "core/policy/generate.py").touch()
    for name in ("one", "two"):
        (folder / f"core/ring/{name}.cpp").touch()
    for name in FILES:
        shutil.copy(house.ROOT / name, folder)
    return folder


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Runs make in a folder; what Python was asked meanwhile, a line each."""
    log, stub = tmp_path / "log", tmp_path / "python-stub"
    stub.write_text(STUB.format(real=sys.executable, log=str(log)))
    stub.chmod(0o755)
    inherited = ("MAKE", "MFLAGS", "ARGS")  # from a make that runs these tests
    plain = {k: v for k, v in os.environ.items() if not k.startswith(inherited)}

    def run(folder: Path, *goals: str) -> list[str]:
        log.write_text("")
        command = ["make", f"PYTHON={stub}", *goals]
        done = subprocess.run(command, cwd=folder, env=plain, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return log.read_text().splitlines()

    return run


def compiled(asked: list[str]) -> bool:
    return any("--editable" in line for line in asked)


def test_f65_f67_f68_make_builds_what_is_needed_and_when(checkout: Path, make: Make) -> None:
    asked = make(checkout, "serve")
    assert asked[-1] == "-m sublimate serve" and compiled(asked)
    installed = " ".join(line for line in asked if "pip" in line and "--target" not in line)
    assert re.search(r"\buvloop\b", installed)
    assert not re.search(r"\b(pytest|anthropic|cmake|ninja|nanobind|ruff)\b", installed)
    bytecode = checkout / "src/sublimate/v1/__pycache__"
    bytecode.mkdir()
    (bytecode / "layer_pb2.cpython-311.pyc").touch()
    assert make(checkout, "build") == [], "the first run of a server writes bytecode"

    (checkout / "core/ring/two.cpp").unlink()
    assert compiled(make(checkout, "build")), "a source was removed"
    (checkout / "core/ring/three.cpp").touch()
    os.utime(checkout / "core/ring/three.cpp", (0, 0))
    assert compiled(make(checkout, "build")), "a source was added, as old as its archive says"
    next(checkout.glob(".venv/lib/*/*/sublimate/_core.so")).unlink()
    assert compiled(make(checkout, "build")), "the extension is not there"
    assert make(checkout, "build") == []

    moved = checkout.rename(checkout.with_name("moved"))
    asked = make(moved, "build")
    assert asked[0].startswith("-m venv") and compiled(asked)
    assert make(moved, "build") == []


@pytest.mark.parametrize("name", REFUSED)
def test_f65_make_says_what_no_folder_may_be_named(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    shutil.copy(house.ROOT / "Makefile", folder)
    done = subprocess.run(["make", "build"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 2 and "Rename the folder" in done.stderr
    assert not list(folder.glob(".venv"))


@pytest.mark.parametrize("checkout", ["plain"], indirect=True)
def test_f68_tests_and_linters_are_installed_by_what_uses_them(checkout: Path, make: Make) -> None:
    make(checkout, "build")
    (checkout / "build/wheel").mkdir(parents=True)
    (checkout / "build/wheel/CMakeCache.txt").touch()
    asked = make(checkout, "test", "ARGS=tests/unit/test_ring.py")
    assert not compiled(asked) and "pytest" in asked[0] and "anthropic" in asked[0]
    assert asked[-1].endswith("tests/unit/test_ring.py")
    assert "ruff" in "".join(make(checkout, ".venv/stamp-dev"))


@pytest.fixture
def cmake() -> Iterator[str]:
    cache = house.ROOT / "build/wheel/CMakeCache.txt"
    if not cache.is_file():
        pytest.skip("the extension was not built here")
    yield re.findall("^CMAKE_COMMAND:INTERNAL=(.*)", cache.read_text(), re.M)[0]


@pytest.mark.parametrize("name", NAMES[-2:])
def test_f65_cmake_compiles_and_installs_in_a_folder_of_any_name(
    name: str, tmp_path: Path, cmake: str
) -> None:
    root = tmp_path / name
    for tree in TREES:
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(house.ROOT / tree, root / tree, ignore=ignored)
    for file in (*FILES, "tests/torture/fail_nth.cpp"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(house.ROOT / file, root / file)
    paths = [str(house.ROOT / "build/tools"), *(path for path in sys.path if path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def run(*arguments: str | Path) -> None:
        done = subprocess.run(
            [cmake, *arguments], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    build = root / "build"
    given = ("-DSUBLIMATE_PYTHON=ON", f"-DPython_EXECUTABLE={sys.executable}")
    run("-S", root, "-B", build, *given)
    run("--build", build, "--target", "core_ring")
    shutil.copy(_core.__file__, build)  # in place of linking all of it
    run("--install", build, "--prefix", root / "installed")
    names = {path.name for path in (root / "installed/sublimate").rglob("*")}
    assert {Path(_core.__file__).name, "decide.wasm", "MANIFEST"} <= names
