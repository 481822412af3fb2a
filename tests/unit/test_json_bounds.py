"""What is checked of a body before it is decoded, against a decoder as the slow twin."""

import json
import re
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublimate.edge import json_bounds, limits
from sublimate.edge.errors import ApiError
from sublimate.edge.json_bounds import checked_json, decodable, syntax_cause

Scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=20)
Values = st.recursive(
    Scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=40,
)


def depth_of(value: Any) -> int:
    """Slow twin: nesting of a decoded value, by levels."""
    level, depth = [value], -1
    while level:
        depth += 1
        inner: list[Any] = []
        for part in level:
            if isinstance(part, dict):
                inner += part.values() or [None]
            elif isinstance(part, list):
                inner += part or [None]
        level = inner
    return depth


def refusal(body: bytes) -> str:
    try:
        checked_json(body)
    except ApiError as error:
        return error.code
    return ""


@given(Values, st.integers(min_value=0, max_value=80))
def test_depth_agrees_with_the_decoder(value: Any, extra: int) -> None:
    for _ in range(extra):
        value = [value]
    body = msgspec.json.encode(value)
    expected = "json_too_deep" if depth_of(value) > limits.JSON_DEPTH_MAX else ""
    assert refusal(body) == expected


@given(st.text(alphabet='[]{}":,\\ax\n', max_size=200))
def test_brackets_inside_strings_do_not_count(text: str) -> None:
    body = msgspec.json.encode({"a": text * 50, text: [text]})
    assert refusal(body) == ""


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"[" * 64 + b"]" * 64, ""),
        (b"[" * 65 + b"]" * 65, "json_too_deep"),
        (b'"' + b"[" * 1000 + b'"', ""),
        (b'"\\"' + b"[" * 1000, ""),
        (b'"\\\\"' + b"[" * 1000, "json_too_deep"),
        (b'["' + b"[" * 1000, ""),
        (b"]" * 1000, ""),
        (b"\xff", "invalid_utf8"),
        (b"\xed\xa0\x80", "invalid_utf8"),
        (b"\xc0\x80", "invalid_utf8"),
        (b'"\xe4\xb8"', "invalid_utf8"),
        (b"", ""),
        (b"{" + b'"k":1,' * 10_000 + b"}", ""),
        (b"{" + b'"k":1,' * 10_001 + b"}", "json_too_many"),
        (b"[" + b'{"k":1,"l":2},' * 9_000 + b"1]", ""),
        (b"[]" * 200_001, "json_too_many"),
        (b":" * 200_001, "json_too_many"),
        (b"[" + b'"",' * 500_001 + b"1]", "json_too_many"),
        (b"[" + b"1.5," * 500_000 + b"1]", ""),
        (b"[" + b"1.5," * 500_001 + b"1]", "json_too_many"),
        (b'{"enum":["' + b"," * 500_001 + b'"]}', ""),
        (b'["' + b'\\"' * 2_000_000 + b'"]', ""),
    ],
)
def test_limits(body: bytes, code: str) -> None:
    assert refusal(body) == code


@pytest.mark.parametrize(
    "make",
    [
        lambda n: b'"' + b'\\"' * n,
        lambda n: b'"' * n,
        lambda n: b'{"a":"' + b"x" * n + b'"}',
        lambda n: b"[" * n,
        lambda n: b"\\" * n,
        lambda n: b'"\\' * n,
        lambda n: b'{"a":' * n,
    ],
)
def test_time_is_linear(make: Any) -> None:
    def seconds(count: int) -> float:
        body = make(count)
        times = []
        for _ in range(3):
            begun = time.process_time()
            refusal(body)
            times.append(time.process_time() - begun)
        return min(times)

    # Four times the input: a quadratic reader would need sixteen times as long. The least of some
    # processor times, so that a busy machine does not decide.
    assert seconds(4_000_000) < 8 * seconds(1_000_000) + 0.05


PIECES = (
    *("a", "é", "😀", "\\\\", '\\"', "\\n", "\\u0041", "ud83d"),
    *("\\ud83d", "\\uD83D", "\\udbff", "\\ude00", "\\uDE00", "\\uDfff", "\\ud83d\\ude00"),
)


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_f20_lone_surrogates_become_replacement_characters(text: str) -> None:
    body = f'["{text}"]'.encode()
    plain = re.sub("[\ud800-\udfff]", "\ufffd", json.loads(body)[0])
    assert msgspec.json.decode(decodable(body)) == [plain]
    assert len(decodable(body)) == len(body)


def test_f20_many_lone_surrogates_are_left_to_the_decoder() -> None:
    most = b'["' + b"\\ud83d" * limits.JSON_SURROGATES_MAX + b'"]'
    assert b"\\ud83d" not in decodable(most)
    more = most.replace(b'["', b'["\\uD83D')
    assert decodable(more) == more
    with pytest.raises(msgspec.DecodeError, match="surrogate"):
        msgspec.json.decode(more)


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        (b"", "it is empty"),
        (b" \n", "it is empty"),
        (b"\xef\xbb\xbf", "it is empty"),
        (b'{"a": "b', "it ends too early, at byte 8"),
        (b'\xef\xbb\xbf{"a": 1,}', "trailing comma in object, at byte 11"),
        (b"[1,]", "trailing comma in array, at byte 3"),
        (b'{"a": NaN}', "NaN and Infinity are not JSON, at byte 6"),
        (b'{"a": 1} x', "trailing characters, at byte 9"),
        (b"{'a': 1}", "object keys must be strings, at byte 1"),
        (b'{"a": "\\x"}', "invalid escape character in string, at byte 8"),
        (b'{"a": "\n"}', "invalid character, at byte 7"),
        (b"model=a&b=c", "invalid character, at byte 0"),
    ],
)
def test_f20_a_syntax_error_names_cause_and_position(body: bytes, cause: str) -> None:
    body = decodable(body)
    with pytest.raises(msgspec.DecodeError) as caught:
        msgspec.json.decode(body)
    assert syntax_cause(caught.value, body) == cause


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 1 << 20])
def test_utf8_is_checked_in_pieces(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """As the whole at once would be, with the same position."""
    monkeypatch.setattr(json_bounds, "UTF8_PIECE_BYTES", piece)
    whole = '"aé日😀z"'.encode()
    assert checked_json(whole) == whole
    for at in range(len(whole)):
        for bad in (b"\x80", b"\xff", b"\xe6", b"\xf0\x9f", b""):
            body = whole[:at] + bad + whole[at + 1 :]
            try:
                body.decode()
            except UnicodeDecodeError as error:
                with pytest.raises(ApiError) as caught:
                    checked_json(body)
                assert caught.value.code == "invalid_utf8"
                assert f"at byte {error.start}." in caught.value.text
            else:
                assert checked_json(body) == body
