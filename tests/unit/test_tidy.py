"""The house rules as tests, each over the whole tree. STYLE.md says which rule each one keeps."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest

import house

CPP = house.source_files("core", suffixes=(".h", ".cpp", ".cu"))
CPP_ALL = house.source_files("core", "tests", "bench", suffixes=(".h", ".cpp", ".cu"))
PYTHON = house.source_files("src", suffixes=(".py",))
PYTHON_ALL = house.source_files("src", "tests", suffixes=(".py", ".pyi"))

LINE_COLUMNS_MAX = 100
FUNCTION_LINES_MAX = 70
LOOP_LINES_MAX = 60
LITERAL_MAX = 64


def none(findings: list[str]) -> None:
    """Fails with one finding per line."""
    assert not findings, "\n" + "\n".join(findings)


def test_there_is_something_to_check() -> None:
    assert "core/limits.h" in CPP
    assert "tests/unit/test_tidy.py" in PYTHON_ALL
    assert any(path.startswith("src/sublimate/") for path in PYTHON)


def test_lines_fit() -> None:
    none(
        [
            f"{path}:{number}: {len(line)} columns"
            for path in CPP_ALL + PYTHON_ALL
            for number, line in enumerate(house.read(path).splitlines(), 1)
            if len(line) > LINE_COLUMNS_MAX
        ]
    )


def test_functions_fit() -> None:
    functions = [f for path in CPP_ALL for f in house.cpp_functions(path)]
    functions += [f for path in PYTHON_ALL for f in house.python_functions(path)]
    assert len(functions) > len(CPP + PYTHON), "the scanner finds no functions"
    none(
        [
            f"{f.path}:{f.line}: {f.name} has {f.lines} lines"
            for f in functions
            if f.lines > FUNCTION_LINES_MAX
        ]
    )


def test_the_loop_fits_one_screen_and_names_its_verbs_in_order() -> None:
    verbs = ["take", "cancel", "admit", "schedule", "step", "sample", "stop", "publish"]
    for function in house.cpp_functions("core/loop/loop.h"):
        found = [list(re.finditer(rf"\b{verb}\w*\(", function.body)) for verb in verbs]
        if all(found):
            places = [matches[-1].start() for matches in found]
            assert places == sorted(places), f"{function.name} has its verbs in another order"
            assert function.lines <= LOOP_LINES_MAX
            return
    pytest.fail("no function of core/loop/loop.h calls " + ", ".join(verbs))


# ---- banned constructs --------------------------------------------------------------------------

CPP_BANNED = {
    r"std::(basic_)?regex": "use a hand-written scanner with a bound",
    r"\balloca\s*\(": "stack use must be bounded at compile time",
    r"\bassert\s*\(": "CHECK stays in release builds",
    r"\b(strcpy|strcat|sprintf|gets|atoi|atol|atof|strtok)\s*\(": "unbounded or unchecked",
    r"\busing\s+namespace\s+std\b": "spell std:: out",
    r"\bgoto\b": "structured control flow only",
    r"\bNDEBUG\b": "no behaviour that differs in release builds",
    r"\b(std::)?(rand|srand)\s*\(": "randomness is seeded and counter-based",
}
DEVICE_HEADERS = [
    p for p in CPP if p.startswith(("core/loop/", "core/ring/ring.h")) and p[-2:] == ".h"
]
DEVICE_INCLUDES = {
    "algorithm", "array", "bit", "cfloat", "climits", "cmath", "concepts", "cstddef", "cstdint",
    "cstring", "cuda/atomic", "limits", "span", "type_traits", "utility",
}  # fmt: skip


def test_no_banned_construct_in_cpp() -> None:
    none(
        [
            f"{path}:{number}: {line.strip()} ({why})"
            for path in CPP
            for number, line in enumerate(house.strip_cpp(path).splitlines(), 1)
            for pattern, why in CPP_BANNED.items()
            if re.search(pattern, line)
        ]
    )


def test_loop_and_ring_headers_hold_no_host_facility() -> None:
    """What compiles for a device can neither allocate nor throw nor lock."""
    types = "vector|string|map|unordered_map|mutex|thread|function|unique_ptr|shared_ptr"
    banned = (
        rf"(?<!= )\b(new|delete|throw|try|catch|(malloc|free)\s*\(|thread_local|std::({types}))\b"
    )
    findings = []
    for path in DEVICE_HEADERS:
        for number, line in enumerate(house.strip_cpp(path).splitlines(), 1):
            include = re.match(r"\s*#\s*include\s*<([^>]+)>", line)
            if (include and include.group(1) not in DEVICE_INCLUDES) or re.search(banned, line):
                findings.append(f"{path}:{number}: {line.strip()}")
    none(findings)


PYTHON_BANNED_IMPORTS = {"pickle", "marshal", "shelve", "json", "simplejson", "orjson", "imp"}
PYTHON_BANNED_CALLS = {"eval", "exec", "compile", "literal_eval", "__import__", "system", "popen"}
TASK_CALLS = {"create_task", "ensure_future"}


def called_name(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        receiver = node.func.value
        if node.func.attr == "compile" and isinstance(receiver, ast.Name) and receiver.id == "re":
            return "re.compile"
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def banned_python(path: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(house.read(path))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module]
            )
            writes_only = ast.unparse(node) == "from json import dumps"
            for name in names:
                if name and name.split(".")[0] in PYTHON_BANNED_IMPORTS and not writes_only:
                    yield node.lineno, f"import {name}"
        elif isinstance(node, ast.Call) and called_name(node) in PYTHON_BANNED_CALLS:
            yield node.lineno, f"{called_name(node)}()"
        elif isinstance(node, ast.Call) and any(
            word.arg == "shell" and isinstance(word.value, ast.Constant) and word.value.value
            for word in node.keywords
        ):
            yield node.lineno, "shell=True"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if called_name(node.value) in TASK_CALLS:
                yield node.lineno, "a task that nobody holds"
        elif isinstance(node, ast.Assert):
            yield node.lineno, "assert vanishes under -O"


def test_no_banned_construct_in_python() -> None:
    none([f"{path}:{line}: {what}" for path in PYTHON for line, what in banned_python(path)])


EDGE = [path for path in PYTHON if path.startswith("src/sublimate/edge/")]


def shown_exceptions(handler: ast.ExceptHandler) -> Iterator[int]:
    """Lines that turn the caught exception into text, but for raising an operator's error."""
    for_people = {
        id(part)
        for node in ast.walk(handler)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
        if called_name(node.exc) in {"ModelError", "ConfigError", "EngineError"}
        for part in ast.walk(node)
    }
    for node in ast.walk(handler):
        arguments: list[ast.expr] = []
        if isinstance(node, ast.FormattedValue):
            arguments = [node.value]
        elif isinstance(node, ast.Call) and called_name(node) in {"str", "repr", "format"}:
            arguments = node.args
        shown = any(isinstance(a, ast.Name) and a.id == handler.name for a in arguments)
        if shown and id(node) not in for_people:
            yield handler.lineno


