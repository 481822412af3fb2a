"""Constraints: what a model says under them parses, validates, and is what the format writes."""

import contextlib
import json
import logging
import math
import random
import time
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grammar_speaker import Speaker, speaker_tokenizer
from sublimate.grammar import bounds
from sublimate.grammar.compiler import Grammars, StrictSchemaError, Wanted
from sublimate.grammar.constraint import Phase
from sublimate.grammar.matcher import Matcher
from sublimate.grammar.schema import ANY_OBJECT, enforceable, needs_many_states
from sublimate.grammar.vocabulary import GrammarVocabulary
from sublimate.model.thinking import ThinkingFormat
from sublimate.model.tool_formats import (
    FORMATS,
    Tool,
    ToolCall,
    ToolFormat,
    canonical_json,
)

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
FLAG = {
    "type": "object",
    "properties": {"x": {"type": "boolean"}},
    "required": ["x"],
    "additionalProperties": False,
}
TOOLS = (Tool("get_weather", "d", CITY), Tool("set-flag", "d", FLAG))
SCHEMAS = {tool.name: tool.schema for tool in TOOLS}
CALLS = [
    ToolCall("", "get_weather", canonical_json({"city": "P"})),
    ToolCall("", "set-flag", canonical_json({"x": True})),
]
THINK = ThinkingFormat("<think>", "</think>")
TOKENIZER = speaker_tokenizer()
FAMILIES = list(FORMATS.values())


def grammars(family: ToolFormat, thinking: ThinkingFormat | None = None, **tokens: Any) -> Grammars:
    return Grammars(speaker_tokenizer(**tokens) if tokens else TOKENIZER, family, thinking)


GENERIC = grammars(ToolFormat())


def said_under(wanted: Wanted, prefer: str = "", seed: int = 1, of: Grammars = GENERIC) -> Speaker:
    constraint = of.constraint(wanted)
    assert constraint is not None
    speaker = Speaker(constraint, seed, prefer.encode())
    speaker.speak(400)
    return speaker


# ---- calls -------------------------------------------------------------------------------------
@pytest.mark.parametrize("thinks", ["no", "may", "begun"])
@pytest.mark.parametrize("must_call", [True, False])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_what_a_format_writes_is_what_its_grammar_takes(
    family: ToolFormat, must_call: bool, thinks: str
) -> None:
    of = grammars(family, None if thinks == "no" else THINK)
    thought = {"no": "", "may": "<think>hm < a</think>", "begun": "hm < a</think>"}[thinks]
    for parallel in (True, False):
        calls = CALLS if parallel and family.parallel else CALLS[:1]
        text = "" if must_call or family.bare else "so < then\n"
        wanted = Wanted(
            tools=TOOLS,
            must_call=must_call,
            parallel=parallel,
            may_think=thinks == "may",
            begins_in_thinking=thinks == "begun",
        )
        if family.bare and not must_call and thinks == "may":
            thought = ""  # such families do not think
        speaker = said_under(wanted, thought + text + family.calls_text(calls), of=of)
        assert not speaker.prefer, (parallel, speaker.said, speaker.prefer)
        if must_call or not (parallel and family.parallel):
            assert speaker.ended or family.bare
        assert speaker.masks > 0 and not speaker.matcher.broken


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_call_that_must_come_validates(family: ToolFormat) -> None:
    of = grammars(family)
    for seed in range(8):
        speaker = said_under(Wanted(tools=TOOLS, must_call=True, parallel=False), seed=seed, of=of)
        assert speaker.ended and speaker.free == 0
        check_call(family, speaker.said.decode())


def check_call(family: ToolFormat, text: str) -> None:
    """One call, spelled as the format spells it."""
    for name, schema in SCHEMAS.items():
        before, head = family.before_calls, family.call_head(name)
        if not text.startswith(before + head):
            continue
        arguments = text[
            len(before + head) : len(text) - len(family.call_tail + family.after_calls)
        ]
        value = json.loads(arguments)
        jsonschema.validate(value, schema)
        spelled = family.call_text(ToolCall("", name, canonical_json(value)))
        assert json.loads(canonical_json(value)) == value and len(spelled) <= len(text) + 64
        return
    raise AssertionError(text)


