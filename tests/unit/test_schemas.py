"""Any schema: what is said under it validates, and a bad one costs little and says where."""

import json
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from grammar_speaker import Speaker, speaker_tokenizer
from schemas import PATHOLOGICAL, SCHEMAS
from sublimate.grammar.compiler import Grammars, StrictSchemaError, Wanted
from sublimate.grammar.matcher import Matcher
from sublimate.grammar.schema import MalformedSchemaError, check_schema, enforceable
from sublimate.model.tool_formats import Tool, ToolFormat

TOKENIZER = speaker_tokenizer()
GRAMMARS = Grammars(TOKENIZER, ToolFormat(), None)
CASES = Path(__file__).parent.parent / "cases" / "messages_api.jsonl"
SECONDS_MAX = 0.1


def of_cases() -> dict[str, Any]:
    """The schemas in the list of cases."""
    found: dict[str, Any] = {}
    waiting: list[Any] = [json.loads(line) for line in CASES.read_text().splitlines()]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            for key in ("input_schema", "schema"):
                if isinstance(node.get(key), dict):
                    found[f"case {len(found)}"] = node[key]
            waiting += node.values()
        elif isinstance(node, list):
            waiting += node
    return found


def samples(schema: dict[str, Any], count: int, grammars: Grammars = GRAMMARS) -> list[Any]:
    """Documents that a random model says under it, those that came to an end."""
    constraint = grammars.constraint(Wanted(answer_schema=schema))
    assert constraint is not None
    ended = []
    for seed in range(count):
        speaker = Speaker(constraint, seed)
        speaker.speak(200)
        assert speaker.free == 0 and speaker.masks > 0
        if speaker.ended:
            ended.append(json.loads(speaker.said))
    return ended


def check(schema: dict[str, Any], document: Any) -> None:
    found = enforceable(schema)
    held = found.schema if found.relaxations else schema
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    kind(held).validate(document)


def test_there_are_a_hundred() -> None:
    assert len(SCHEMAS) >= 100
    whole = [name for name, schema in SCHEMAS.items() if not enforceable(schema).relaxations]
    assert len(whole) >= 80, "most of what tools have is enforced whole"


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_is_said_under_a_schema_validates(name: str) -> None:
    documents = samples(SCHEMAS[name], 4)
    assert documents, name
    for document in documents:
        check(SCHEMAS[name], document)


def test_what_is_said_under_schemas_of_cases_validates() -> None:
    for schema in of_cases().values():
        for document in samples(schema, 2):
            check(schema, document)


@pytest.mark.parametrize("name", PATHOLOGICAL)
def test_a_pathological_schema_costs_little_and_is_held_to_its_outline(name: str) -> None:
    schema, fresh = PATHOLOGICAL[name], Grammars(TOKENIZER, ToolFormat(), None)
    assert fresh.vocabulary.count == len(TOKENIZER)
    begin = time.thread_time()
    constraint = fresh.constraint(Wanted(answer_schema=schema))
    seconds = time.thread_time() - begin
    assert constraint is not None
    matcher, words = Matcher(constraint), constraint.vocabulary.words([])
    begin = time.thread_time()
    matcher.fill(words)
    assert words.any() and not matcher.broken
    assert time.thread_time() - begin < SECONDS_MAX
    assert seconds < 4 * SECONDS_MAX, "a tenth of a second, and a slow machine"
    for document in samples(schema, 1, fresh):
        check(schema, document)


STRICT = {
    "least int64": "properties.v.const",
    "enum of 20,000": "properties.v.enum",
    "wide": "size",
    "itself": "$ref",
    "itself, required": "properties.a.$ref",
    "long regex": "properties.v.pattern",
}


@pytest.mark.parametrize(("name", "place"), STRICT.items(), ids=str)
def test_a_strict_schema_is_refused_with_the_path(name: str, place: str) -> None:
    schema = PATHOLOGICAL[name]
    for wanted in (
        Wanted(answer_schema=schema, answer_strict=True),
        Wanted(tools=(Tool("t", "d", {"type": "object", **schema}, strict=True),)),
    ):
        with pytest.raises(StrictSchemaError) as caught:
            GRAMMARS.constraint(wanted)
        assert caught.value.relaxation.place == place


MALFORMED: dict[str, dict[str, Any]] = {
    "type": {"type": 5},
    "properties": {"properties": 5},
    "properties.a": {"properties": {"a": 5}},
    "properties.a.type": {"properties": {"a": {"type": "file"}}},
    "anyOf": {"anyOf": {}},
    "anyOf.1.enum": {"anyOf": [{}, {"enum": "x"}]},
    "items.minimum": {"items": {"minimum": "3"}},
    "items.maxLength": {"items": {"maxLength": -1}},
    "not.pattern": {"not": {"pattern": 5}},
    "$defs.a.$ref": {"$defs": {"a": {"$ref": 7}}},
    "required": {"required": "a"},
    "if": {"if": []},
}


@pytest.mark.parametrize("place", MALFORMED)
def test_a_format_that_is_no_schema_is_told_by_its_path(place: str) -> None:
    with pytest.raises(MalformedSchemaError) as caught:
        GRAMMARS.constraint(Wanted(answer_schema=MALFORMED[place]))
    assert caught.value.place == place and caught.value.reason


def test_every_good_schema_is_one() -> None:
    for schema in (*SCHEMAS.values(), *PATHOLOGICAL.values(), {}, {"items": True}):
        check_schema(schema)
    with pytest.raises(MalformedSchemaError):
        check_schema(5)
