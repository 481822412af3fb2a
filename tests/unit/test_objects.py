"""Objects compiled for an instruction set must not lend a function to the rest of the program.

An inline function that two objects share is kept once by the linker, from whichever object comes
first. If that one was compiled with AVX-512, a machine without it dies in code that looked plain.
"""

import re
import subprocess
from pathlib import Path

import pytest

import house

OBJECTS = house.ROOT / "build/wheel/CMakeFiles/core_cpu.dir/core/cpu"
ISA_NAME = re.compile(r"^(avx2|avx512|amx)")
WIDE_REGISTER = re.compile(r"%[yz]mm\d|%tmm\d|%k[1-7]\b|\tv\w+\s.*%xmm")


def shared_functions(path: Path) -> set[str]:
    """Mangled names of the functions an object offers as one copy of several (weak definitions)."""
    command = ["nm", "--defined-only", path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines()]
    return {row[-1] for row in rows if len(row) == 3 and row[1] in "WV"}


def all_objects() -> list[Path]:
    return sorted(OBJECTS.parents[2].rglob("*.o"))


def test_objects_of_an_instruction_set_share_no_function() -> None:
    objects = all_objects()
    assert objects, "nothing is built: run `make build`"
    special = [path for path in objects if ISA_NAME.match(path.name)]
    assert {path.name.partition(".")[0] for path in special} >= {"avx2", "avx512"}
    offered = {path: shared_functions(path) for path in objects}
    findings = [
        f"{path.name} and {other.name} share {name}"
        for path in special
        for other in objects
        if other != path
        for name in sorted(offered[path] & offered[other])
    ]
    assert not findings, "\n".join(findings[:20])


@pytest.mark.parametrize("name", ["portable.cpp.o", "ref.cpp.o", "dispatch.cpp.o"])
def test_portable_objects_use_no_wide_register(name: str) -> None:
    path = OBJECTS / name
    assert path.is_file(), "nothing is built: run `make build`"
    done = subprocess.run(["objdump", "-d", path], capture_output=True, text=True, check=True)
    wide = [line for line in done.stdout.splitlines() if WIDE_REGISTER.search(line)]
    assert "%xmm" in done.stdout and not wide, "\n".join(wide[:10])


LOOPS = {
    # (object, function): (instruction, how many a round has)
    ("avx2_limits", "fma_f32"): (r"vfmadd\d+ps", 12),
    ("avx512_limits", "fma_f32"): (r"vfmadd\d+ps", 12),
    ("avx512_limits", "dot_int8"): (r"vpdpbusd", 12),
    ("amx_limits", "bf16"): (r"tdpbf16ps", 4),
    ("amx_limits", "bf16_loads"): (r"tdpbf16ps", 4),
    ("amx_limits", "int8"): (r"tdpbssd", 4),
}


@pytest.mark.parametrize(("name", "function"), LOOPS)
def test_f56_a_loop_does_what_it_counts(name: str, function: str) -> None:
    """Each sum has an instruction of its own, into a register of its own: sums that are equal could
    be computed once, and then a machine reads better than it is."""
    instruction, count = LOOPS[name, function]
    path = OBJECTS / f"{name}.cpp.o"
    done = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", "-C", path],
        capture_output=True,
        text=True,
        check=True,
    )
    bodies = re.split(r"(?m)^[0-9a-f]+ <(.+)>:$", done.stdout)
    body = next(
        text
        for title, text in zip(bodies[1::2], bodies[2::2], strict=True)
        if re.search(rf"\b{function}\(", title)
    )
    written = re.findall(rf"\t{instruction}\s+.*%(\w+)$", body, re.M)
    assert len(written) == len(set(written)) == count, body