def test_one_chosen_tool_is_the_only_one() -> None:
    for seed in range(4):
        wanted = Wanted(tools=TOOLS[1:], must_call=True, parallel=False)
        check = said_under(wanted, seed=seed).said.decode()
        assert check.startswith('<tool_call>\n{"name": "set-flag", "arguments": {"x": ')


def test_text_of_an_agent_costs_no_masks() -> None:
    text = "no calls here, only 1 > 0 and a few lines\nof text"
    speaker = said_under(Wanted(tools=TOOLS), text)
    assert not speaker.prefer and speaker.free >= len(text) - 12 and speaker.masks == 0


def test_text_that_only_looks_like_a_marker_stays_free() -> None:
    for text in ("a <b> c", "a </tool_call> b", "<tool_cal", "<<<tool_", "x <tool_call> y"):
        speaker = said_under(Wanted(tools=TOOLS), text + "...")
        if text.startswith("x"):
            assert not speaker.said.startswith(text.encode()), "the marker is whole: a call"
        else:
            assert not speaker.prefer and not speaker.matcher.broken


def test_the_answer_may_end_where_a_marker_might_have_begun() -> None:
    constraint = GENERIC.constraint(Wanted(tools=TOOLS))
    assert constraint is not None
    matcher, vocabulary = Matcher(constraint), constraint.vocabulary
    less = vocabulary.token_bytes.index(b"<")
    assert matcher.is_free
    matcher.consume([less])
    assert not matcher.is_free
    words = vocabulary.words([])
    matcher.fill(words)
    assert (words & vocabulary.stop_words).tolist() == vocabulary.stop_words.tolist()


def test_f36_no_turn_ends_where_thinking_may_be_ending() -> None:
    of = grammars(ToolFormat(), THINK)
    for wanted in (
        Wanted(answer_schema=FLAG, begins_in_thinking=True),
        Wanted(tools=TOOLS, must_call=True, begins_in_thinking=True),
        Wanted(begins_in_thinking=True),
    ):
        constraint = of.constraint(wanted)
        assert constraint is not None
        matcher, vocabulary = Matcher(constraint), constraint.vocabulary
        matcher.consume([vocabulary.token_bytes.index(b"<")])
        words = vocabulary.words([])
        matcher.fill(words)
        assert words.any() and not (words & vocabulary.stop_words).any()


@pytest.mark.parametrize("kind", ["control", "defined"])
def test_markers_that_are_tokens_of_their_own(kind: str) -> None:
    marks = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<other>")
    of = grammars(FORMATS["hermes"], THINK, **{kind: marks})
    wanted = Wanted(tools=TOOLS, parallel=False, begins_in_thinking=True)
    text = "hm</think>so\n" + FORMATS["hermes"].calls_text(CALLS[:1])
    speaker = said_under(wanted, text, of=of)
    assert not speaker.prefer and speaker.ended and not speaker.matcher.broken


def test_without_a_wish_there_is_no_constraint() -> None:
    assert GENERIC.constraint(Wanted()) is None
    with pytest.raises(ValueError, match="marker"):
        Phase(kind="free", thinks=True)
    with pytest.raises(ValueError, match="beginnings"):
        Phase(kind="choice")


def test_a_token_outside_of_the_grammar_ends_the_constraint_not_the_answer() -> None:
    constraint = GENERIC.constraint(Wanted(tools=TOOLS, must_call=True))
    assert constraint is not None
    matcher = Matcher(constraint)
    matcher.consume([constraint.vocabulary.token_bytes.index(b"z")])
    assert matcher.broken and matcher.is_free and not matcher.triggers.any()


