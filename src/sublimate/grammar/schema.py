"""A JSON schema becomes one that the grammar library can enforce; what is lost is told by path.

Nothing that a client's tools declare may make its request fail: what cannot be enforced is left
out, and the model may then say more than the schema allows, never less. Only for `strict` tools is
that the client's error.

defines: Relaxation, Enforceable, ANY_OBJECT, enforceable
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
from llguidance import LLMatcher

NODES_MAX = 4000
"""Schemas inside a schema."""
DEPTH_MAX = 64
TEXT_BYTES_MAX = 1 << 18
SECONDS_MAX = 0.05
"""For one schema; beyond it the arguments may be any object."""
PATTERN_CHARACTERS_MAX = 512
ENUM_MAX = 5000
INTEGER_MAX = 1 << 53
"""Larger bounds of numbers are left out: nothing writes such numbers exactly."""

# Assertions that the library does not know. Annotations may stay: it ignores them.
UNKNOWN = frozenset(
    "propertyNames uniqueItems contains minContains maxContains not if then else dependentRequired"
    " dependentSchemas dependencies unevaluatedProperties unevaluatedItems $dynamicRef"
    " $recursiveRef".split()
)
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
TEXTS = ("pattern", "format", "minLength", "maxLength")
TYPES = frozenset("object array string number integer boolean null".split())
# Where a schema has schemas in it.
ONE = ("items", "additionalProperties", "additionalItems")
MANY = ("anyOf", "oneOf", "allOf", "prefixItems")
NAMED = ("properties", "patternProperties", "$defs", "definitions")

ANY_OBJECT: dict[str, Any] = {"type": "object"}


class Relaxation(msgspec.Struct, frozen=True):
    """A keyword that is not enforced."""

    path: str
    """To the schema that had it, in dots; empty: the whole schema."""
    keyword: str

    @property
    def place(self) -> str:
        """Of the keyword itself."""
        return f"{self.path}.{self.keyword}" if self.path else self.keyword


class Enforceable(msgspec.Struct, frozen=True):
    schema: dict[str, Any]
    relaxations: tuple[Relaxation, ...] = ()


class _TooLargeError(Exception):
    """The schema, or the time it takes."""


def enforceable(schema: Mapping[str, Any]) -> Enforceable:
    """The part of a schema of an object that can be enforced. Never raises for a schema's sake."""
    walk = _Walk(schema)
    try:
        if len(_json(schema)) > TEXT_BYTES_MAX:
            raise _TooLargeError
        relaxed = cast(dict[str, Any], walk.node(dict(schema), "", 0))
    except (_TooLargeError, RecursionError):
        return Enforceable(ANY_OBJECT, (Relaxation("", "size"),))
    if error := grammar_error(_json(relaxed)):
        keyword = "unsatisfiable" if "nsatisfiable" in error else "schema"
        return Enforceable(ANY_OBJECT, (*walk.relaxations, Relaxation("", keyword)))
    return Enforceable(relaxed, tuple(walk.relaxations))


