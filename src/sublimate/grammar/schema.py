"""A JSON schema becomes one that the grammar library can enforce; what is lost is told by path.

What cannot be enforced is left out at the smallest place that holds it, and the model may then say
more than the schema allows, never less, and always a document of its outline. Only where the client
asked for all of it (`strict`) is that an error. A format that is no schema at all is one, too.

defines: Relaxation, Enforceable, ANY_OBJECT, MalformedSchemaError, check_schema, outline,
         enforceable
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import msgspec

from .references import References, Target, base_of

if TYPE_CHECKING:
    from llguidance import LLParserLimits, LLTokenizer

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
MULTIPLES_MAX = 2048
"""Product of the digits of all steps of numbers (multipleOf: 25 of 2.5) of one schema: the library
may have to hold as many states for each place of a digit."""
STEP_SMALL_MAX = 100
MULTIPLE_MAX, LARGE_MULTIPLE_MAX = 10**15 - 1, 10**7 - 1
"""Bounds given to multiples without bounds, for small and large steps."""
CHOICES_MAX = 128
"""Options of one oneOf, each of which is compared to all others."""
REFERENCES_MAX = 8
"""Steps from a reference to what it names, where options are compared."""
DEFINITION = "d{}"
CACHED_CHARACTERS_MAX = 1024
"""Longer schemas are checked anew, so that what is kept is bounded in bytes."""

# Assertions that the library does not know. Annotations are left out, too, and are no loss.
UNKNOWN = frozenset(
    "propertyNames uniqueItems contains minContains maxContains not if then else dependentRequired"
    " dependentSchemas dependencies unevaluatedProperties unevaluatedItems $dynamicRef"
    " $recursiveRef".split()
)
ANNOTATIONS = frozenset(
    "$comment title description default examples deprecated readOnly writeOnly x-guidance"
    " $id $anchor $dynamicAnchor $defs definitions".split()
)
"""Names of schemas are resolved before these are left out."""
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
    """What should be a schema is not one."""

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


def _is_schema(node: Any) -> bool:
    return isinstance(node, dict | bool)


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


LENGTH_LIGHT_MAX = 256
"""Characters: bounds of lengths up to this need few states."""


def without_patterns(schema: dict[str, Any]) -> Enforceable:
    """An enforceable schema without the keywords that may need many states of the library's
    lexer."""
    relaxations: list[Relaxation] = []
    copied = cast(dict[str, Any], msgspec.json.decode(msgspec.json.encode(schema)))
    waiting: list[tuple[Any, str]] = [(copied, "")]
    while waiting:
        node, path = waiting.pop()
        if not isinstance(node, dict):
            continue
        held = cast(dict[str, Any], node)
        heavy = [keyword for keyword in ("pattern", "patternProperties") if keyword in held]
        heavy += [k for k in ("minLength", "maxLength") if held.get(k, 0) > LENGTH_LIGHT_MAX]
        if "patternProperties" in heavy:
            held["additionalProperties"] = True
        for keyword in heavy:
            del held[keyword]
            relaxations.append(Relaxation(path, keyword))
        waiting += ((one, _below(path, name)) for _, _, one, name in _slots(held))
    return Enforceable(copied, tuple(relaxations))


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
        relaxed = walk.root()
        walk.end_cycles(relaxed)
        text = _json(relaxed)
        if len(text) > TEXT_BYTES_MAX:
            return walk.whole(relaxed, "size")
        if not grammar_error(text):
            return walk.found(relaxed)
        walk.narrow(relaxed)
    except RecursionError:
        return walk.whole(schema, "size")
    if error := grammar_error(_json(relaxed)):
        return walk.whole(relaxed, "unsatisfiable" if "nsatisfiable" in error else "schema")
    return walk.found(relaxed)


class _Walk:
    """One pass over a schema."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.relaxations: list[Relaxation] = []
        self._root = root
        self._references = References(root, _children)
        self._names: dict[str, str] = {}
        """Place of a schema that references name -> its name among the definitions, which is safe
        for the library whatever the client calls it."""
        self._named: list[Target] = []
        """The named schemas, in the order of their names."""
        self._nodes = 0
        self._values_left = ENUM_MAX
        self._multiples: set[int] = set()
        self._definitions: dict[str, Any] = {}
        """Those of the relaxed schema."""
        self._ends = time.thread_time() + SECONDS_MAX

    @property
    def _is_late(self) -> bool:
        return time.thread_time() > self._ends

    def whole(self, schema: Mapping[str, Any], keyword: str) -> Enforceable:
        """Nothing but the outline."""
        self.relaxations.append(Relaxation("", keyword))
        return self.found(outline(schema))

    def found(self, schema: dict[str, Any]) -> Enforceable:
        return Enforceable(schema, tuple(dict.fromkeys(self.relaxations)))

    def root(self) -> dict[str, Any]:
        """The whole schema, with the targets of its references as definitions."""
        base = base_of(self._root, "")
        relaxed = cast(dict[str, Any], self.node(dict(self._root), "", base, 0))
        definitions: dict[str, Any] = {}
        for index, target in enumerate(self._named):  # the list grows in this loop
            node = self.node(target.schema, target.place, target.base, 1)
            definitions[DEFINITION.format(index)] = node
        return {**relaxed, "$defs": definitions} if definitions else relaxed

    def node(self, schema: Any, path: str, base: str, depth: int) -> Any:
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
            node = self._drop(path, "size", outline(node))
        self._refer(node, path, base)
        for keyword in ANNOTATIONS & node.keys():
            del node[keyword]
        for keyword in sorted(UNKNOWN & node.keys()):
            self._remove(node, path, keyword)
        if "type" in node and not _is_type(node["type"]):
            self._remove(node, path, "type")
        self._values(node, path)
        self._scalars(node, path)
        self._inside(node, path, base, depth)
        return node

    def _remove(self, node: dict[str, Any], path: str, keyword: str) -> None:
        del node[keyword]
        self.relaxations.append(Relaxation(path, keyword))

    def _drop(self, path: str, keyword: str, instead: Any) -> Any:
        self.relaxations.append(Relaxation(path, keyword))
        return instead

    def _refer(self, node: dict[str, Any], path: str, base: str) -> None:
        """Only what lies inside the schema itself is looked up."""
        keyword = "$ref" if "$ref" in node else "$dynamicRef"
        if keyword not in node:
            return
        find = self._references.find if keyword == "$ref" else self._references.find_dynamic
        target = find(node[keyword], base)
        if target is None or not _is_schema(target.schema):
            self._remove(node, path, keyword)
            return
        del node[keyword]
        if target.schema is self._root or not target.place:
            node["$ref"] = "#"
            return
        if target.place not in self._names:
            self._names[target.place] = DEFINITION.format(len(self._named))
            self._named.append(target)
        node["$ref"] = f"#/$defs/{self._names[target.place]}"

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
        if "multipleOf" in node:
            # Without bounds digits could follow each other for ever, and never be a multiple. The
            # library has a state for each remainder and place of a digit.
            is_large = _digits(node["multipleOf"]) > STEP_SMALL_MAX
            most = LARGE_MULTIPLE_MAX if is_large else MULTIPLE_MAX
            if not {"minimum", "exclusiveMinimum"} & node.keys():
                node["minimum"] = -most
            if not {"maximum", "exclusiveMaximum"} & node.keys():
                node["maximum"] = most
        pattern = node.get("pattern")
        if isinstance(pattern, str) and (
            len(pattern) > PATTERN_CHARACTERS_MAX or needs_many_states(pattern)
        ):
            self._remove(node, path, "pattern")
        if "format" in node and not _holds("string", {"format": node["format"]}):
            del node["format"]  # an annotation, as far as the library does not know it
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
        digits = _digits(step)
        self._multiples.add(digits)
        is_held = math.prod(self._multiples) <= MULTIPLES_MAX
        if not is_held:
            self._multiples.discard(digits)
        return is_held

    def _inside(self, node: dict[str, Any], path: str, base: str, depth: int) -> None:
        is_choice = self._is_choice(node.get("oneOf"), base)
        for keyword in (*MANY, *NAMED, "items"):
            if isinstance(node.get(keyword), list | dict):
                node[keyword] = node[keyword].copy()
        for holder, key, one, name in list(_slots(node)):
            holder[key] = self.node(one, _below(path, name), base_of(one, base), depth + 1)
        if "oneOf" in node and not is_choice:
            options = {"anyOf": node.pop("oneOf")}
            self._drop(path, "oneOf", None)
            if "anyOf" in node:
                node["allOf"] = [*_listed(node, "allOf"), options]
            else:
                node.update(options)

    def _is_choice(self, options: Any, base: str) -> bool:
        """Whether no value is of two of the options, as far as their types and the values that
        they require tell."""
        if not isinstance(options, list) or len(cast(list[Any], options)) > CHOICES_MAX:
            return False
        traits = [self._traits(one, base) for one in cast(list[Any], options)]
        return all(a.differs(b) for a, b in itertools.combinations(traits, 2))

    def _traits(self, option: Any, base: str) -> _Traits:
        for _ in range(REFERENCES_MAX):
            if not isinstance(option, dict) or "$ref" not in option:
                break
            target = self._references.find(option["$ref"], base_of(option, base))
            if target is None:
                break
            option, base = target.schema, target.base
        return _traits(cast(dict[str, Any], option) if isinstance(option, dict) else {})

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
        users = self._users()
        waiting = [node for _, node in self._nodes]
        while waiting:
            node = waiting.pop()
            if id(node) not in self._finite and self._ends(node):
                self._finite.add(id(node))
                waiting += users.get(id(node), ())
        endless = [
            (path, node)
            for path, node in self._nodes
            if "$ref" in node and not self._is_finite(_target(self.root, node["$ref"]))
        ]
        return max(endless, key=lambda one: (one[0].count("."), one[0]), default=None)

    def _users(self) -> dict[int, list[dict[str, Any]]]:
        """Identity of a schema -> those that hold or reference it."""
        users: dict[int, list[dict[str, Any]]] = {}
        for _, node in self._nodes:
            used = [one for _, _, one, _ in _slots(node)]
            if "$ref" in node:
                used.append(_target(self.root, node["$ref"]))
            for one in used:
                users.setdefault(id(one), []).append(node)
        return users

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
    """The schema of a reference inside of a relaxed schema."""
    if reference == "#":
        return root
    return root.get("$defs", {}).get(str(reference).removeprefix("#/$defs/"))