# ---- documents ---------------------------------------------------------------------------------
@pytest.mark.parametrize("thinks", ["no", "may", "begun"])
def test_a_document_is_canonical_and_validates(thinks: str) -> None:
    of = grammars(ToolFormat(), None if thinks == "no" else THINK)
    wanted = Wanted(
        answer_schema=CITY, may_think=thinks == "may", begins_in_thinking=thinks == "begun"
    )
    for seed in range(100):
        speaker = said_under(wanted, {"begun": "hm</think>"}.get(thinks, ""), seed, of)
        if b"<think>" in speaker.said and b"</think>" not in speaker.said:
            continue  # cut by the budget
        document = speaker.said.rpartition(b"</think>")[2].strip().decode()
        value = json.loads(document)
        jsonschema.validate(value, CITY)
        assert speaker.ended and '":"' not in document.replace('\\"', "")


def test_a_document_beside_tools_is_either() -> None:
    wanted = Wanted(tools=TOOLS, answer_schema=FLAG, parallel=False)
    for prefer in ('{"x": true}', ToolFormat().call_text(CALLS[1])):
        assert not said_under(wanted, prefer).prefer


# ---- schemas -----------------------------------------------------------------------------------
# What clients' tools have in them (A69 of the case list), and worse.
COVERED = (
    *("$ref", "const", "enum", "format", "not", "if", "prefixItems", "additionalProperties"),
    *("patternProperties", "propertyNames", "minItems", "maxLength", "maximum", "multipleOf"),
    *("pattern", "uniqueItems", "contains", "dependentRequired", "$defs", "type"),
)
RELAXED: list[tuple[dict[str, Any], set[str]]] = [
    ({"propertyNames": {"type": "string"}}, {"propertyNames"}),
    ({"properties": {"a": {"pattern": "^(?!x)a", "type": "string"}}}, {"properties.a.pattern"}),
    ({"properties": {"a": {"pattern": r"^\S+$", "type": "string"}}}, set()),
    ({"properties": {"a": {"type": "string", "maxLength": 524288}}}, set()),
    ({"properties": {"a": {"type": "integer", "exclusiveMinimum": 0}}}, set()),
    ({"properties": {"a": {"type": "number", "maximum": 1e300}}}, {"properties.a.maximum"}),
    ({"properties": {"a": {"format": "binary", "type": "string"}}}, set()),
    ({"properties": {"a": {"type": "string", "format": "date-time"}}}, set()),
    ({"properties": {"a": {"type": "file"}}}, {"properties.a.type"}),
    ({"properties": {"a": {"$ref": "http://x/y"}}}, {"properties.a.$ref"}),
    ({"properties": {"a": {"$ref": "#/$defs/none"}}}, {"properties.a.$ref"}),
    ({"properties": {"a": {"$ref": "other.json#/x"}}}, {"properties.a.$ref"}),
    ({"properties": {"a": {"$ref": "#"}}}, set()),
    ({"properties": {"a": {"not": {"type": "string"}}}}, {"properties.a.not"}),
    (
        {"properties": {"a": {"type": "array", "uniqueItems": True, "items": {"contains": {}}}}},
        {"properties.a.uniqueItems", "properties.a.items.contains"},
    ),
    (
        {"properties": {"a": {"oneOf": [{"type": "number"}, {"minimum": 3}]}}},
        {"properties.a.oneOf"},
    ),
    ({"properties": {"a": {"oneOf": [{"type": "number"}, {"type": "null"}]}}}, set()),
    ({"properties": {"a": {"anyOf": [{"type": "string", "if": {}}]}}}, {"properties.a.anyOf.0.if"}),
    ({"required": ["b"], "additionalProperties": False}, {"unsatisfiable"}),
    ({"properties": {"a": {"enum": []}}}, {"properties.a.enum"}),
    ({"properties": {"a": 5}}, {"properties.a.schema"}),
    ({"properties": 5}, {"schema"}),
    (
        {"dependentRequired": {"a": ["b"]}, "$dynamicRef": "#x"},
        {"dependentRequired", "$dynamicRef"},
    ),
]


