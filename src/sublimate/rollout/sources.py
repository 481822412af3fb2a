"""Findings in one file: a Python program by its syntax tree, anything else line by line.

The tree knows what a string is used for: comments and docstrings are no findings, and neither is a
name inside a longer word.

defines: Finding, scan_python, scan_lines
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import msgspec

from .metrics import new_name
from .rules import METRIC_RULE, RULES

METRIC = re.compile(
    r"\b(?:vllm|llamacpp|sglang):\w+|\btgi_\w+|\blayer_\w+_(?:total|seconds|depth)\b"
)
ANTHROPIC_CLIENTS = frozenset(("Anthropic", "AsyncAnthropic", "AnthropicBedrock"))
REDIRECT_WORDS = frozenset(("allow_redirects", "follow_redirects"))
LEGACY_PACKAGE = "sublimate.legacy"
LAYER_MODULE = "anthropic.layer"
COMMENTS = ("#", "//", "*", "--", "<!--")
LINE_CHARACTERS_MAX = 2000
SHOWN_CHARACTERS = 80


class Finding(msgspec.Struct, frozen=True, order=True):
    """A place that needs a change, or a look."""

    path: str
    line: int
    rule: str
    severity: str
    what: str
    do: str
    found: str


def _finding(path: str, line: int, rule: str, found: str, do: str = "") -> Finding:
    if rule not in RULES:
        raise KeyError(rule)
    known = RULES[rule]
    shown = " ".join(found.split())[:SHOWN_CHARACTERS]
    return Finding(path, line, rule, known.severity, known.what, do or known.do, shown)


def _of_text(path: str, line: int, text: str) -> Iterator[Finding]:
    for name, rule in RULES.items():
        if rule.matches(text):
            yield _finding(path, line, name, text)
    for match in METRIC.finditer(text):
        new = new_name(match.group())
        do = f"ask for {new}" if new else "there is nothing like it here"
        yield _finding(path, line, METRIC_RULE, match.group(), do)


def _kept(findings: list[Finding]) -> list[Finding]:
    """One of a kind a line, and what is innocent by itself only beside others."""
    unique = sorted({(one.line, one.rule, one.do): one for one in findings}.values())
    guilty = any(not RULES[one.rule].only_beside for one in unique)
    return [one for one in unique if guilty or not RULES[one.rule].only_beside]


# ---- Python --------------------------------------------------------------------------------------
def scan_python(path: str, text: str) -> list[Finding]:
    """Of a program. One that does not parse is a finding itself."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return [_finding(path, 1, "unreadable", path)]
    passed_over = _docstrings(tree)
    findings: list[Finding] = []
    for node in ast.walk(tree):
        if id(node) in passed_over:
            continue
        findings += _of_node(path, node)
    return _kept(findings)


def _docstrings(tree: ast.Module) -> set[int]:
    """Statements that are a text and nothing else: of a module, class or function, or a remark."""
    return {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def _of_node(path: str, node: ast.AST) -> Iterator[Finding]:
    match node:
        case ast.Constant(value=str(text)):
            yield from _of_text(path, node.lineno, text)
        case ast.Import(names=names):
            for alias in names:
                yield from _of_import(path, node.lineno, alias.name)
        case ast.ImportFrom(module=str(module), level=0, names=names):
            for alias in names:
                yield from _of_import(path, node.lineno, f"{module}.{alias.name}")
        case ast.Attribute(attr="create", value=ast.Attribute(attr="completions") as owner):
            if isinstance(owner.value, ast.Name):  # client.chat.completions is OpenAI's
                yield from _of_completions(path, node.lineno, owner.value.id)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            if name in ("HUMAN_PROMPT", "AI_PROMPT"):
                yield _finding(path, node.lineno, "text-completions", name)
        case ast.Call():
            yield from _of_call(path, node)
        case ast.Compare():
            text = ast.unparse(node)
            if RULES["redirect"].matches(text):
                yield _finding(path, node.lineno, "redirect", text)
        case ast.Subscript():
            text = ast.unparse(node)
            if RULES["redirect"].matches(text):
                yield _finding(path, node.lineno, "redirect", text)
        case _:
            pass


def _of_import(path: str, line: int, name: str) -> Iterator[Finding]:
    if name == LEGACY_PACKAGE or name.startswith(LEGACY_PACKAGE + "."):
        yield _finding(path, line, "legacy-import", name)
    if name == LAYER_MODULE or name.startswith(LAYER_MODULE + "."):
        yield _finding(path, line, "layer-module", name)
    if name in ("anthropic.HUMAN_PROMPT", "anthropic.AI_PROMPT"):
        yield _finding(path, line, "text-completions", name)


def _of_completions(path: str, line: int, owner: str) -> Iterator[Finding]:
    """OpenAI's client has completions too, which are served."""
    if "anthropic" in owner.lower():
        yield _finding(path, line, "text-completions", f"{owner}.completions.create")


def _of_call(path: str, node: ast.Call) -> Iterator[Finding]:
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else ""
    name = function.id if isinstance(function, ast.Name) else name
    for word in node.keywords:
        if word.arg in REDIRECT_WORDS:
            yield _finding(path, node.lineno, "redirect", f"{word.arg}={ast.unparse(word.value)}")
        if name in ANTHROPIC_CLIENTS and word.arg == "base_url":
            value = word.value.value if isinstance(word.value, ast.Constant) else ""
            if str(value).rstrip("/").endswith("/v1"):
                yield _finding(path, node.lineno, "doubled-prefix", str(value))
    if RULES["redirect"].matches(ast.unparse(function) + "(" + _first_argument(node)):
        yield _finding(path, node.lineno, "redirect", ast.unparse(node))


def _first_argument(node: ast.Call) -> str:
    return ast.unparse(node.args[0]) if node.args else ""


# ---- anything else -------------------------------------------------------------------------------
def scan_lines(path: str, text: str) -> list[Finding]:
    """Of a script, a program in another language or a file of settings. Lines that are a comment
    are passed over; strings are matched by themselves as well, as headers' names are written."""
    findings: list[Finding] = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line[:LINE_CHARACTERS_MAX]
        if line.lstrip().startswith(COMMENTS) and not line.lstrip().startswith("--legacy"):
            continue
        findings += _of_text(path, number, line)
        for quoted in re.findall(r"[\"'`]([^\"'`]{1,40})[\"'`]", line):
            rule = RULES["deprecation-header"]
            if rule.matches(quoted):
                findings.append(_finding(path, number, "deprecation-header", quoted))
        if re.search(r"\bnew Anthropic\(.*baseURL:\s*[\"'`][^\"'`]*/v1/?[\"'`]", line):
            findings.append(_finding(path, number, "doubled-prefix", line.strip()))
    return _kept(findings)