class _Walk:
    """One pass over a schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.relaxations: list[Relaxation] = []
        self._root = root
        self._nodes = 0
        self._ends = time.monotonic() + SECONDS_MAX

    def node(self, schema: Any, path: str, depth: int) -> Any:
        """What of it can be enforced: a schema, or true for anything."""
        self._nodes += 1
        if self._nodes > NODES_MAX or depth > DEPTH_MAX or time.monotonic() > self._ends:
            raise _TooLargeError
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            return self._drop(path, "schema", True)
        node = dict(cast(dict[str, Any], schema))
        node.pop("x-guidance", None)
        # Names of schemas that other schemas could be found by: only places are looked up.
        node.pop("$id", None)
        for keyword in UNKNOWN & node.keys():
            self._remove(node, path, keyword)
        self._references(node, path)
        self._types(node, path)
        self._values(node, path)
        self._scalars(node, path)
        self._children(node, path, depth)
        return node

    def _remove(self, node: dict[str, Any], path: str, keyword: str) -> None:
        del node[keyword]
        self.relaxations.append(Relaxation(path, keyword))

    def _drop(self, path: str, keyword: str, instead: Any) -> Any:
        self.relaxations.append(Relaxation(path, keyword))
        return instead

    def _references(self, node: dict[str, Any], path: str) -> None:
        """Only what lies inside the schema itself is looked up."""
        reference = node.get("$ref")
        if reference is not None and not self._is_found(reference):
            self._remove(node, path, "$ref")

    def _is_found(self, reference: Any) -> bool:
        if not isinstance(reference, str) or not reference.startswith("#"):
            return False
        at: Any = self._root
        for part in reference[1:].split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(at, dict) or name not in at:
                return False
            at = cast(dict[str, Any], at)[name]
        return reference in ("#", "#/") or reference.startswith("#/")

    def _types(self, node: dict[str, Any], path: str) -> None:
        named = node.get("type")
        listed = cast(list[Any], named) if isinstance(named, list) else [named]
        if named is not None and not all(isinstance(t, str) and t in TYPES for t in listed):
            self._remove(node, path, "type")

    def _values(self, node: dict[str, Any], path: str) -> None:
        values = node.get("enum")
        if values is None:
            return
        if not isinstance(values, list) or not 0 < len(cast(list[Any], values)) <= ENUM_MAX:
            self._remove(node, path, "enum")

    def _scalars(self, node: dict[str, Any], path: str) -> None:
        """Bounds and patterns, tried one by one, since the library refuses a whole schema for one
        of them."""
        for keyword in NUMBERS:
            value = node.get(keyword)
            if isinstance(value, int | float) and not abs(value) <= INTEGER_MAX:
                self._remove(node, path, keyword)
        for keyword in ("pattern",):
            value = node.get(keyword)
            if isinstance(value, str) and len(value) > PATTERN_CHARACTERS_MAX:
                self._remove(node, path, keyword)
        for kind, keywords in (("number", NUMBERS), ("string", TEXTS)):
            held = [keyword for keyword in keywords if keyword in node]
            if held and not _holds(kind, {keyword: node[keyword] for keyword in held}):
                refused = [k for k in held if not _holds(kind, {k: node[k]})]
                for keyword in refused or held:
                    self._remove(node, path, keyword)

    def _children(self, node: dict[str, Any], path: str, depth: int) -> None:
        def below(name: str) -> str:
            return f"{path}.{name}" if path else name

        for keyword in ONE:
            if isinstance(node.get(keyword), dict):
                node[keyword] = self.node(node[keyword], below(keyword), depth + 1)
        for keyword in (*MANY, "items"):
            listed = node.get(keyword)
            if isinstance(listed, list):
                node[keyword] = [
                    self.node(one, below(f"{keyword}.{index}"), depth + 1)
                    for index, one in enumerate(cast(list[Any], listed))
                ]
        for keyword in NAMED:
            held = node.get(keyword)
            if isinstance(held, dict):
                node[keyword] = {
                    name: self.node(one, below(f"{keyword}.{name}"), depth + 1)
                    for name, one in cast(dict[str, Any], held).items()
                }
        if "oneOf" in node and not _is_choice(node["oneOf"]):
            self._drop(path, "oneOf", None)  # enforced as anyOf


def _is_choice(options: Any) -> bool:
    """Whether no value is of two of the options, as far as their types tell."""
    seen: set[str] = set()
    if not isinstance(options, list):
        return False
    for option in cast(list[Any], options):
        kind = cast(dict[str, Any], option).get("type") if isinstance(option, dict) else None
        if not isinstance(kind, str) or kind in seen:
            return False
        seen.add("number" if kind == "integer" else kind)
    return True


def _holds(kind: str, keywords: dict[str, Any]) -> bool:
    return not grammar_error(_json({"type": kind, **keywords}))


COERCED = {"coerce_one_of": True}


@functools.lru_cache(maxsize=4096)
def grammar_error(schema: str) -> str:
    """Why the library refuses a schema; empty if it does not."""
    check = cast(Callable[..., str], LLMatcher.validate_grammar)
    try:
        return check(LLMatcher.grammar_from_json_schema(schema, overrides=cast(Any, COERCED)))
    except ValueError as error:
        return str(error) or "refused"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