def test_exception_text_never_reaches_a_client() -> None:
    """The edge maps a caught exception to a code of the error table; its text goes to the log."""
    none(
        [
            f"{path}:{line}: text of an exception"
            for path in EDGE
            for handler in ast.walk(ast.parse(house.read(path)))
            if isinstance(handler, ast.ExceptHandler)
            for line in shown_exceptions(handler)
        ]
    )


def test_edge_unpacks_no_mapping_and_loops_over_no_tokens() -> None:
    """No **kwargs from the wire; a token is looked at in native code only."""
    findings = []
    for path in EDGE:
        tree = ast.parse(house.read(path))
        functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
        own = {f.args.kwarg.arg for f in functions if f.args.kwarg}  # handed on as it came
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                bags = [ast.unparse(word.value) for word in node.keywords if word.arg is None]
                findings += [f"{path}:{node.lineno}: **{bag}" for bag in bags if bag not in own]
            elif isinstance(node, ast.For | ast.comprehension):
                over = ast.unparse(node.iter)
                if re.search(r"\b(token_ids|prompt_ids|tokens)\b", over):
                    findings.append(f"{path}:{node.iter.lineno}: a loop over {over}")
    none(findings)


def test_nothing_recurses() -> None:
    """Depth is a client's to choose, so no function of the parsers and of the edge calls itself."""
    native = house.source_files("core/model", "core/text", "core/ring", suffixes=(".h", ".cpp"))
    findings = []
    for function in (f for path in native for f in house.cpp_functions(path)):
        if re.search(rf"(?<![\w.:>~]){re.escape(function.name)}\s*\(", function.body):
            findings.append(f"{function.path}:{function.line}: {function.name}")
    for path in PYTHON:
        for node in ast.walk(ast.parse(house.read(path))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for call in ast.walk(node):
                    if not isinstance(call, ast.Call):
                        continue
                    target = ast.unparse(call.func)
                    if target in (node.name, f"self.{node.name}", f"cls.{node.name}"):
                        if not (target == node.name and node.args.args[:1] and is_method(node)):
                            findings.append(f"{path}:{node.lineno}: {node.name}")
    none(findings)


def is_method(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return node.args.args[0].arg in ("self", "cls")


def test_builds_never_depend_on_the_build_machine() -> None:
    files = ["CMakeLists.txt", "CMakePresets.json", "Makefile", "pyproject.toml", ".ci/run"]
    none([f"{path}: native architecture" for path in files if "=native" in house.read(path)])
    assert "-march=x86-64 " in house.read("CMakeLists.txt")


# ---- names and numbers --------------------------------------------------------------------------

# Bytes and percentages are spelled with their number.
LITERALS_ALLOWED = {100, 127, 128, 255, 256}
NAMED = re.compile(r"\b(constexpr|static_assert|enum)\b[^;]*;|\.\w+ = [^,}]*|^\s*#[^\n]*", re.M)


def test_large_literals_have_a_name() -> None:
    """In the loop and the ring: a constant, a compile-time relation or a named field."""
    findings = []
    for path in [p for p in CPP if p.startswith(("core/loop/", "core/ring/"))]:
        text = NAMED.sub(lambda m: "\n" * m.group().count("\n"), house.strip_cpp(path))
        for number, line in enumerate(text.splitlines(), 1):
            for literal in re.findall(r"(?<![\w.'])(0[xX][\da-fA-F']+|\d[\d']*)(?![\w.])", line):
                value = int(literal.replace("'", ""), 0 if literal[:2] in ("0x", "0X") else 10)
                if value > LITERAL_MAX and value not in LITERALS_ALLOWED:
                    findings.append(f"{path}:{number}: {literal}")
    none(findings)


TIME_WORDS = re.compile(
    r"(?:^|_)(time|timeout|deadline|interval|age|latency|duration|delay|elapsed)(?:_|$)"
)
SIZE_WORDS = re.compile(r"(?:^|_)(size|capacity)(?:_|$)")
TIME_UNITS = re.compile(
    r"_(ps|ns|us|ms|s|seconds|steps)(_per_\w+)?(_low|_high|_max|_min|_p\d+|_total)?_?$"
)
SIZE_UNITS = re.compile(
    r"_(bytes|words|tokens|rows|pages|max|entries|count)(_low|_high|_max)?_?$|^capacity_?$"
)


def without_unit(name: str) -> bool:
    name = name.lower()
    return bool(
        (TIME_WORDS.search(name) and not TIME_UNITS.search(name))
        or (SIZE_WORDS.search(name) and not SIZE_UNITS.search(name))
    )


def test_members_of_time_and_size_carry_their_unit() -> None:
    findings = [
        f"{path}:{line}: {name}"
        for path in CPP
        if path.endswith(".h")
        for line, name in house.cpp_members(path)
        if without_unit(name)
    ]
    for path in PYTHON:
        for node in ast.walk(ast.parse(house.read(path))):
            if not isinstance(node, ast.ClassDef):
                continue
            for member in node.body:
                if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                    kind = ast.unparse(member.annotation).split("|")[0].strip()
                    if kind in ("int", "float") and without_unit(member.target.id):
                        findings.append(f"{path}:{member.lineno}: {member.target.id}")
    none(findings)
    assert without_unit("deadline") and without_unit("buffer_size") and not without_unit("age_ns")


# ---- structure ----------------------------------------------------------------------------------


def test_every_file_says_what_it_is() -> None:
    findings = [p for p in CPP_ALL if not house.read(p).startswith(("//", "/*"))]
    for path in PYTHON_ALL:
        if not (house.read(path) and ast.get_docstring(ast.parse(house.read(path)))):
            findings.append(path)
    none(findings)


# What each folder of the core may include besides itself and the headers directly in core/.
CORE_MAY_USE = {
    "ring": set(),
    "policy": set(),
    "loop": {"ring", "policy"},
    "text": {"ring"},
    "cpu": {"loop"},
    "bpf": set(),
    "model": {"loop", "cpu"},
    "engine": {"ring", "loop", "model", "cpu", "text"},
    "bindings": {"ring", "policy", "loop", "model", "cpu", "text", "engine", "bpf"},
}
# What each package of sublimate may import besides itself and the base.
PYTHON_BASE = {"_core", "_version", "config", "control", "errors", "families", "keys"} | {
    "limits",
    "v1",
}
PYTHON_MAY_USE = {
    "model": set(),
    "policy": set(),
    "grammar": {"model"},
    "control": {"kernel"},
    "kernel": set(),
    "probe": {"model"},
    "engine": {"model", "control", "probe"},
    "wire": set(),
    "guard": {"model", "control", "probe"},
    "edge": {"model", "policy", "grammar", "control", "guard", "kernel"},
    "api": {"model", "policy", "guard", "edge", "wire"},
    "legacy": {"edge", "control"},
    "supervisor": {"model", "control", "guard", "kernel", "probe", "engine", "edge"},
    "bench": {"model", "engine"},
    "client": {"wire"},
    "rollout": {"edge", "bench"},
    "cli": {
        "guard",
        "kernel",
        "model",
        "policy",
        "probe",
        "engine",
        "edge",
        "legacy",
        "supervisor",
        "bench",
        "client",
        "rollout",
    },
}


def test_core_folders_point_one_way() -> None:
    findings = []
    for path in CPP:
        folder = path.split("/")[1] if path.count("/") > 1 else ""
        for include in house.cpp_includes(path):
            target = include.split("/")[1] if include.count("/") > 1 else ""
            if not include.startswith("core/") or (not folder and target):
                findings.append(f"{path} includes {include}")
            elif target and target != folder and target not in CORE_MAY_USE.get(folder, set()):
                findings.append(f"{path} includes {include}")
    none(findings)


def test_python_packages_point_one_way() -> None:
    findings = []
    for path in PYTHON:
        inside = path.removeprefix("src/sublimate/").removesuffix(".py").split("/")
        package = inside[0]
        # The faces of the package, and where a process starts, may use everything.
        if package == "__init__" or inside[-1] == "__main__":
            continue
        for name in house.python_imports(path):
            target = (*name.split("."), "")[1]
            allowed = (
                PYTHON_MAY_USE.get(package, set()) | PYTHON_BASE | {package, "", "__version__"}
            )
            if target not in allowed:
                findings.append(f"{path} imports {name}")
    none(findings)


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """What remains when nodes without outgoing edges are taken away, again and again."""
    left = {node: set(targets) - {node} for node, targets in graph.items()}
    while leaves := [node for node, targets in left.items() if not targets & left.keys()]:
        for leaf in leaves:
            del left[leaf]
    return sorted(left)


def test_no_cycle_between_files() -> None:
    none(cycle_in({path: set(house.cpp_includes(path)) for path in CPP}))
    modules = {p.removeprefix("src/").removesuffix(".py").replace("/", "."): p for p in PYTHON}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        names = set(house.python_imports(path))
        graph[module] = {
            n if n in modules else n.rpartition(".")[0] for n in names
        } & modules.keys()
    none(cycle_in(graph))
    assert cycle_in({"a": {"b"}, "b": {"a"}, "c": {"a"}}) == ["a", "b", "c"]


MODULES = {
    "protobuf": "google",
    "grpcio": "grpc",
    "grpcio_health_checking": "grpc_health",
    "grpcio_reflection": "grpc_reflection",
}
"""Of packages whose modules have another name."""


def test_dependencies_are_what_is_imported() -> None:
    """pyproject.toml declares every package that src imports, and no other."""
    project = tomllib.loads(house.read("pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    declared = [*project["dependencies"]]
    declared += [line for name in ("client", "otel") for line in extras[name]]
    names = {re.split(r"[<>=\[]", line)[0].replace("-", "_") for line in declared}
    # Packages of one name space.
    names = {name.partition("_")[0] if name[:13] == "opentelemetry" else name for name in names}
    names = {MODULES.get(name, name) for name in names}
    imported: set[str] = set()
    generated = [p for p in house.tracked_files() if p.startswith(house.GENERATED)]
    for path in [*PYTHON, *(p for p in generated if p.endswith(".py"))]:
        for node in ast.walk(ast.parse(house.read(path))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add((node.module or "").split(".")[0])
    assert imported - sys.stdlib_module_names - {"sublimate"} == names


# ---- the tree as a whole ------------------------------------------------------------------------


def test_nothing_is_left_to_do() -> None:
    pattern = re.compile(
        r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK|not implemented " + r"yet)\b"
    )
    texts = [
        *CPP_ALL,
        *PYTHON_ALL,
        *(p for p in house.tracked_files() if p.endswith((".md", ".toml"))),
    ]
    none(
        [
            f"{path}:{number}: {line.strip()}"
            for path in texts
            for number, line in enumerate(house.read(path).splitlines(), 1)
            if pattern.search(line)
        ]
    )


def test_no_machine_host_or_person_is_named() -> None:
    pieces = [
        r"/wo" + r"rk/\w", r"/ro" + r"ot/", r"/ho" + r"me/\w", r"/t" + r"mp/\w", r"/opt/py" + r"pi",
        r"py" + r"pi\.org", r"python" + r"hosted\.org", r"--(extra-)?index-u" + r"rl",
        r"\bpy" + r"env\b",
        r"[\w.+-]+@(?!example\.|users\.noreply)[\w-]+\.(com|org|net|io|dev)\b", r"\bissue\s+#?\d",
    ]  # fmt: skip
    pattern = re.compile("|".join(pieces), re.I)
    findings = []
    for path in house.tracked_files():
        raw = (house.ROOT / path).read_bytes()
        if b"\0" in raw or path == "LICENSE" or path.startswith("tests/cases/"):
            continue
        for number, line in enumerate(raw.decode("utf-8", "replace").splitlines(), 1):
            if match := pattern.search(line):
                findings.append(f"{path}:{number}: {match.group()}")
    none(findings)


PROOF = re.compile(
    r"\bassert\b|\braises\(|\bfail\(|\bwait_until\(|check=True"
    r"|\b(none|check|expect|assert|verify)\w*\("
)


def test_every_test_can_fail() -> None:
    """A Python test asserts, expects an exception, or calls a function of its file that does."""
    findings = []
    for path in [p for p in PYTHON_ALL if PurePosixPath(p).name.startswith("test_")]:
        functions = list(house.python_functions(path))
        proving = {f.name for f in functions if PROOF.search(f.body)}
        for function in functions:
            called = set(re.findall(r"\b(\w+)\(", function.body))
            if function.name.startswith("test_") and not proving & (called | {function.name}):
                findings.append(f"{path}:{function.line}: {function.name}")
    none(findings)