@pytest.mark.parametrize("value", [5, None, True, "x", {}, [], [5], [[]], {"a": 5}], ids=repr)
def test_any_keyword_of_any_kind_is_taken_or_left_out(value: Any) -> None:
    for keyword in sorted({*COVERED, "oneOf", "anyOf", "allOf", "items", "properties", "required"}):
        for schema in ({keyword: value}, {"properties": {"a": {keyword: value}}}):
            tool = Tool("t", "d", {"type": "object", **schema})
            assert GENERIC.constraint(Wanted(tools=(tool,), must_call=True)) is not None


def shown(value: object) -> str:
    """Every process that collects the tests gives them the same names."""
    return str(sorted(map(str, value)) if isinstance(value, set) else value)


@pytest.mark.parametrize(("schema", "places"), RELAXED, ids=shown)
def test_what_cannot_be_enforced_is_left_out_by_its_path(
    schema: dict[str, Any], places: set[str]
) -> None:
    schema = {"type": "object", **schema}
    found = enforceable(schema)
    assert {relaxation.place for relaxation in found.relaxations} == places
    tool = Tool("t", "d", schema)
    assert GENERIC.constraint(Wanted(tools=(tool,), must_call=True)) is not None
    strict = Tool("t", "d", schema, strict=True)
    if not places:
        assert GENERIC.constraint(Wanted(tools=(strict,))) is not None
        return
    with pytest.raises(StrictSchemaError) as caught:
        GENERIC.constraint(Wanted(tools=(strict,)))
    assert caught.value.tool == "t" and caught.value.relaxation.place in places


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


PATHOLOGICAL = {
    "deep": deep(500),
    "wide": {"type": "object", "properties": {f"p{i}": {"pattern": f"^a{i}"} for i in range(5000)}},
    "regex": {"type": "object", "properties": {"a": {"pattern": "((a{1,99}){1,99}){1,99}$"}}},
    "choices": {"anyOf": [{"enum": [f"{i}-{j}" for j in range(200)]} for i in range(200)]},
    "items": {
        "type": "object",
        "properties": {"a": {"type": "array", "minItems": 10**9, "items": {"pattern": "a{999}"}}},
    },
    "long": {"type": "object", "description": "x" * 300_000},
}


@pytest.mark.parametrize("schema", PATHOLOGICAL.values(), ids=PATHOLOGICAL)
def test_a_pathological_schema_costs_little_and_fails_nothing(schema: dict[str, Any]) -> None:
    fresh = grammars(ToolFormat())
    assert fresh.vocabulary.count == len(TOKENIZER)
    begin = time.process_time()
    constraint = fresh.constraint(Wanted(tools=(Tool("t", "d", schema),), must_call=True))
    seconds = time.process_time() - begin
    assert constraint is not None
    matcher = Matcher(constraint)
    words = constraint.vocabulary.words([])
    begin = time.process_time()
    matcher.fill(words)
    assert words.any() and not matcher.broken
    assert time.process_time() - begin < 0.1
    assert seconds < 0.4, "a tenth of a second, and a slow machine"


def test_relaxations_are_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    fresh = grammars(ToolFormat())
    tool = Tool("odd", "d", {"type": "object", "propertyNames": {"minLength": 1}})
    with caplog.at_level(logging.INFO, "sublimate.grammar"):
        for _ in range(3):
            assert fresh.constraint(Wanted(tools=(tool, *TOOLS))) is not None
    assert [record.getMessage() for record in caplog.records] == [
        "not enforced: propertyNames of odd"
    ]
    assert fresh.relaxed == {"propertyNames": 1}


def test_constraints_are_shared_and_bounded() -> None:
    first = GENERIC.constraint(Wanted(tools=TOOLS))
    assert GENERIC.constraint(Wanted(tools=TOOLS)) is first
    assert GENERIC.constraint(Wanted(tools=TOOLS, parallel=False)) is not first


