"""A JSON schema becomes one that the grammar library can enforce; what is lost is told by path.

What cannot be enforced is left out at the smallest place that holds it, and the model may then say
more than the schema allows, never less, and always a document of its outline. Only where the client
asked for all of it (`strict`) is that an error. A format that is no schema at all is one, too.

defines: Relaxation, Enforceable, ANY_OBJECT, MalformedSchemaError, check_schema, outline,
         enforceable
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any, cast

import msgspec

NODES_MAX = 2000
"""Schemas inside a schema; those beyond are outlines."""
BREADTH_MAX = 500
"""Schemas directly inside of one, definitions left out; what has more is an outline. The library's
time grows with its square."""
DEPTH_MAX = 64
TEXT_BYTES_MAX = 1 << 18
"""Of what is left of a schema."""
SECONDS_MAX = 0.04
"""Of the thread's own time for one schema, so that load refuses none; what is left then becomes
outlines."""
PATTERN_CHARACTERS_MAX = 512
ENUM_MAX = 5000
"""Values of all enums of one schema."""
INTEGER_MAX = 1 << 53
"""Larger bounds of numbers are left out: nothing writes such numbers exactly."""
MULTIPLES_MAX = 10_000
"""Product of all steps of numbers (multipleOf, written out as a fraction) of one schema: the
library may have to hold as many states."""
CACHED_CHARACTERS_MAX = 1024
"""Longer schemas are checked anew, so that what is kept is bounded in bytes."""

# Assertions that the library does not know. Annotations are left out, too, and are no loss.
UNKNOWN = frozenset(
    "propertyNames uniqueItems contains minContains maxContains not if then else dependentRequired"
    " dependentSchemas dependencies unevaluatedProperties unevaluatedItems $dynamicRef"
    " $recursiveRef".split()
)
ANNOTATIONS = frozenset(
    "$comment title description default examples deprecated readOnly writeOnly x-guidance".split()
)
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
TEXTS = ("pattern", "format", "minLength", "maxLength")
COUNTS = (
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    *("minContains", "maxContains"),
)
TYPES = frozenset("object array string number integer boolean null".split())
# Where a schema has schemas in it.
ONE = ("items", "additionalProperties", "additionalItems")
MANY = ("anyOf", "oneOf", "allOf", "prefixItems")
NAMED = ("properties", "patternProperties", "$defs", "definitions")
ALSO_ONE = (
    *("not", "if", "then", "else", "contains", "propertyNames"),
    *("unevaluatedItems", "unevaluatedProperties"),
)

ANY_OBJECT: dict[str, Any] = {"type": "object"}


class MalformedSchemaError(Exception):
    """What should be a schema is none."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(place, reason)
        self.place = place
        """Of the keyword or schema, in dots; empty: the whole."""
        self.reason = reason


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


def check_schema(schema: Any) -> None:
    """Raises MalformedSchemaError for what no draft of JSON Schema takes. Not recursive: it walks
    what a client sent, before any bound is kept."""
    waiting: list[tuple[Any, str]] = [(schema, "")]
    while waiting:
        node, path = waiting.pop()
        if isinstance(node, bool):
            continue
        if not isinstance(node, dict):
            raise MalformedSchemaError(path, "expected a schema: an object, true or false")
        held = cast(dict[str, Any], node)
        for keyword, reason in _faults(held):
            raise MalformedSchemaError(_below(path, keyword), reason)
        waiting += ((one, _below(path, name)) for _, _, one, name in _slots(held, ALSO_ONE))


