"""Schemas as tools and formats have them, one per keyword and shape, for tests of what is said
under them.

defines: SCHEMAS, PATHOLOGICAL, deep
"""

import json
from typing import Any

TEXT = {"type": "string", "maxLength": 6}
SMALL = {"type": "integer", "minimum": 0, "maximum": 9}
FLAG = {"type": "boolean"}


def closed(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    """An object of these properties and no others, all of them required if nothing is said."""
    names = list(properties) if required is None else required
    return {
        "type": "object",
        "properties": properties,
        "required": names,
        "additionalProperties": False,
    }


def value(**keywords: Any) -> dict[str, Any]:
    """One property with these keywords."""
    return closed(v=keywords)


def defined(definitions: dict[str, Any], **properties: Any) -> dict[str, Any]:
    return {"$defs": definitions, **closed(**properties)}


LEAF = {"$ref": "#/$defs/leaf"}
TREE = closed(n=SMALL, c={"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2})
CHAIN = closed([], next={"$ref": "#/$defs/chain"}, n=SMALL)
EXCLUSIVE = {"exclusiveMinimum": 0, "exclusiveMaximum": 10}
TAGGED = [closed(kind={"const": "a"}, x=SMALL), closed(kind={"const": "b"}, y=FLAG)]

SCHEMAS: dict[str, dict[str, Any]] = {
    # Scalars.
    "null": value(type="null"),
    "boolean": value(type="boolean"),
    "integer": value(type="integer", minimum=-99, maximum=99),
    "number": value(type="number", minimum=0, maximum=1),
    "string": value(type="string", maxLength=8),
    "types": value(type=["integer", "null"], maximum=99, minimum=0),
    "types with text": value(type=["string", "boolean"], maxLength=4),
    "exclusive": value(type="integer", **EXCLUSIVE),
    "exclusive flag": value(type="integer", minimum=1, maximum=9, exclusiveMinimum=True),
    "exclusive number": value(type="number", **EXCLUSIVE),
    "maximum": value(type="integer", maximum=100, minimum=-5),
    "huge maximum": value(type="number", minimum=0, maximum=1e300),
    "largest integer": value(type="integer", minimum=0, maximum=2**53 - 1),
    "multiple": value(type="integer", multipleOf=5, minimum=0, maximum=95),
    "multiple of a fraction": value(type="number", multipleOf=0.5, minimum=0, maximum=5),
    "min length": value(type="string", minLength=3, maxLength=5),
    "empty text": value(type="string", maxLength=0),
    "max length 131072": value(type="string", maxLength=131072),
    "max length 524288": value(type="string", maxLength=524288),
    "max length 800000": value(type="string", maxLength=800000),
    # Patterns and formats.
    "pattern": value(type="string", pattern="^[a-z]{1,5}$"),
    "pattern open": value(type="string", pattern="[0-9]", maxLength=20),
    "pattern name": value(type="string", pattern="^[a-zA-Z0-9_-]{1,8}$"),
    "pattern choice": value(type="string", pattern="^(red|green|#[0-9a-f]{6})$"),
    "pattern escape": value(type="string", pattern=r"^\d{4}-\d{2}$"),
    "pattern space": value(type="string", pattern=r"^\S{1,6}$"),
    "pattern and length": value(type="string", pattern="^a+$", maxLength=6),
    "pattern ahead": value(type="string", pattern="^(?!x)a", maxLength=6),
    "pattern back": value(type="string", pattern=r"^(a)\1$"),
    "pattern malformed": value(type="string", pattern="(", maxLength=5),
    "pattern unicode": value(type="string", pattern="^é{1,3}$"),
    "date": value(type="string", format="date"),
    "date-time": value(type="string", format="date-time"),
    "time": value(type="string", format="time"),
    "uuid": value(type="string", format="uuid"),
    "ipv4": value(type="string", format="ipv4"),
    "email": value(type="string", format="email", maxLength=30),
    "uri": value(type="string", format="uri"),
    "unknown format": value(type="string", format="binary", maxLength=5),
    "format of a tool": value(type="string", format="directory-path", maxLength=5),
    # Values.
    "enum": value(type="string", enum=["celsius", "fahrenheit"]),
    "enum bare": value(enum=["a", 1, None, True, 1.5]),
    "enum of objects": value(enum=[{"a": 1}, [1, 2], "x"]),
    "enum one": value(enum=["only"]),
    "enum quotes": value(enum=['"', "\\", "\n", "é"]),
    "enum prefixes": value(enum=["a", "ab", "abc"]),
    "enum of the other type": value(type="string", enum=["a", 5]),
    "const": value(const="fixed"),
    "const null": value(const=None),
    "const object": value(const={"a": [1, {"b": False}]}),
    "const number": value(type="integer", const=7),
    # Objects.
    "optional": closed([], a=SMALL, b=FLAG),
    "some required": closed(["b"], a=SMALL, b=FLAG, c=TEXT),
    "open": {"type": "object", "properties": {"a": SMALL}, "required": ["a"]},
    "any object": {"type": "object"},
    "no properties": {"type": "object", "properties": {}, "additionalProperties": False},
    "map": {"type": "object", "additionalProperties": SMALL},
    "map and properties": {
        "type": "object",
        "properties": {"a": FLAG},
        "additionalProperties": SMALL,
    },
    "pattern properties": {
        "type": "object",
        "patternProperties": {"^x_[a-z]{1,3}$": SMALL},
        "additionalProperties": False,
    },
    "names": {
        "type": "object",
        "propertyNames": {"pattern": "^[a-z]+$"},
        "additionalProperties": SMALL,
    },
    "names of any kind": {"type": "object", "propertyNames": {"type": "string"}},
    "min properties": {"type": "object", "minProperties": 1, "additionalProperties": SMALL},
    "max properties": {"type": "object", "maxProperties": 2, "additionalProperties": SMALL},
    "required undeclared": {"type": "object", "required": ["x"], "additionalProperties": SMALL},
    "odd names": closed(**{"a b": FLAG, 'q"q': FLAG, "é": FLAG, "": FLAG, "$ref_": FLAG}),
    "nested": closed(a=closed(b=closed(c=SMALL))),
    "nested deep": closed(a=closed(a=closed(a=closed(a=closed(a=closed(a=FLAG)))))),
    "dependent required": {**closed([], a=SMALL, b=FLAG), "dependentRequired": {"a": ["b"]}},
    "dependencies": {**closed([], a=SMALL, b=FLAG), "dependencies": {"a": ["b"]}},
    "dependent schemas": {**closed([], a=SMALL), "dependentSchemas": {"a": {"minProperties": 1}}},
    "unevaluated": {"type": "object", "properties": {"a": SMALL}, "unevaluatedProperties": False},
    # Arrays.
    "array": value(type="array", items=SMALL, maxItems=3),
    "array of any": value(type="array", maxItems=2),
    "min items": value(type="array", items=FLAG, minItems=2, maxItems=4),
    "no items": value(type="array", items=FLAG, maxItems=0),
    "many items": value(type="array", items=FLAG, maxItems=10000),
    "arrays of arrays": value(
        type="array", maxItems=2, items={"type": "array", "maxItems": 2, "items": SMALL}
    ),
    "array of objects": value(type="array", maxItems=2, items=closed(a=SMALL, b=TEXT)),
    "tuple": value(type="array", prefixItems=[SMALL, FLAG], items=False, minItems=2),
    "tuple and more": value(type="array", prefixItems=[SMALL], items=FLAG, maxItems=3),
    "unique": value(type="array", items=SMALL, uniqueItems=True, maxItems=3),
    "contains": value(type="array", items=SMALL, contains={"const": 3}, maxItems=3),
    "enum items": value(type="array", items={"enum": ["a", "b"]}, maxItems=3),
    # Combinations.
    "any of": value(anyOf=[SMALL, TEXT, {"type": "null"}]),
    "any of objects": value(anyOf=TAGGED),
    "any of at the top": {"type": "object", "anyOf": TAGGED},
    "one of": value(oneOf=[SMALL, FLAG]),
    "one of objects": value(oneOf=TAGGED),
    "one of that overlap": value(oneOf=[{"type": "integer", "minimum": 0}, SMALL]),
    "all of": value(allOf=[{"type": "integer", "minimum": 3}, {"maximum": 8}]),
    "all of objects": {
        "allOf": [
            {"type": "object", "properties": {"a": SMALL}, "required": ["a"]},
            {"properties": {"b": FLAG}, "required": ["b"]},
        ]
    },
    "not": value(type="integer", minimum=0, maximum=99, **{"not": {"const": 5}}),
    "if": {**closed([], a=FLAG, b=SMALL), "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    "required in any of": {**closed([], a=FLAG, b=SMALL), "anyOf": [{"required": ["a"]}, {}]},
    # References.
    "definition": defined({"leaf": SMALL}, a=LEAF, b=LEAF),
    "definitions": {"definitions": {"x": FLAG}, **closed(a={"$ref": "#/definitions/x"})},
    "reference beside": defined({"leaf": TEXT}, a={**LEAF, "description": "d"}),
    "reference of a reference": defined({"leaf": SMALL, "b": LEAF}, a={"$ref": "#/$defs/b"}),
    "escaped reference": {"$defs": {"a/b": SMALL}, **closed(v={"$ref": "#/$defs/a~1b"})},
    "tree": {"$defs": {"tree": TREE}, "$ref": "#/$defs/tree"},
    "list": defined({"chain": CHAIN}, a={"$ref": "#/$defs/chain"}),
    "itself": closed([], a={"$ref": "#"}, n=SMALL),
    "json": value(anyOf=[SMALL, FLAG, {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}]),
    "no target": value(**{"$ref": "#/$defs/none"}),
    "elsewhere": value(**{"$ref": "https://example.com/s.json"}),
    "dynamic": value(**{"$dynamicRef": "#node"}),
    "only itself": {"$ref": "#"},
    "one of the other": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        **closed(v={"$ref": "#/$defs/a"}),
    },
    "endless": {
        "$defs": {"a": closed(x={"$ref": "#/$defs/a"})},
        **closed(v={"$ref": "#/$defs/a"}, n=SMALL),
    },
    "endless items": value(type="array", minItems=1, items={"$ref": "#"}),
    # What real tools have around it all.
    "dialect": {"$schema": "http://json-schema.org/draft-07/schema#", **closed(a=SMALL)},
    "dialect 2020": {"$schema": "https://json-schema.org/draft/2020-12/schema", **closed(a=TEXT)},
    "identifier": {"$id": "https://example.com/a", "title": "A", **closed(a=SMALL)},
    "annotations": value(
        type="boolean", default=True, examples=[False], description="d", title="t"
    ),
    "a property named like a keyword": closed(
        properties=SMALL, type=FLAG, default=FLAG, title=TEXT
    ),
    "nullable": value(type="integer", nullable=True, minimum=0, maximum=9),
    "number at the top": {"type": "integer", "minimum": 0, "maximum": 500},
    "array at the top": {"type": "array", "items": SMALL, "maxItems": 4},
    "text at the top": {"type": "string", "maxLength": 5},
    "enum at the top": {"enum": ["yes", "no"]},
    "shell": {
        **closed(["command"], command=TEXT, timeout={"type": "number", "exclusiveMinimum": 0}),
        "$schema": "https://json-schema.org/draft/2020-12/schema",
    },
    "questions": closed(
        questions={
            "type": "array",
            "minItems": 1,
            "maxItems": 2,
            "items": closed(
                q=TEXT, options={"type": "array", "minItems": 1, "maxItems": 2, "items": TEXT}
            ),
        }
    ),
}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def doubled(levels: int) -> dict[str, Any]:
    """Each definition has the next one twice: exponential, if it is written out."""
    held: dict[str, Any] = {f"d{levels}": SMALL}
    for level in range(levels):
        next_one = {"$ref": f"#/$defs/d{level + 1}"}
        held[f"d{level}"] = closed([], a=next_one, b=next_one)
    return defined(held, v={"$ref": "#/$defs/d0"})


WIDE = {f"p{i}": {"type": "string", "pattern": f"^a{i}"} for i in range(5000)}
PATHOLOGICAL: dict[str, dict[str, Any]] = {
    "deep": deep(500),
    "deep 80": deep(80),
    "wide": {"type": "object", "properties": WIDE},
    "wide, required": {"type": "object", "properties": WIDE, "required": list(WIDE)},
    "regex": value(pattern="((a{1,99}){1,99}){1,99}$"),
    "regex of choices": value(type="string", pattern="^(" + "|".join("ab" * 40) + "){500}$"),
    "regex backwards": value(type="string", pattern="^(.*a){30}$"),
    "long regex": value(type="string", pattern="(a|b)?" * 20_000),
    "least int64": value(const=-(2**63)),
    "near the least int64": value(enum=[[-(2**63) + 1], {"a": -(2**63) + 1}]),
    "enum of 20,000": value(enum=[f"value-{i}" for i in range(20_000)]),
    "enums": {"anyOf": [{"enum": [f"{i}-{j}" for j in range(200)]} for i in range(200)]},
    "items": value(type="array", minItems=10**9, items={"pattern": "a{999}"}),
    "long": {"type": "object", "description": "x" * 300_000},
    "doubled": doubled(40),
    "all of doubled": value(allOf=[{"anyOf": [{"type": "string"}, SMALL]} for _ in range(30)]),
    "one of doubled": value(oneOf=[{"type": "integer", "minimum": i} for i in range(300)]),
    "itself": {"$ref": "#"},
    "all of itself": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
    "itself, required": closed(a={"$ref": "#"}),
    "a large multiple": value(type="integer", multipleOf=99991),
    "a multiple": value(type="number", multipleOf=99.91, minimum=-5.5),
    "multiples": value(allOf=[{"type": "integer", "multipleOf": n} for n in range(2, 60)]),
}
PATHOLOGICAL = {**PATHOLOGICAL, "text of many": json.loads(json.dumps({"enum": ["x" * 9000] * 40}))}


# ---- a corpus --------------------------------------------------------------------------------
LABEL = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?$"}
QUANTITY = {"type": "string", "pattern": "^[0-9]{1,6}(\\.[0-9]{1,3})?(Ki|Mi|Gi|m)?$"}
PORT = {"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535}
LEAVES: dict[str, dict[str, Any]] = {
    "number": {"type": "number"},
    "integer": {"type": "integer"},
    "int64": {"type": "integer", "format": "int64"},
    "latitude": {"type": "number", "format": "double", "minimum": -90, "maximum": 90},
    "price": {"type": "number", "multipleOf": 0.01, "exclusiveMinimum": 0, "maximum": 9999},
    "step": {"type": "integer", "multipleOf": 25},
    "port": PORT,
    "port or name": {"anyOf": [PORT, LABEL]},
    "text": {"type": "string"},
    "bounded text": {"type": "string", "minLength": 1, "maxLength": 12},
    "label": LABEL,
    "quantity": QUANTITY,
    "semver": {"type": "string", "pattern": "^\\d{1,3}\\.\\d{1,3}\\.\\d{1,3}$"},
    "locale": {"type": "string", "pattern": "^[a-z]{2}(-[A-Z]{2})?$"},
    "sha": {"type": "string", "pattern": "^[0-9a-f]{40}$"},
    "date-time": {"type": "string", "format": "date-time"},
    "uuid": {"type": "string", "format": "uuid"},
    "email": {"type": "string", "format": "email"},
    "uri": {"type": "string", "format": "uri"},
    "password": {"type": "string", "format": "password", "maxLength": 9},
    "binary": {"type": "string", "format": "binary", "maxLength": 9},
    "flag": {"type": "boolean", "default": False, "description": "Whether to retry"},
    "enum": {"type": "string", "enum": ["open", "closed", "all"], "default": "open"},
    "mixed enum": {"enum": ["auto", 0, 1, True, None]},
    "nullable": {"type": ["string", "null"], "maxLength": 9},
    "const": {"const": "v1"},
    "null": {"type": "null"},
    "any": {},
    "free object": {"type": "object"},
    "labels": {"type": "object", "additionalProperties": {"type": "string", "maxLength": 5}},
    "tags": {"type": "array", "items": LABEL, "maxItems": 3},
    "unique tags": {"type": "array", "items": SMALL, "uniqueItems": True, "maxItems": 3},
    "matrix": {"type": "array", "maxItems": 2, "items": {"type": "array", "items": SMALL}},
    "pair": {"type": "array", "prefixItems": [SMALL, FLAG], "items": False, "minItems": 2},
    "tagged": {"oneOf": TAGGED, "discriminator": {"propertyName": "kind"}},
    "overlapping": {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 3}]},
    "not": {"type": "string", "maxLength": 5, "not": {"const": "x"}},
    "endless pattern": {"type": "string", "pattern": "^(.*e.{20}){10}$"},
    "merged": {"allOf": [closed([], a=SMALL), {"required": ["a"]}]},
    "person": closed(name=TEXT, age={"type": "integer", "minimum": 0}, tags={"type": "array"}),
}


def wrapped(leaf: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A shape in the places where tools, manifests and interfaces of the web have such ones."""
    items = {"type": "array", "items": leaf, "maxItems": 3}
    named = {"$defs": {"List<Item 1>": leaf}}
    node = {
        "type": "object",
        "properties": {"value": leaf, "next": {"$ref": "#/definitions/nœud"}},
        "required": ["value"],
        "additionalProperties": False,
    }
    spec = {
        "type": "object",
        "required": ["replicas", "template"],
        "properties": {"replicas": SMALL, "template": closed([], metadata=leaf, spec=TEXT)},
    }
    return {
        "tool": closed(v=leaf),
        "optional": {"type": "object", "properties": {"v": leaf, "w": leaf}},
        "page": closed(items=items, next={"type": "null"}),
        "map": {"type": "object", "required": ["a"], "additionalProperties": leaf},
        "maybe": closed(v={"anyOf": [leaf, {"type": "null"}]}),
        "named": {**named, **closed(v={"$ref": "#/$defs/List%3CItem%201%3E"})},
        "manifest": closed(apiVersion={"const": "apps/v1"}, kind={"enum": ["Set"]}, spec=spec),
        "list": {"definitions": {"nœud": node}, **closed(head={"$ref": "#/definitions/nœud"})},
    }


CORPUS: dict[str, dict[str, Any]] = {
    f"{place} of {name}": schema
    for name, leaf in LEAVES.items()
    for place, schema in wrapped(leaf).items()
} | {
    name: schema
    for name, schema in SCHEMAS.items()
    if schema.get("type") == "object" and name != "exclusive flag"  # of a draft before numbers
}