def test_schemas_too_large_together_allow_any_object(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = grammars(ToolFormat())
    compiled = Grammars._compiled
    monkeypatch.setattr(
        Grammars,
        "_compiled",
        lambda self, text: (
            None if text.count("%json {") > 1 and "city" in text else compiled(self, text)
        ),
    )
    assert fresh.constraint(Wanted(tools=TOOLS)) is not None
    assert fresh.relaxed == {"tools": 1}


# ---- references, formats and choices ---------------------------------------------------------
SMALL = {"type": "integer", "minimum": 0, "maximum": 9}


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def kind(name: str, **more: Any) -> dict[str, Any]:
    return closed(kind={"const": name}, **more)


REFERRING: dict[str, dict[str, Any]] = {
    "letters of any script": {"$defs": {"天气": SMALL}, **closed(v={"$ref": "#/$defs/天气"})},
    "percent": {"$defs": {"天": SMALL}, **closed(v={"$ref": "#/$defs/%E5%A4%A9"})},
    "space": {"$defs": {"a b": SMALL}, **closed(v={"$ref": "#/$defs/a b"})},
    "space by percent": {"$defs": {"a b": SMALL}, **closed(v={"$ref": "#/$defs/a%20b"})},
    "generic": {"$defs": {"List<Foo>": SMALL}, **closed(v={"$ref": "#/$defs/List<Foo>"})},
    "percent sign": {"$defs": {"50%": SMALL}, **closed(v={"$ref": "#/$defs/50%"})},
    "percent sign by percent": {"$defs": {"50%": SMALL}, **closed(v={"$ref": "#/$defs/50%25"})},
    "tilde": {"$defs": {"a/b~c": SMALL}, **closed(v={"$ref": "#/$defs/a~1b~0c"})},
    "tab": {"$defs": {"a\tb": SMALL}, **closed(v={"$ref": "#/$defs/a\tb"})},
    "index": closed(
        place={"anyOf": [SMALL, {"type": "null"}]}, v={"$ref": "#/properties/place/anyOf/0"}
    ),
    "index of a prefix": {"prefixItems": [SMALL], **closed(v={"$ref": "#/prefixItems/0"})},
    "anchor": {"$defs": {"x": {"$anchor": "n", **SMALL}}, **closed(v={"$ref": "#n"})},
    "anchor of the seventh draft": {
        "definitions": {"x": {"$id": "#n", **SMALL}}, **closed(v={"$ref": "#n"}),
    },
    "the only dynamic anchor": {
        "$defs": {"x": {"$dynamicAnchor": "n", **SMALL}}, **closed(v={"$dynamicRef": "#n"}),
    },
    "absolute": {
        "$id": "https://example.com/s", "$defs": {"x": SMALL},
        **closed(v={"$ref": "https://example.com/s#/$defs/x"}),
    },
    "relative": {
        "$id": "https://example.com/s", "$defs": {"x": {"$id": "item.json", **SMALL}},
        **closed(v={"$ref": "item.json"}),
    },
    "inside of another resource": {
        "$id": "https://example.com/s",
        "$defs": {"x": {"$id": "/i", "$defs": {"y": SMALL}, **closed(v={"$ref": "#/$defs/y"})}},
        **closed(v={"$ref": "/i"}),
    },
    "urn": {"$id": "urn:a:b", "$defs": {"x": SMALL}, **closed(v={"$ref": "urn:a:b#/$defs/x"})},
    "elsewhere in the document": {
        "components": {"schemas": {"P": SMALL}}, **closed(v={"$ref": "#/components/schemas/P"}),
    },
    "recursive": {
        "$defs": {"节 点": {**closed(v=SMALL, n={"type": "array", "maxItems": 1, "items":
                            {"$ref": "#/$defs/节 点"}})}},
        "$ref": "#/$defs/节 点",
    },
}  # fmt: skip


@pytest.mark.parametrize("schema", REFERRING.values(), ids=REFERRING)
def test_f37_a_reference_finds_its_schema(schema: dict[str, Any]) -> None:
    assert enforceable(schema).relaxations == ()
    for seed in range(4):
        speaker = said_under(Wanted(answer_schema=schema, answer_strict=True), seed=seed)
        assert speaker.ended
        value = json.loads(speaker.said)["v"]
        value = value["v"] if isinstance(value, dict) else value
        assert type(value) is int and 0 <= value <= 9


@pytest.mark.parametrize(
    "reference", ["#/$defs/y", "#/$defs/x/anyOf/07", "#n", "a b#x", "#/%", "#/7"]
)
def test_f37_a_reference_to_nothing_is_told(reference: str) -> None:
    schema = {"$defs": {"x": {"anyOf": [SMALL]}}, **closed(v={"$ref": reference})}
    places = [relaxation.place for relaxation in enforceable(schema).relaxations]
    assert places == ["properties.v.$ref"]


UNKNOWN_FORMATS = (
    *("int32", "int64", "float", "double", "binary", "byte", "password", "decimal", "regex"),
    *("uri-reference", "iri", "uri-template", "json-pointer", "color", "x"),
)


@pytest.mark.parametrize("name", UNKNOWN_FORMATS)
def test_f38_an_unknown_format_is_an_annotation(name: str) -> None:
    for kind in ("string", "integer", "number"):
        schema = closed(v={"type": kind, "format": name})
        assert enforceable(schema).relaxations == ()
        assert said_under(Wanted(answer_schema=schema, answer_strict=True)).masks > 0


APART: dict[str, list[dict[str, Any]]] = {
    "const": [kind("a", x=SMALL), kind("b", x=FLAG)],
    "enum": [closed(kind={"enum": ["a", "b"]}, x=SMALL), kind("c", y=SMALL)],
    "constants": [{"const": "a", "title": "A"}, {"const": 1}, {"const": True}],
    "definitions": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}],
    "members": [closed(a=SMALL), closed(b=SMALL)],
    "types": [SMALL, {"type": "string", "maxLength": 3}, {"type": "null"}],
}