def _digits(step: float) -> int:
    """The digits of a number without its point: 25 for 2.5."""
    whole = int(step) if float(step).is_integer() else step
    return int("".join(map(str, Decimal(str(whole)).as_tuple().digits)))


OBJECT = frozenset({"object"})


class _Traits(msgspec.Struct, frozen=True):
    """What distinguishes the values of a schema from those of others."""

    kinds: frozenset[str]
    values: frozenset[str] | None
    """All that it allows; None: more than it lists."""
    required: dict[str, frozenset[str] | None]
    """Members that all objects have -> their values."""
    names: frozenset[str] | None
    """Members that objects may have; None: any."""

    def differs(self, other: _Traits) -> bool:
        """Whether no value belongs to both."""
        if not self.kinds & other.kinds or _are_apart(self.values, other.values):
            return True
        if self.kinds | other.kinds != OBJECT:
            return False
        return (
            any(_are_apart(v, other.required.get(name)) for name, v in self.required.items())
            or self._needs_more(other)
            or other._needs_more(self)
        )

    def _needs_more(self, other: _Traits) -> bool:
        return other.names is not None and not self.required.keys() <= other.names


def _are_apart(some: frozenset[str] | None, others: frozenset[str] | None) -> bool:
    return some is not None and others is not None and not some & others