def _faults(node: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(keyword, what it should be) of one schema, those below it left out."""
    if "type" in node and not _is_type(node["type"]):
        yield "type", f"expected one or more of {', '.join(sorted(TYPES))}"
    for keyword in NAMED:
        if not isinstance(node.get(keyword, {}), dict):
            yield keyword, "expected an object of schemas"
    for keyword in ("additionalProperties", *ALSO_ONE):
        if isinstance(node.get(keyword), list):
            yield keyword, "expected a schema: an object, true or false"
    for keyword in MANY:
        if keyword in node and not (isinstance(node[keyword], list) and node[keyword]):
            yield keyword, "expected a list of schemas"
    if "enum" in node and not (isinstance(node["enum"], list) and node["enum"]):
        yield "enum", "expected a list of values"
    for keyword in NUMBERS:
        # The exclusive ones were flags in an old draft.
        allowed = (int, float, bool) if keyword.startswith("exclusive") else (int, float)
        value = node.get(keyword, 1)
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            yield keyword, "expected a number"
    for keyword in COUNTS:
        value = node.get(keyword, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            yield keyword, "expected a count"
    for keyword in ("pattern", "format", "$ref"):
        if not isinstance(node.get(keyword, ""), str):
            yield keyword, "expected a string"
    names = node.get("required", [])
    if not isinstance(names, list) or not all(isinstance(n, str) for n in cast(list[Any], names)):
        yield "required", "expected a list of names"


def _is_type(named: Any) -> bool:
    listed = cast(list[Any], named) if isinstance(named, list) else [named]
    return bool(listed) and all(isinstance(one, str) and one in TYPES for one in listed)


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _slots(node: dict[str, Any], also: tuple[str, ...] = ()) -> Iterator[tuple[Any, Any, Any, str]]:
    """(holder, key, schema, name) of the schemas directly inside of one."""
    for keyword in (*ONE, *also):
        if keyword in node and not isinstance(node[keyword], list):
            yield node, keyword, node[keyword], keyword
    for keyword in (*MANY, "items"):
        if isinstance(node.get(keyword), list):
            listed = cast(list[Any], node[keyword])
            for index, one in enumerate(listed):
                yield listed, index, one, f"{keyword}.{index}"
    for keyword in NAMED:
        if isinstance(node.get(keyword), dict):
            named = cast(dict[str, Any], node[keyword])
            for name, one in named.items():
                yield named, name, one, f"{keyword}.{name}"


def _breadth(node: dict[str, Any]) -> int:
    """Schemas directly inside of one, but for definitions."""
    held = (node.get(key) for key in (*MANY, "items", "properties", "patternProperties"))
    return sum(len(cast(list[Any], one)) for one in held if isinstance(one, list | dict))


def outline(schema: Mapping[str, Any]) -> dict[str, Any]:
    """No more of a schema than the types of its values; {} is any value."""
    named = schema.get("type")
    if named is not None and _is_type(named):
        return {"type": named}
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values:
        kinds = sorted({_kind(value) for value in cast(list[Any], values)})
        return {"type": kinds[0] if len(kinds) == 1 else kinds}
    return dict(ANY_OBJECT) if "properties" in schema else {}


def _kind(value: Any) -> str:
    kinds = ((bool, "boolean"), (int | float, "number"), (str, "string"), (dict, "object"))
    found = [name for kind, name in kinds if isinstance(value, kind)]
    return found[0] if found else "null" if value is None else "array"


def _is_exact(value: Any) -> bool:
    """All numbers in it are such that every reader of JSON takes them for the same (RFC 8259,
    section 6). The library ends the process at some beyond."""
    if isinstance(value, list):
        return all(map(_is_exact, cast(list[Any], value)))
    if isinstance(value, dict):
        return all(map(_is_exact, cast(dict[str, Any], value).values()))
    return not isinstance(value, int | float) or abs(value) <= INTEGER_MAX


def enforceable(schema: Mapping[str, Any]) -> Enforceable:
    """The part of a schema that can be enforced. Never raises for a schema's sake."""
    walk = _Walk(schema)
    try:
        relaxed = cast(dict[str, Any], walk.node(dict(schema), "", 0))
        walk.end_cycles(relaxed)
        text = _json(relaxed)
        if len(text) > TEXT_BYTES_MAX:
            return walk.whole(relaxed, "size")
        if not grammar_error(text):
            return Enforceable(relaxed, tuple(walk.relaxations))
        walk.narrow(relaxed)
    except RecursionError:
        return walk.whole(schema, "size")
    if error := grammar_error(_json(relaxed)):
        return walk.whole(relaxed, "unsatisfiable" if "nsatisfiable" in error else "schema")
    return Enforceable(relaxed, tuple(walk.relaxations))


class _Walk:
    """One pass over a schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.relaxations: list[Relaxation] = []
        self._root = root
        self._nodes = 0
        self._values_left = ENUM_MAX
        self._multiples: set[Fraction] = set()
        self._definitions: dict[str, Any] = {}
        """Those of the relaxed schema."""
        self._ends = time.thread_time() + SECONDS_MAX

    @property
    def _is_late(self) -> bool:
        return time.thread_time() > self._ends

    def whole(self, schema: Mapping[str, Any], keyword: str) -> Enforceable:
        """Nothing but the outline."""
        return Enforceable(outline(schema), (*self.relaxations, Relaxation("", keyword)))

    def node(self, schema: Any, path: str, depth: int) -> Any:
        """What of it can be enforced: a schema, or true for anything."""
        self._nodes += 1
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            return self._drop(path, "schema", True)
        node = dict(cast(dict[str, Any], schema))
        if self._nodes > NODES_MAX or depth > DEPTH_MAX or self._is_late:
            return self._drop(path, "depth" if depth > DEPTH_MAX else "size", outline(node))
        if _breadth(node) > BREADTH_MAX:
            kept = {key: node[key] for key in ("$defs", "definitions") if key in node}
            node = {**kept, **self._drop(path, "size", outline(node))}
        # Names of schemas that other schemas could be found by: only places are looked up.
        for keyword in (ANNOTATIONS | {"$id"}) & node.keys():
            del node[keyword]
        for keyword in sorted(UNKNOWN & node.keys()):
            self._remove(node, path, keyword)
        self._references(node, path)
        if "type" in node and not _is_type(node["type"]):
            self._remove(node, path, "type")
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
        if reference is not None and _target(self._root, reference) is None:
            self._remove(node, path, "$ref")

    def _values(self, node: dict[str, Any], path: str) -> None:
        for keyword in ("const", "enum"):
            if keyword in node and not _is_exact(node[keyword]):
                node.update(outline(node))
                self._remove(node, path, keyword)
        values = node.get("enum")
        if values is None:
            return
        if not isinstance(values, list) or not values:
            self._remove(node, path, "enum")
            return
        count = len(cast(list[Any], values))
        if count > self._values_left:
            node.update(outline(node))
            self._remove(node, path, "enum")
        else:
            self._values_left -= count

    def _scalars(self, node: dict[str, Any], path: str) -> None:
        """Bounds and patterns, tried one by one, since the library refuses a whole schema for one
        of them."""
        for keyword in NUMBERS:
            value = node.get(keyword)
            if isinstance(value, int | float) and not _is_exact(value):
                self._remove(node, path, keyword)
        if "multipleOf" in node and not self._steps(node["multipleOf"]):
            self._remove(node, path, "multipleOf")
        pattern = node.get("pattern")
        if isinstance(pattern, str) and len(pattern) > PATTERN_CHARACTERS_MAX:
            self._remove(node, path, "pattern")
        for kind, keywords in (("number", NUMBERS), ("string", TEXTS)):
            held = [keyword for keyword in keywords if keyword in node]
            if held and not _holds(kind, {keyword: node[keyword] for keyword in held}):
                refused = [k for k in held if not _holds(kind, {k: node[k]})]
                for keyword in refused or held:
                    self._remove(node, path, keyword)

    def _steps(self, step: Any) -> bool:
        """Whether steps of this size can be held, beside the others."""
        if (
            isinstance(step, bool)
            or not isinstance(step, int | float)
            or not 0 < step < INTEGER_MAX
        ):
            return False
        self._multiples.add(Fraction(str(step)))
        product = math.prod(one.numerator * one.denominator for one in self._multiples)
        if product > MULTIPLES_MAX:
            self._multiples.discard(Fraction(str(step)))
        return product <= MULTIPLES_MAX

    def _children(self, node: dict[str, Any], path: str, depth: int) -> None:
        for keyword in (*MANY, *NAMED, "items"):
            if isinstance(node.get(keyword), list | dict):
                node[keyword] = node[keyword].copy()
        for holder, key, one, name in list(_slots(node)):
            holder[key] = self.node(one, _below(path, name), depth + 1)
        if "oneOf" in node and not _is_choice(node["oneOf"]):
            options = {"anyOf": node.pop("oneOf")}
            self._drop(path, "oneOf", None)
            if "anyOf" in node:
                node["allOf"] = [*_listed(node, "allOf"), options]
            else:
                node.update(options)

    # ---- the whole ------------------------------------------------------------------------------
    def end_cycles(self, root: dict[str, Any]) -> None:
        """Leaves out references that no document ever comes to the end of: `{"$ref": "#"}`, or a
        required property that requires itself. Those that a shorter choice can avoid stay."""
        self._definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
        if '"$ref"' not in _json(root):
            return
        found = _Finite(root)
        while (endless := found.first_endless()) is not None and not self._is_late:
            path, node = endless
            target = _target(found.root, node["$ref"])
            self._remove(node, path, "$ref")
            if isinstance(target, dict):
                node.update({**outline(cast(dict[str, Any], target)), **node})

    def narrow(self, root: dict[str, Any]) -> None:
        """Of a schema that the library refuses, outlines take the place of the smallest schemas
        that it refuses by themselves."""
        held = self._definitions
        refused: list[tuple[Any, Any, dict[str, Any], str]] = []
        waiting: list[tuple[dict[str, Any], str]] = [(root, "")]
        while waiting and not self._is_late:
            node, path = waiting.pop()
            for holder, key, one, name in list(_slots(node)):
                if isinstance(one, dict) and not self._is_late and _error({**held, **one}):
                    child = cast(dict[str, Any], one)
                    refused.append((holder, key, child, _below(path, name)))
                    waiting.append((child, _below(path, name)))
        # A schema comes after those that hold it.
        for holder, key, child, path in reversed(refused):
            if error := _error({**held, **child}):
                keyword = "unsatisfiable" if "nsatisfiable" in error else "schema"
                holder[key] = self._drop(path, keyword, outline(child))


class _Finite:
    """Which schemas of a schema have a document that ends: the least fixed point."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.root = root
        self._nodes: list[tuple[str, dict[str, Any]]] = []
        waiting: list[tuple[Any, str]] = [(root, "")]
        while waiting:
            node, path = waiting.pop()
            if isinstance(node, dict):
                held = cast(dict[str, Any], node)
                self._nodes.append((path, held))
                waiting += ((one, _below(path, name)) for _, _, one, name in _slots(held))
        self._finite: set[int] = set()

    def first_endless(self) -> tuple[str, dict[str, Any]] | None:
        """(path, schema) of a reference to a schema without a finite document, shortest path
        first."""
        self._finite.clear()
        grows = True
        while grows:
            grows = False
            for _, node in reversed(self._nodes):
                if id(node) not in self._finite and self._ends(node):
                    self._finite.add(id(node))
                    grows = True
        endless = [
            (path, node)
            for path, node in self._nodes
            if "$ref" in node and not self._is_finite(_target(self.root, node["$ref"]))
        ]
        return max(endless, key=lambda one: (one[0].count("."), one[0]), default=None)

    def _is_finite(self, schema: Any) -> bool:
        return not isinstance(schema, dict) or id(cast(object, schema)) in self._finite

    def _ends(self, node: dict[str, Any]) -> bool:
        if "$ref" in node and not self._is_finite(_target(self.root, node["$ref"])):
            return False
        if not all(map(self._is_finite, _listed(node, "allOf"))):
            return False
        for keyword in ("anyOf", "oneOf"):
            options = _listed(node, keyword)
            if options and not any(map(self._is_finite, options)):
                return False
        if "const" in node or "enum" in node:
            return True
        kinds = node.get("type")
        kinds = {kinds} if isinstance(kinds, str) else set(cast(list[str], kinds or TYPES))
        return bool(
            kinds - {"object", "array"}
            or ("object" in kinds and self._object_ends(node))
            or ("array" in kinds and self._array_ends(node))
        )

    def _object_ends(self, node: dict[str, Any]) -> bool:
        properties = node.get("properties")
        held = cast(dict[str, Any], properties) if isinstance(properties, dict) else {}
        return all(
            self._is_finite(held.get(name, node.get("additionalProperties")))
            for name in _listed(node, "required")
            if isinstance(name, str)
        )

    def _array_ends(self, node: dict[str, Any]) -> bool:
        least = node.get("minItems", 0)
        first = _listed(node, "prefixItems") or _listed(node, "items")
        return (
            not isinstance(least, int)
            or least <= 0
            or (
                all(map(self._is_finite, first[:least]))
                and (least <= len(first) or self._is_finite(node.get("items")))
            )
        )


def _listed(node: dict[str, Any], keyword: str) -> list[Any]:
    return cast(list[Any], node[keyword]) if isinstance(node.get(keyword), list) else []


def _target(root: Mapping[str, Any], reference: Any) -> Any:
    """The schema of a reference into the same document; None: there is none."""
    if not isinstance(reference, str):
        return None
    if reference in ("#", "#/"):
        return root
    if not reference.startswith("#/"):
        return None
    at: Any = root
    for part in reference[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(at, dict) or name not in at:
            return None
        at = cast(dict[str, Any], at)[name]
    return at


def _is_choice(options: Any) -> bool:
    """Whether no value is of two of the options, as far as their types tell."""
    seen: set[str] = set()
    if not isinstance(options, list):
        return False
    for option in cast(list[Any], options):
        kind = cast(dict[str, Any], option).get("type") if isinstance(option, dict) else None
        kind = "number" if kind == "integer" else kind
        if not isinstance(kind, str) or kind in seen:
            return False
        seen.add(kind)
    return True


def _holds(kind: str, keywords: dict[str, Any]) -> bool:
    return not _error({"type": kind, **keywords})


def _error(schema: dict[str, Any]) -> str:
    return grammar_error(_json(schema))


COERCED = {"coerce_one_of": True}


def grammar_error(schema: str) -> str:
    """Why the library refuses a schema; empty if it does not."""
    return _kept_error(schema) if len(schema) <= CACHED_CHARACTERS_MAX else _made_error(schema)


def _made_error(schema: str) -> str:
    from llguidance import LLMatcher  # no start waits for it

    check = cast(Callable[..., str], LLMatcher.validate_grammar)
    try:
        return check(LLMatcher.grammar_from_json_schema(schema, overrides=cast(Any, COERCED)))
    except ValueError as error:
        return str(error) or "refused"


_kept_error = functools.lru_cache(maxsize=4096)(_made_error)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