@pytest.mark.parametrize("options", APART.values(), ids=APART)
def test_f39_options_that_are_told_apart_are_served(options: list[dict[str, Any]]) -> None:
    definitions = {"A": kind("a", x=SMALL), "B": kind("b", x=SMALL)}
    schema = {"$defs": definitions, **closed(v={"oneOf": options})}
    assert enforceable(schema).relaxations == ()
    for seed in range(6):
        speaker = said_under(Wanted(answer_schema=schema, answer_strict=True), seed=seed)
        assert speaker.ended
        jsonschema.validate(json.loads(speaker.said), schema)


def test_f39_options_that_may_overlap_are_told() -> None:
    open_one = {"type": "object", "properties": {"kind": {"const": "a"}}}
    for options in ([open_one, kind("b")], [{"const": 1}, {"const": 1.0}], [SMALL, {"minimum": 3}]):
        places = [one.place for one in enforceable(closed(v={"oneOf": options})).relaxations]
        assert places == ["properties.v.oneOf"]


# ---- bounds ------------------------------------------------------------------------------------
NUMBERS: list[dict[str, Any]] = [
    {"type": "number"},
    {"type": "integer"},
    {"type": "number", "minimum": 0},
    {"type": "integer", "exclusiveMaximum": 5},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "multipleOf": 0.01},
    {"type": "integer", "multipleOf": 10},
    {"type": "integer", "multipleOf": 7, "minimum": 0},
    {"type": ["number", "null"]},
    {},
]
ENDLESS = ["1" * 300, "-0." + "3" * 300, "1e" + "9" * 300, "2.5e-" + "0" * 300, "0." + "0" * 300]


@pytest.mark.parametrize("number", NUMBERS, ids=str)
@pytest.mark.parametrize("digits", ENDLESS, ids=lambda text: text[:6])
def test_f36_a_number_ends(number: dict[str, Any], digits: str) -> None:
    """However much a model likes digits."""
    schema = closed(x=number)
    speaker = said_under(Wanted(answer_schema=schema), '{"x": ' + digits)
    assert speaker.ended and len(speaker.said) < 64, speaker.said
    value = json.loads(speaker.said)
    assert math.isfinite(value["x"])
    jsonschema.validate(value, schema)
    called = said_under(
        Wanted(tools=(Tool("t", "d", schema),), must_call=True, parallel=False),
        ToolFormat().call_head("t") + '{"x": ' + digits,
    )
    assert called.ended and len(called.said) < 120, called.said