def _traits(schema: dict[str, Any]) -> _Traits:
    kinds = schema.get("type", outline(schema).get("type", sorted(TYPES)))
    kinds = {kinds} if isinstance(kinds, str) else set(map(str, cast(list[Any], kinds)))
    properties = schema.get("properties")
    held = cast(dict[str, Any], properties) if isinstance(properties, dict) else {}
    required = {
        name: _values_of(held.get(name))
        for name in _listed(schema, "required")
        if isinstance(name, str)
    }
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    names = frozenset(held) if is_closed else None
    kinds = {"number" if kind == "integer" else kind for kind in kinds}
    return _Traits(frozenset(kinds), _values_of(schema), required, names)


def _values_of(schema: Any) -> frozenset[str] | None:
    """The values that a schema lists, each as text; None: it lists none."""
    if not isinstance(schema, dict):
        return None
    node = cast(dict[str, Any], schema)
    values = [node["const"]] if "const" in node else node.get("enum")
    if not isinstance(values, list):
        return None
    whole = (int(v) if isinstance(v, float) and v.is_integer() else v
             for v in cast(list[Any], values))  # fmt: skip
    return frozenset(map(_json, whole))


def _children(node: dict[str, Any]) -> Iterator[tuple[Any, str]]:
    return ((one, name) for _, _, one, name in _slots(node, ALSO_ONE))


def _holds(kind: str, keywords: dict[str, Any]) -> bool:
    return not _error({"type": kind, **keywords})


def _error(schema: dict[str, Any]) -> str:
    return grammar_error(_json(schema))


UNBOUNDED = re.compile(r"[*+]|,\}|^[^^]")
COUNTED = re.compile(r"\{\d|(?:[^*+?]*[.\]]){8}")
WALKS, WALK_CHARACTERS, WALK_CHOICES, WALK_STATES_MAX = 4, 300, 4, 2400


@functools.lru_cache(maxsize=4096)
def needs_many_states(pattern: str) -> bool:
    """Whether a pattern's automaton has a new state for almost every text, like ".*a.{30}". The
    library would reach its limits in the middle of an answer. Short random walks find out: they
    meet the same states again where a pattern has few."""
    if not (UNBOUNDED.search(pattern) and COUNTED.search(pattern)):
        return False
    from llguidance import LLMatcher

    schema = _json({"type": "string", "pattern": pattern})
    limits = _walk_limits()
    grammar = LLMatcher.grammar_from_json_schema(schema)
    start = LLMatcher(_byte_tokenizer(), grammar, log_level=0, limits=limits)
    if not start.consume_token(ord('"')):
        return False
    alphabet = sorted({*pattern.encode(), ord("a")} - {*b'^$()[]{}*+?|\\"'})
    chosen = random.Random(0)  # noqa: S311
    for _ in range(WALKS):
        walk = start.deep_copy()
        for index in range(WALK_CHARACTERS):
            options = chosen.sample(alphabet, min(WALK_CHOICES, len(alphabet)))
            byte = next((one for one in options if walk.validate_tokens([one])), None)
            if byte is None or not walk.consume_token(byte):
                break
            if index % WALK_CHOICES == 0:
                walk.compute_bitmask()
        if walk.is_error():
            return True
    return False


@functools.cache
def _byte_tokenizer() -> LLTokenizer:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


@functools.cache
def _walk_limits() -> LLParserLimits:
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_lexer_states=WALK_STATES_MAX,
        initial_lexer_fuel=200_000,
        step_lexer_fuel=20_000,
        verbose_errors=False,
    )


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
