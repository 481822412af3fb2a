"""One form for every way to say the same."""

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublimate.api.messages.normalise import BILLING_PREFIX, UNSERVED, normalise
from sublimate.api.messages.schema import decode_request
from sublimate.edge.errors import ApiError
from sublimate.model.turns import Turn, said

Text = st.text(min_size=1, max_size=10)


def turns(*messages: Any, **fields: Any) -> list[Turn]:
    body = {"model": "m", "messages": list(messages), **fields}
    return normalise(decode_request(msgspec.json.encode(body)), messages_max=10_000)


def refusal(*messages: Any, **fields: Any) -> str:
    with pytest.raises(ApiError) as caught:
        turns(*messages, **fields)
    return caught.value.text


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def block(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


@given(Text)
def test_string_block_and_cached_block_are_equal(text: str) -> None:
    expected = [said("system", text), said("user", text)]
    for content in (text, [block(text)], [block(text, cache_control={"type": "ephemeral"})]):
        assert turns(user(content), system=content) == expected


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), Text), min_size=1))
def test_neighbours_have_different_roles_and_nothing_is_lost(pairs: list[Any]) -> None:
    made = turns(*({"role": role, "content": text} for role, text in pairs))
    assert all(a.role != b.role for a, b in itertools.pairwise(made))
    joined = "".join(turn.text for turn in made)
    assert sum(len(text) for _, text in pairs) <= len(joined)
    place = 0
    for _, text in pairs:
        place = joined.index(text, place) + len(text)


def test_blocks_and_neighbours_are_joined() -> None:
    assert turns(user([block("a"), block(""), block("b")])) == [said("user", "a\nb")]
    assert turns(user("a"), user("b")) == [said("user", "a\n\nb")]


def test_the_billing_block_is_dropped_only_in_front() -> None:
    line = block(BILLING_PREFIX + " cc_version=1; x=2")
    assert turns(user("u"), system=[line, block("S")]) == turns(user("u"), system="S")
    assert turns(user("u"), system=[line]) == [said("user", "u")]
    assert turns(user("u"), system=[block("S"), line])[0].text.endswith("x=2")
    assert turns(user("u"), system=BILLING_PREFIX)[0].role == "system"


def test_system_turns_stay_where_they_are() -> None:
    made = turns(user("a"), {"role": "system", "content": "s"}, assistant("b"), system="S")
    assert [turn.role for turn in made] == ["system", "user", "system", "assistant"]
    first = turns({"role": "system", "content": "s"}, user("a"), system="S")
    assert first[0] == said("system", "S\n\ns")


def test_thinking_of_earlier_turns_is_no_part_of_the_prompt() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "x"}
    redacted = {"type": "redacted_thinking", "data": "x"}
    made = turns(user("a"), assistant([thinking, redacted, block("b")]), user("c"))
    assert made == turns(user("a"), assistant("b"), user("c"))
    assert refusal(user([thinking])).startswith("messages.0.content.0: thinking belongs")


def test_empty_turns() -> None:
    assert turns(user("a"), assistant("")) == [said("user", "a")]
    assert turns(user("a"), assistant([])) == [said("user", "a")]
    assert refusal(user("")) == "messages.0.content: must not be empty"
    assert refusal(user("a"), assistant(""), user("b")).startswith("messages.1.content: ")
    assert refusal(assistant("")).startswith("messages: ")
    assert refusal().startswith("messages: at least one")


@pytest.mark.parametrize("kind", UNSERVED)
def test_blocks_that_are_not_served_are_named(kind: str) -> None:
    shown = refusal(user("a"), user([block("b"), {"type": kind}]))
    assert shown == f"messages.1.content.1: {UNSERVED[kind]}"


def test_paths_of_system_blocks_count_from_the_request() -> None:
    line = block(BILLING_PREFIX)
    shown = refusal(user("a"), system=[line, block("S"), {"type": "image"}])
    assert shown.startswith("system.2: ")
    assert refusal(user([{"type": "new_thing"}])) == (
        "messages.0.content.0.type: unknown block type"
    )


def test_the_number_of_messages_is_bounded() -> None:
    request = decode_request(msgspec.json.encode({"model": "m", "messages": [user("a")] * 6}))
    assert len(normalise(request, messages_max=6)) == 1
    with pytest.raises(ApiError, match="field"):
        normalise(request, messages_max=5)