def test_f36_free_values_end() -> None:
    wanted = Wanted(answer_schema={"type": "object"})
    speaker = said_under(wanted, '{"x": ' + "[" * 70)
    before = speaker.said.partition(b'"')[0] + speaker.said[6:]
    assert before.split(b'"')[0].count(b"[") <= bounds.DEPTH_MAX


def test_f36_white_space_ends() -> None:
    for thinking, text in ((THINK, "hm</think>" + "\n" * 300), (None, "\n" * 300)):
        of = grammars(ToolFormat(), thinking)
        begins = thinking is not None
        for wanted in (
            Wanted(answer_schema=FLAG, begins_in_thinking=begins),
            Wanted(tools=TOOLS, must_call=True, begins_in_thinking=begins),
        ):
            said = said_under(wanted, text, of=of).said
            assert said.count(b"\n") < 40, said
    spaces = said_under(
        Wanted(begins_in_thinking=True), "hm</think>" + "\n" * 300, of=grammars(ToolFormat(), THINK)
    )
    assert spaces.said.partition(b"</think>")[2][:20].strip(), "something has to be said"


def test_f36_a_long_document_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "DOCUMENT_BYTES_MAX", 60)
    for value in ("x" * 500, "[" + "1, " * 300, '{"a": ' * 100):
        schema = closed(v={}) if value[0] != "x" else closed(v={"type": "string"})
        text = '{"v": ' + ('"' if value[0] == "x" else "") + value
        speaker = said_under(Wanted(answer_schema=schema), text)
        assert speaker.ended and len(speaker.said) < 220, speaker.said
        jsonschema.validate(json.loads(speaker.said), schema)


# ---- limits of the library ---------------------------------------------------------------------
def test_f08_a_pattern_with_endless_states_is_relaxed_and_said() -> None:
    for pattern in ("^(.*e.{20}){10}$", "^(.*[aeiou].{12}){10}$", ".*e............"):
        found = enforceable(closed(x={"type": "string", "pattern": pattern}))
        assert [one.place for one in found.relaxations] == ["properties.x.pattern"]
    for pattern in ("^[a-z]{1,500}$", "^.{1,900}$", "^[^@]+@[^@]+[.][a-z]{2,63}$", "e.{3}$"):
        assert not needs_many_states(pattern)


@pytest.fixture
def exploding(monkeypatch: pytest.MonkeyPatch) -> Wanted:
    """A pattern that nothing has recognised, whose states an answer uses up."""

    def no(pattern: str) -> bool:
        return not pattern

    monkeypatch.setattr("sublimate.grammar.schema.needs_many_states", no)
    return Wanted(answer_schema=closed(x={"type": "string", "pattern": "^(.*e.{40}){10}$"}))


def exhausting(seed: int) -> bytes:
    return b'{"x": "' + bytes(random.Random(seed).choices(b"eab", k=2500))


def test_f08_a_grammar_that_broke_spoils_no_other_answer(exploding: Wanted) -> None:
    of = grammars(ToolFormat())
    for seed, tokens in ((0, 5), (1, 1900), (2, 5), (3, 1900), (4, 5)):
        constraint = of.constraint(exploding)
        assert constraint is not None
        speaker = Speaker(constraint, seed, exhausting(seed))
        speaker.speak(tokens)
        assert not speaker.matcher.broken and speaker.masks == tokens
        if tokens > 5:
            said = {*constraint.relaxed, *constraint.relaxed_later}
            assert {one.place for _, one in said} == {"properties.x.pattern"}


def test_f08_a_strict_schema_is_not_relaxed_and_not_spoilt(exploding: Wanted) -> None:
    of = grammars(ToolFormat())
    strict = msgspec.structs.replace(exploding, answer_strict=True)
    for wanted in (strict, exploding, strict):
        constraint = of.constraint(wanted)
        assert constraint is not None
        speaker = Speaker(constraint, 1, exhausting(1))
        with contextlib.suppress(AssertionError):
            speaker.speak(1900)
        assert bool(speaker.matcher.broken) == wanted.answer_strict
        fresh = of.constraint(strict)
        assert fresh is not None and not fresh.relaxed
        Speaker(fresh, 1).speak(5)


