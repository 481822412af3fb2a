"""What is checked of a body before it is decoded, against a decoder as the slow twin."""

import json
import re
import sys
import threading
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sublimate import _core
from sublimate.edge import limits
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


def test_f20_all_lone_surrogates_are_replaced_however_many() -> None:
    body = b'["' + b"\\ud83d" * 1_000_000 + b'"]'
    assert msgspec.json.decode(decodable(body)) == ["\ufffd" * 1_000_000]


@given(st.lists(st.sampled_from(PIECES) | st.sampled_from(list('[]{}:,"\\')), max_size=30))
def test_counts_agree_with_a_slow_twin(pieces: list[str]) -> None:
    body = "".join(pieces).encode()
    bare = b"".join(body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    open_keys, depth, most = list[int](), 0, 0
    for character in bare:
        if character in b"[{":
            open_keys.append(0)
            depth = max(depth, len(open_keys))
        elif character in b"]}" and open_keys:
            open_keys.pop()
        elif character in b":" and open_keys:
            open_keys[-1] += 1
            most = max(most, open_keys[-1])
    counts = _core.json_counts(body)
    assert counts.containers == bare.count(b"[") + bare.count(b"{")
    assert (counts.keys, counts.commas) == (bare.count(b":"), bare.count(b","))
    assert (counts.depth, counts.object_keys) == (depth, most)


@given(st.binary(max_size=40) | st.text(max_size=20).map(str.encode), st.integers(0, 40))
def test_ill_formed_utf8_is_found_where_python_finds_it(data: bytes, cut: int) -> None:
    for given_bytes in (data, data[:cut], data * 3):
        try:
            given_bytes.decode()
            expected = -1
        except UnicodeDecodeError as error:
            expected = error.start
        assert _core.ill_formed_utf8(given_bytes) == expected


@pytest.mark.parametrize("check", ["json_counts", "ill_formed_utf8", "whole_characters"])
def test_others_run_while_a_long_body_is_checked(check: str) -> None:
    """No thread has to give the lock up: the other one runs only if the call does."""
    body = b'["\\ud83d' + b"x" * (32 << 20) + b'"]'
    ticks, is_over = 0, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not is_over.is_set():
            ticks += 1
            time.sleep(0)

    ticker, interval = threading.Thread(target=tick), sys.getswitchinterval()
    ticker.start()
    sys.setswitchinterval(1000)
    try:
        for _ in range(100):
            before = ticks
            getattr(_core, check)(body)
            if ticks > before:
                break
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        ticker.join()
    assert ticks > before


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


def test_the_error_of_ill_formed_utf8_says_where_it_is() -> None:
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
