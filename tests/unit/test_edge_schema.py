"""Decoding, what is offered, sampling ranges: errors carry paths and nothing else."""

import math
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublimate.api.messages.schema import (
    NOT_OFFERED,
    MessagesRequest,
    check_offered,
    decode_request,
)
from sublimate.edge.errors import ApiError
from sublimate.edge.sampling import FLOAT_STEP, Sampling, check_sampling

BASE = {"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 5}
PATH = re.compile(r"^[a-z_]+(\.[a-z0-9_]+)*: [a-z0-9_ ,.+\-`']+$", re.IGNORECASE)


def request(**fields: Any) -> MessagesRequest:
    return decode_request(msgspec.json.encode({**BASE, **fields}))


def sampling(**fields: Any) -> Sampling:
    return check_sampling(request(**fields), vocabulary=100, stop_ids_max=4, bias_max=3)


def message(**fields: Any) -> str:
    with pytest.raises(ApiError) as caught:
        made = request(**fields)
        check_offered(made)
        check_sampling(made, vocabulary=100, stop_ids_max=4, bias_max=3)
    assert caught.value.kind.status == 400
    return caught.value.text


Anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(st.sampled_from(MessagesRequest.__struct_fields__), Anything)
def test_any_value_of_any_field_is_taken_or_named(name: str, value: Any) -> None:
    try:
        made = request(**{name: value})
        check_offered(made)
        check_sampling(made, vocabulary=100, stop_ids_max=4, bias_max=3)
    except ApiError as error:
        assert error.kind.status == 400
        assert PATH.match(error.text), error.text
        assert error.text.startswith((name, "tool_choice"))


def test_defaults() -> None:
    made = sampling()
    assert made.temperature == 1.0 and made.top_p == 1.0 and made.top_k == 0
    assert made.min_p == 0 and made.repetition_penalty == 1 and made.seed is None
    assert made.stop_sequences == () and made.logit_bias == () and not made.ignore_eos


def test_values_are_kept() -> None:
    made = sampling(
        temperature=0,
        top_p=0.5,
        top_k=7,
        min_p=0.2,
        repetition_penalty=1.5,
        presence_penalty=-2,
        frequency_penalty=2,
        seed=-1,
        ignore_eos=True,
        stop_sequences=["a", "b", "a"],
        stop_token_ids=[3, 3, 4],
        logit_bias={"7": -1.5},
        max_tokens=10**30,
    )
    assert (made.temperature, made.top_p, made.top_k, made.min_p) == (0, 0.5, 7, 0.2)
    assert made.stop_sequences == ("a", "b") and made.stop_token_ids == (3, 4)
    assert made.logit_bias == ((7, -1.5),) and made.seed == -1 and made.ignore_eos
    assert made.max_tokens == (1 << 31) - 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none_fail_every_range(value: float) -> None:
    for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty"):
        made = request()
        setattr(made, name, value)
        with pytest.raises(ApiError, match="field"):
            check_sampling(made, vocabulary=100, stop_ids_max=4, bias_max=3)
    made = request(logit_bias={"1": 1.0})
    made.logit_bias = {"1": value}
    with pytest.raises(ApiError):
        check_sampling(made, vocabulary=100, stop_ids_max=4, bias_max=3)


def test_open_bounds_survive_rounding_to_float32() -> None:
    assert sampling(top_p=1e-300).top_p == FLOAT_STEP
    assert sampling(repetition_penalty=1e-300).repetition_penalty == FLOAT_STEP
    assert sampling(min_p=0.9999999999).min_p == 1 - FLOAT_STEP


def test_top_k_beyond_the_vocabulary_is_the_vocabulary() -> None:
    assert sampling(top_k=1000).top_k == 100


@pytest.mark.parametrize("name", NOT_OFFERED)
def test_what_is_not_offered_is_named(name: str) -> None:
    assert message(**{name: {"x": 1}}).startswith(f"{name}: ")
    check_offered(request(**{name: None}))


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"messages": [{"role": 1, "content": "x"}]}, "messages.0.role: expected a string"),
        ({"messages": [{"role": "user", "content": [1]}]}, "messages.0.content.0: expected an obj"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages.0.content.0.type"),
        ({"messages": {}}, "messages: expected an array"),
        ({"stop_sequences": "x"}, "stop_sequences: expected an array or null"),
        ({"system": [{"type": 1}]}, "system.0.type: expected a string"),
        ({"logit_bias": {"1": "x"}}, "logit_bias: expected a number"),
        ({"tool_choice": "auto"}, "tool_choice: expected an object or null"),
        ({"thinking": {}}, "thinking.type: field required"),
        ({"thinking": {"type": "on"}}, "thinking.type: expected enabled, adaptive, disabled or"),
        ({"tool_choice": {"type": "x"}}, "tool_choice.type: expected auto, any, tool or none"),
        ({"tools": [{"name": 1}]}, "tools.0.name: expected a string"),
        ({"output_config": {"effort": "x"}}, "output_config.effort: expected low, medium, high"),
        ({"output_config": {"format": {"type": "x"}}}, "output_config.format.type: expected json_"),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema: field required"),
        (
            {"context_management": {"edits": [{"type": "compact_20260112"}]}},
            "context_management.edits.0.type: this server cannot compact conversations",
        ),
        ({"context_management": {"edits": [{}]}}, "context_management.edits.0.type: field req"),
    ],
)
def test_paths(body: dict[str, Any], text: str) -> None:
    shown = message(**body)
    assert shown.startswith(text), shown


def test_a_body_that_is_no_json() -> None:
    for body in (b"", b"{", b"nul", b'{"model": "\\ud800"}', b"[" * 10_000):
        with pytest.raises(ApiError) as caught:
            decode_request(body)
        assert caught.value.code in ("invalid_json", "field")


def test_other_fields_do_not_matter() -> None:
    made = request(unknown=[1, {"a": None}], betas=["x"], metadata={"user_id": 5})
    assert made.model == "m" and not hasattr(made, "unknown")