def test_f08_a_vocabulary_that_is_made_late_relaxes_no_schema(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slow(*arguments: Any) -> GrammarVocabulary:
        begin = time.thread_time()
        while time.thread_time() - begin < 0.15:
            pass
        return GrammarVocabulary(*arguments)

    monkeypatch.setattr("sublimate.grammar.compiler.GrammarVocabulary", slow)
    constraint = grammars(ToolFormat()).constraint(Wanted(answer_schema=FLAG))
    assert constraint is not None and not constraint.relaxed


def test_f08_many_short_answers_use_up_no_grammar(exploding: Wanted) -> None:
    """Answers share what the library computes, and so its limits."""
    of = grammars(ToolFormat())
    for seed in range(12):
        constraint = of.constraint(exploding)
        assert constraint is not None and not constraint.relaxed
        Speaker(constraint, seed, exhausting(seed)).speak(400)
        assert not constraint.relaxed_later


# ---- any schema --------------------------------------------------------------------------------
NAMES = st.sampled_from(["a", "bc", "long name", "é", 'q"uote', "n"])
SCALARS = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={"minLength": st.integers(0, 3), "maxLength": st.integers(3, 9)},
    ),
    st.fixed_dictionaries(
        {"type": st.just("integer")},
        optional={"minimum": st.integers(-50, 0), "maximum": st.integers(0, 5000)},
    ),
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.fixed_dictionaries(
        {"type": st.just("string"), "pattern": st.sampled_from(["^a+$", "b", r"\d{2}"])}
    ),
    st.fixed_dictionaries(
        {
            "enum": st.lists(
                st.one_of(st.text(max_size=4), st.integers(-9, 9), st.none()),
                min_size=1,
                max_size=4,
                unique_by=repr,
            )
        }
    ),
    st.fixed_dictionaries(
        {"const": st.one_of(st.text(max_size=4), st.booleans(), st.just([1, {"k": None}]))}
    ),
    st.fixed_dictionaries(
        {
            "type": st.lists(
                st.sampled_from(["string", "null", "integer"]), min_size=1, max_size=3, unique=True
            )
        }
    ),
)


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def build(parts: tuple[dict[str, Any], bool, bool]) -> dict[str, Any]:
        properties, needs_all, is_open = parts
        required = list(properties) if needs_all else list(properties)[:1]
        schema = {"type": "object", "properties": properties, "required": required}
        return schema if is_open else {**schema, "additionalProperties": False}

    return st.tuples(st.dictionaries(NAMES, inner, max_size=3), st.booleans(), st.booleans()).map(
        build
    )


def compounds(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        objects(inner),
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner},
            optional={"minItems": st.integers(0, 2), "maxItems": st.integers(2, 4)},
        ),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=3)}),
    )


ANY_SCHEMA = st.recursive(SCALARS, compounds, max_leaves=8)


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
@given(inner=ANY_SCHEMA, seed=st.integers(0, 1 << 16))
def test_every_answer_validates(inner: dict[str, Any], seed: int) -> None:
    schema = {"type": "object", "properties": {"value": inner}, "required": ["value"]}
    schema["additionalProperties"] = False
    found = enforceable(schema)
    speaker = said_under(Wanted(answer_schema=schema), seed=seed)
    if not speaker.ended:
        return  # cut by the budget
    value = json.loads(speaker.said)
    jsonschema.validate(value, schema if not found.relaxations else ANY_OBJECT)
    tool = Tool("t", "d", schema)
    called = said_under(Wanted(tools=(tool,), must_call=True, parallel=False), seed=seed)
    if called.ended:
        text = called.said.decode()
        head, tail = ToolFormat().call_head("t"), ToolFormat().call_tail
        assert text.startswith(head) and text.endswith(tail)
        jsonschema.validate(
            json.loads(text[len(head) : -len(tail)]), schema if not found.relaxations else {}
        )
