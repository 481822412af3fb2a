"""What the house tests share: the list of source files and small readers of C++ and Python text.

defines: ROOT, tracked_files, source_files, read, strip_cpp, Function, cpp_functions,
         python_functions, cpp_members, cpp_includes, python_imports
"""

import ast
import functools
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = "src/sublimate/v1/"  # `make proto` writes it
SKELETONS = "core/bpf/generated/"  # `make bpf` writes it
SCOPE_WORDS = ("namespace", "class", "struct", "union", "enum", "extern")


@functools.cache
def tracked_files() -> tuple[str, ...]:
    """Paths, relative to the root, of all files that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return tuple(sorted(p for p in set(done.stdout.splitlines()) if (ROOT / p).is_file()))


def source_files(*folders: str, suffixes: tuple[str, ...]) -> list[str]:
    """Tracked files below the folders with one of the suffixes, written by hand."""
    starts = tuple(f"{folder}/" for folder in folders)
    own = [p for p in tracked_files() if not p.startswith((GENERATED, SKELETONS))]
    return [p for p in own if p.startswith(starts) and p.endswith(suffixes)]


@functools.cache
def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


CPP_NOISE = re.compile(
    r"""//[^\n]* | /\*.*?\*/ | R"(?P<tag>[^()\s]*)\(.*?\)(?P=tag)" | "(?:\\.|[^"\\\n])*"
      | (?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'""",
    re.S | re.X,
)


@functools.cache
def strip_cpp(path: str) -> str:
    """C++ text with comments and literals blanked; every line keeps its number."""

    def blank(match: re.Match[str]) -> str:
        text = match.group()
        lines = "\n" * text.count("\n")
        return lines if text.startswith("/") else '""' + lines

    return CPP_NOISE.sub(blank, read(path))


@dataclass(frozen=True)
class Function:
    """A function definition: `line` is where its header starts, `lines` how many it spans."""

    path: str
    name: str
    line: int
    lines: int
    body: str


def is_function_header(header: str) -> bool:
    """Whether the text before a brace, back to the statement before it, declares a function."""
    words = re.findall(r"\w+", re.sub(r"template\s*<[^{;]*?>\s*(?=\w)", "", header))
    if not words or words[0] in SCOPE_WORDS or "(" not in header:
        return False
    before_arguments = header.split("(", 1)[0]
    return "=" not in before_arguments or "operator" in before_arguments


def cpp_functions(path: str) -> Iterator[Function]:
    """The outermost function definitions of a file; a lambda counts to its function."""
    text = re.sub(
        r"(?m)^\s*#(?:.*\\\n)*.*$", lambda m: "\n" * m.group().count("\n"), strip_cpp(path)
    )
    scopes: list[bool] = []  # True: a namespace or class, inside which functions are looked for
    opened: tuple[int, str] | None = None
    statement = 0
    for match in re.finditer(r"[{};]", text):
        at, symbol = match.start(), match.group()
        if symbol == "{":
            header = text[statement:at]
            if opened is None and all(scopes) and is_function_header(header):
                opened = (statement + len(header) - len(header.lstrip()), header)
                depth = len(scopes)
            words = re.findall(r"\w+", header)
            scopes.append(bool(words) and any(word in SCOPE_WORDS for word in words) and not opened)
        elif symbol == "}" and scopes:
            scopes.pop()
            if opened and len(scopes) == depth:
                start, header = opened
                names = re.findall(r"([~\w]+)\s*\(", header)
                first = text.count("\n", 0, start) + 1
                last = text.count("\n", 0, at) + 1
                body = text[start + len(header.strip()) : at]
                yield Function(path, names[0] if names else "?", first, last - first + 1, body)
                opened = None
        if opened is None:
            statement = match.end()


def python_functions(path: str) -> Iterator[Function]:
    for node in ast.walk(ast.parse(read(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield Function(path, node.name, node.lineno, lines, ast.unparse(node))


def cpp_members(path: str) -> Iterator[tuple[int, str]]:
    """(line, name) of the data members, constants and locals of plain arithmetic types."""
    declared = re.compile(
        r"^\s+(?:alignas\([^)]*\)\s*)?(?:static\s+|constexpr\s+|const\s+|std::)*"
        r"(?:u?int\d*_t|size_t|double|float|int|bool)\s+(\w+)\s*(?:=[^;]*|\{[^;]*\})?;"
    )
    for number, line in enumerate(strip_cpp(path).splitlines(), 1):
        if match := declared.match(line):
            yield number, match.group(1)


def cpp_includes(path: str) -> Iterator[str]:
    """Project files that a file includes, relative to the root."""
    for name in re.findall(r'(?m)^\s*#\s*include\s+"([^"]+)"', read(path)):
        for base in ((ROOT / path).parent, ROOT):
            if (base / name).is_file():
                yield (base / name).resolve().relative_to(ROOT).as_posix()
                break


def python_imports(path: str) -> Iterator[str]:
    """Dotted names of this project's modules that a module imports, but for those of type hints."""
    package = Path(path).with_suffix("").relative_to("src").parts[:-1]
    tree = ast.parse(read(path))
    only_hints = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in only_hints:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("sublimate"))
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            if module.startswith("sublimate"):
                yield from (f"{module}.{alias.name}" for alias in node.names)
