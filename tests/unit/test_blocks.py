"""Answers taken apart into text, thinking and calls, against the slow twin, in every mode."""

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import block_reference as twin
import ring_reference as ring
import text_reference
from block_reference import Block, Format, check_pieces, split
from grammar import check_stream
from sublimate import _core
from sublimate.model.thinking import is_own_signature, sign_thinking
from sublimate.model.tool_formats import FORMATS, LENIENT_MARKERS, ToolCall, ToolFormat
from test_text import Stream, run

TOOLS = ("get", "put-file")
TOKEN_BYTES_MAX = _core.LIMITS["TOKEN_BYTES_MAX"]


def of_family(family: ToolFormat, *, eager: bool = False, thinks: bool = True) -> Format:
    return Format(
        tool_names=TOOLS, openings=family.openings, closing=family.closing,
        name_end=family.name_end, id_opening=family.id_opening, name_key=family.name_key,
        arguments_key=family.arguments_key, bare=family.bare, eager=eager,
        thinking_opening="<think>" if thinks else "", thinking_closing="</think>" if thinks else "",
    )  # fmt: skip


HERMES = of_family(FORMATS["hermes"])


def lenient(form: Format, *, several: bool = True) -> Format:
    return replace(form, lenient=True, several=several, lenient_markers=LENIENT_MARKERS,
                   string_parameters=[("get", "s")])  # fmt: skip


LENIENT = lenient(replace(HERMES, eager=True))

# ---- strategies ---------------------------------------------------------------------------------

JSON_PIECES = st.sampled_from(
    [
        *('{"name": "get", "arguments": {', '{"name": "put-file", "parameters": {"a": '),
        *('"a": ', '"b": "x', '"', "{", "}", "[", "]", ", ", ": ", ",", "}}", "1", "-0.5e+3", "01"),
        *(
            "true",
            "nul",
            '"\\',
            "\\u00e9",
            "\\ud83d",
            "\\ude38",
            "\\n",
            "\n",
            "é",
            "😸",
            '{"a": 1}',
        ),
        *('"name": "get"', '"name": "none"', '"arguments": {}', '"type": "function"', '"id": "1"'),
    ]
)
VALUES = st.recursive(
    st.sampled_from([None, True, 0, -1.5, 1e30, "", 'é\n"\\', "😸", "<tool_call>", "</think> "]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.text("ab"), inner, max_size=2)
    ),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(st.text("abé", max_size=2), VALUES, max_size=3)


@st.composite
def calls_of(draw: st.DrawFn, family: ToolFormat) -> str:
    names = st.sampled_from([*TOOLS, *TOOLS, "unknown"])
    ascii_only = draw(st.booleans())
    calls = [
        ToolCall("1", draw(names), json.dumps(draw(ARGUMENTS), ensure_ascii=ascii_only))
        for _ in range(draw(st.integers(1, 3)))
    ]
    text = family.calls_text(calls)
    if family.shape == "object" and draw(st.booleans()):
        listed = ", ".join(family._object_head(c.name) + c.arguments + "}" for c in calls)
        text = f"{family.openings[0]} [{listed}]{family.closing}"
    if family.id_opening and draw(st.booleans()):
        text = text.replace(family.name_end, f"{family.id_opening}a1{family.name_end}")
    return text


@st.composite
def answers(draw: st.DrawFn) -> tuple[Format, str]:
    """Text of pieces that matter to a format, some of it spoilt, some of it cut."""
    family = draw(st.sampled_from(list(FORMATS.values())))
    form = of_family(family, eager=draw(st.booleans()))
    form = replace(form, begins_in=draw(st.sampled_from(["", "", "text", "thinking"])))
    words = st.sampled_from(
        ["a", "b c", " ", "\n", "\n\n", "Let me see.", "é", "<", "```", "{", "["]
    )
    thoughts = words.map("<think>\n{}\n</think>\n\n".format)
    markers = st.sampled_from([*family.markers, "<think>", "</think>"])
    halves = markers.flatmap(lambda m: st.integers(1, len(m)).map(lambda n: m[:n]))
    calls = calls_of(family)
    pieces = st.one_of(words, thoughts, markers, halves, JSON_PIECES, calls, calls, calls)
    text = "".join(draw(st.lists(pieces, max_size=6)))
    change = draw(st.sampled_from(["none", "none", "spoil", "cut", "both"]))
    if text and change in ("spoil", "both"):
        at = draw(st.integers(0, len(text) - 1))
        text = text[:at] + draw(st.sampled_from(["", "x", '"', " ", "}"])) + text[at + 1 :]
    return form, text[: draw(st.integers(0, len(text)))] if change in ("cut", "both") else text


WEIRD = st.text("ab<{[", min_size=1, max_size=3)


@st.composite
def weird_answers(draw: st.DrawFn) -> tuple[Format, str]:
    """Markers that overlap each other, the JSON, and themselves."""
    named = draw(st.booleans())
    form = Format(
        tool_names=["a"], openings=draw(st.lists(WEIRD, min_size=1, max_size=3)),
        closing=draw(st.one_of(st.just(""), WEIRD)),
        name_end=draw(st.text("<{[", min_size=1, max_size=2)) if named else "",
        id_opening=draw(st.text("<{[", max_size=2)) if named else "",
        bare=not named and draw(st.booleans()), eager=draw(st.booleans()),
        thinking_opening=draw(WEIRD), thinking_closing=draw(WEIRD),
        begins_in=draw(st.sampled_from(["", "text", "thinking"])),
    )  # fmt: skip
    pieces = st.sampled_from(
        [*"ab<{[}]", " ", "{}", '{"name": "a", "arguments": {}}', form.name_end + "{}",
         form.closing, *form.openings, form.thinking_opening, form.thinking_closing]
    )  # fmt: skip
    return form, "".join(draw(st.lists(pieces, max_size=12)))


@st.composite
def streams(
    draw: st.DrawFn, source: st.SearchStrategy[tuple[Format, str]]
) -> tuple[Format, list[bytes], list[int]]:
    """An answer as tokens that are cut anywhere, and the places of polls."""
    form, text = draw(source)
    data = text.encode()
    cuts = draw(st.lists(st.integers(0, len(data)), max_size=12))
    cuts = sorted([*cuts, *range(TOKEN_BYTES_MAX, len(data), TOKEN_BYTES_MAX)])
    tokens = [data[a:b] for a, b in itertools.pairwise([0, *cuts, len(data)])]
    return form, tokens, sorted(draw(st.lists(st.integers(0, len(tokens)), max_size=6)))


OBJECT = '{"name": "get", "arguments": {"a": "\u00e9", "b": [1, 2]}}'
SPELLINGS = [
    OBJECT,
    OBJECT.replace("arguments", "parameters").replace('"', "'"),
    json.dumps({"name": "get", "arguments": {"a": "\u00e9", "b": [1, 2]}}, indent=2),
    '{"id": "1", "type": "function", "arguments": {"a": "\\u00e9", "b": [1, 2]}, "name": "get"}',
    '{"type": "function", "function": {"name": "get", "parameters": {"a": "\u00e9", "b": [1,2]}}}',
    '{"type": "function", "function": "get", "parameters": {"a": "\u00e9", "b": [1, 2]}}',
    f"[{OBJECT}]",
    *(f"```{lang}\n{OBJECT}\n```" for lang in ("json", "", "tool_call", "tool_code", "python")),
    f"```json\n{OBJECT}",
    "get(a='\u00e9', b=[1, 2])",
    '[get(a="\u00e9", b=[1, 2])]',
    "```python\nget( a = '\u00e9', b = [1,2] )\n```",
    f"<|python_tag|>{OBJECT}",
    f"<tools>\n{OBJECT}\n</tools>",
    f"<function_call> {OBJECT} </function_call>",
    f"[TOOL_CALLS][{OBJECT}]",
    '[TOOL_CALLS]get[ARGS]{"a": "\u00e9", "b": [1, 2]}',
    '[TOOL_CALLS]get[CALL_ID]a1b2[ARGS] {"a": "\u00e9", "b": [1, 2]}',
    f"<|tool_call|>[{OBJECT}]<|/tool_call|>",
    "<|tool_call_start|>[get(a='\u00e9', b=[1, 2])]<|tool_call_end|>",
    '<|tool_call>call:get{a:<|"|>\u00e9<|"|>,b:[1,2]}<tool_call|>',
    "<start_function_call>call:get{a:<escape>\u00e9<escape>,b:[1,2]}<end_function_call>",
    "<|tool_calls_begin|><|tool_call_begin|>get<|tool_sep|>"
    '{"a": "\u00e9", "b": [1, 2]}<|tool_call_end|><|tool_calls_end|>'.replace(
        "|", "\uff5c"
    ).replace("_", "\u2581"),
    '<function=get>{"a": "\u00e9", "b": [1, 2]}</function>',
    "<function=get>\n<parameter=a>\n\u00e9\n</parameter>\n"
    "<parameter=b>[1, 2]</parameter></function>",
    '<function name="get"><param name="a">\u00e9</param><param name="b">[1, 2]</param></function>',
    '<invoke name="get"><parameter name="a">\u00e9</parameter>\n'
    '<parameter name="b">[1, 2]</parameter></invoke>',
]
"""Of one call of `get`, in what models write instead of their family's form."""
ALIKE = [
    OBJECT.replace("get", "grab"),
    OBJECT.replace("get", "gets"),
    f"{OBJECT} is how.",
    f"{OBJECT}, {OBJECT},",
    f"`{OBJECT}`",
    f"f({OBJECT})",
    f"```json\n{OBJECT}\n```\nis how.",
    f"```sh\n{OBJECT}\n```",
    f"```sh\n{OBJECT}",
    f"```json\n{OBJECT}\n{{}}\n```",
    OBJECT.replace("}}", '}, "result": 1}'),
    OBJECT.replace('"get"', '"get", "name": "get"'),
    '{"name": "get"}',
    '{"name": "get", "arguments": [1]}',
    '{"name": "get", "arguments": "{}"}',
    '{"name": 1, "arguments": {}}',
    '{"result": ' + OBJECT + "}",
    OBJECT[:-1],
    OBJECT.replace("[1, 2]", "[1, 02]"),
    OBJECT.replace("\u00e9", "\n"),
    OBJECT.replace("\u00e9", "\\ud83d"),
    "[]",
    f'[{OBJECT}, {{"name": "x"}}]',
    "[1, 2]",
    "get('x')",
    "get(a=b)",
    "get(a=1",
    "Call get(a=1)",
    "get",
    "getting on",
    "<function=grab></function>",
    "<function=get><parameter=a>1</function>",
    "<tools></tools>",
    "<function",
    "[TOOL_CALLS]get{}",
    "call:get{a:1}",
]
"""What is no call of an offered tool, or does not end there."""
LENIENT_PIECES = st.sampled_from(
    [*SPELLINGS, *ALIKE, "get(", "put-file(", "a=", "'", "```", "```json\n", "[", "{", '"name"',
     "\n", "\n\n", " ", "So:", ")", "]", "}", "</function>", "<function=get>", "<parameter=s>",
     "</parameter>", '<|"|>', "call:get{", "\\", '\\"', "\\'", "\\u00e9", "\\ud83d", "\\ude00",
     *(marker for pair in LENIENT_MARKERS for marker in pair if marker)]
)  # fmt: skip


@st.composite
def lenient_answers(draw: st.DrawFn) -> tuple[Format, str]:
    """Calls in any spelling, text like them, and what is left of both when a byte changes."""
    family = draw(st.sampled_from(list(FORMATS.values())))
    form = lenient(of_family(family, eager=draw(st.booleans())), several=draw(st.booleans()))
    form = replace(form, begins_in=draw(st.sampled_from(["", "", "text", "thinking"])))
    pieces = st.one_of(LENIENT_PIECES, LENIENT_PIECES, calls_of(family), st.just("</think>"))
    text = "".join(draw(st.lists(pieces, max_size=5)))
    if text and draw(st.booleans()):
        at = draw(st.integers(0, len(text) - 1))
        text = text[:at] + draw(st.sampled_from(["", "x", '"', " ", "}", "\n"])) + text[at + 1 :]
    return form, text[: draw(st.integers(0, len(text)))] if draw(st.booleans()) else text


BOTH = st.one_of(answers(), answers(), weird_answers(), lenient_answers(), lenient_answers())


def folded(form: Format, tokens: list[bytes], polls: list[int], mode: str, end: int) -> twin.Folded:
    stream = Stream(tokens, form=mode, blocks=form.native())
    run(stream, len(tokens), polls, end)
    return check_pieces(stream.pieces)


# ---- against the twin ---------------------------------------------------------------------------


@settings(max_examples=400)
@given(streams(BOTH))
def test_any_cutting_gives_the_blocks_of_the_twin(
    case: tuple[Format, list[bytes], list[int]],
) -> None:
    form, tokens, polls = case
    wanted = split(b"".join(tokens).decode(), form, cut=True)
    for mode in ("blocks", "text"):
        assert folded(form, tokens, polls, mode, ring.BUDGET).blocks == wanted
    for block in wanted:
        assert block.text and block.ended
        if block.kind == "tool_use":
            assert isinstance(json.loads(block.text), dict) and block.name in form.tool_names


def sse_blocks(content: list[dict[str, object]]) -> list[tuple[object, ...]]:
    keys = {"text": ("text",), "thinking": ("thinking",), "tool_use": ("name", "input")}
    return [tuple(block[key] for key in ("type", *keys[str(block["type"])])) for block in content]


def twin_blocks(blocks: list[Block]) -> list[tuple[object, ...]]:
    return [
        (b.kind, b.name, json.loads(b.text)) if b.kind == "tool_use" else (b.kind, b.text)
        for b in blocks
    ]


@given(streams(BOTH), st.sampled_from([ring.BUDGET, ring.STOP_TOKEN]))
def test_frames_fold_to_the_same_message(
    case: tuple[Format, list[bytes], list[int]], end: int
) -> None:
    form, tokens, polls = case
    stream = Stream(tokens, blocks=form.native())
    event = run(stream, len(tokens), polls, end)
    message = check_stream(stream.data.replace(b'"id":"m\\"1"', b'"id":"msg_1"')).message
    wanted = split(b"".join(tokens).decode(), form, cut=end == ring.BUDGET)
    assert sse_blocks(message["content"]) == twin_blocks(wanted)
    calls = [block for block in message["content"] if block["type"] == "tool_use"]
    assert [call["id"] for call in calls] == [f"toolu_m1{i:02}" for i in range(len(calls))]
    assert message["stop_reason"] == event.stop_reason
    ended = "tool_use" if calls else "end_turn"
    assert event.stop_reason == ("max_tokens" if end == ring.BUDGET else ended)
    details = message["usage"]["output_tokens_details"]
    assert details == {"thinking_tokens": event.thinking_tokens}
    for block in message["content"]:
        if block["type"] == "thinking":
            assert is_own_signature(b"key", block["thinking"], block["signature"])


@given(streams(BOTH))
def test_every_poll_shows_all_that_may_be_shown(
    case: tuple[Format, list[bytes], list[int]],
) -> None:
    form, tokens, _ = case
    stream = Stream(tokens, form="blocks", blocks=form.native())
    for count in range(1, len(tokens) + 1):
        stream.push(stream.token(count - 1))
        stream.poll()
        data = b"".join(tokens[:count])
        wanted = split(text_reference.decode_so_far(data), form, ended=False)
        assert check_pieces(stream.pieces).blocks == wanted
    stream.close()


@given(streams(BOTH), st.lists(st.text("ab <\n", min_size=1, max_size=3), max_size=3))
def test_stop_strings_act_on_text_blocks_only(
    case: tuple[Format, list[bytes], list[int]], stops: list[str]
) -> None:
    form, tokens, polls = case
    wanted, stop, output_tokens = stopped(form, tokens, stops)
    stream = Stream(tokens, stops, form="blocks", blocks=form.native())
    event = run(stream, len(tokens), polls, ring.BUDGET)
    assert check_pieces(stream.pieces).blocks == wanted
    assert (event.stop_sequence, event.output_tokens) == (stop, output_tokens)
    assert event.stop_reason == ("max_tokens" if stop is None else "stop_sequence")


def stopped(
    form: Format, tokens: list[bytes], stops: list[str]
) -> tuple[list[Block], str | None, int]:
    """Blocks, stop string and billed tokens of an answer with stop strings."""
    encoded = [stop.encode() for stop in stops]
    for count in range(1, len(tokens) + 1):
        last = count == len(tokens)
        for ended in (False, True)[: 1 + last]:
            data = b"".join(tokens[:count])
            text = text_reference.decode(data) if ended else text_reference.decode_so_far(data)
            blocks = split(text, form, ended=ended, cut=ended)
            for i, block in enumerate(blocks):
                found = text_reference.find_stop(block.text.encode(), encoded)
                if block.kind != "text" or found is None:
                    continue
                index, end = found
                shown = block.text.encode()[: end - len(encoded[index])].decode()
                kept = [*blocks[:i], *([Block("text", shown, ended=True)] if shown else [])]
                return kept, stops[index], count
    return split(b"".join(tokens).decode(), form, cut=True), None, len(tokens)


# ---- one by one ---------------------------------------------------------------------------------


def blocks_of(text: str, form: Format = HERMES) -> list[tuple[str, ...]]:
    """In one token per byte, in all modes."""
    tokens = [bytes([byte]) for byte in text.encode()]
    one = folded(form, tokens, [], "blocks", ring.BUDGET).blocks
    assert one == folded(form, tokens, list(range(len(tokens))), "blocks", ring.BUDGET).blocks
    assert one == split(text, form, cut=True)
    return [(b.kind, b.name, b.text) if b.name else (b.kind, b.text) for b in one]


CALL = '<tool_call>\n{"name": "get", "arguments": {"a": "é", "b": [1, 2]}}\n</tool_call>'
ARGS = '{"a": "é", "b": [1, 2]}'


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", []),
        (" \n", []),
        ("hello \n", [("text", "hello \n")]),
        (" hello", [("text", " hello")]),
        (CALL, [("tool_use", "get", ARGS)]),
        (f"Let me.\n{CALL}\n\n{CALL}\n", [("text", "Let me."), *[("tool_use", "get", ARGS)] * 2]),
        (f"{CALL}\n done \n", [("tool_use", "get", ARGS), ("text", "done \n")]),
        (f"<think>\nhm\n</think>\n\n{CALL}", [("thinking", "hm"), ("tool_use", "get", ARGS)]),
        ("<think>\n\n</think>\n\nyes", [("text", "yes")]),
        ("<think>cut", [("thinking", "cut")]),
        ("so <think> is a tag", [("text", "so <think> is a tag")]),
        ("a < b", [("text", "a < b")]),
        ("<tool_call>\nno", [("text", "<tool_call>\nno")]),
        (CALL.replace("get", "grab"), [("text", CALL.replace("get", "grab"))]),
        (CALL.replace("[1, 2]", "[1, 02]"), [("text", CALL.replace("[1, 2]", "[1, 02]"))]),
        (f"<tool_call> {CALL}", [("text", "<tool_call>"), ("tool_use", "get", ARGS)]),
        (CALL.replace("}\n</tool_call>", ""), [("tool_use", "get", ARGS)]),
        (CALL.replace("</tool_call>", "</tool"), [("tool_use", "get", ARGS)]),
        (CALL.replace("\n</tool_call>", "and"), [("tool_use", "get", ARGS), ("text", "and")]),
    ],
)  # fmt: skip
def test_answers_of_a_hermes_model(text: str, wanted: list[tuple[str, ...]]) -> None:
    assert blocks_of(text) == wanted


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("eager", [False, True])
def test_every_family_reads_what_it_writes(name: str, eager: bool) -> None:
    family = FORMATS[name]
    calls = [ToolCall("1", "get", ARGS), ToolCall("2", "put-file", "{}")]
    text = family.calls_text(calls)
    wanted = [("tool_use", call.name, call.arguments) for call in calls]
    form = of_family(family, eager=eager)
    assert blocks_of(text, form) == wanted
    if not family.bare:
        before = "So:" + family.text_separator
        assert blocks_of(before + text, form) == [("text", "So:"), *wanted]


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_no_cut_shows_invalid_json(name: str, eager: bool) -> None:
    """At every byte of a call: valid JSON or no tool_use, and nothing lost where it is text."""
    family = FORMATS[name]
    arguments = '{"k": "é\\u00e9\\ud83d\\ude38\\\\", "n": [-1.5e3, {"t": true}], "s": {"z": null}}'
    call = ToolCall("1", "get", arguments)
    text = family.calls_text([call, ToolCall("2", "get", "{}")])
    whole = json.loads(arguments)
    for end in range(len(text) + 1):
        form = of_family(family, eager=eager)
        blocks = split(text[:end], form, cut=True)
        tokens = [text[:end].encode()]
        assert folded(form, tokens, [], "blocks", ring.BUDGET).blocks == blocks
        shown = [json.loads(b.text) for b in blocks if b.kind == "tool_use"]
        assert all(isinstance(value, dict) for value in shown)
        if shown and not eager:
            assert shown[0] == whole
        if shown and eager:
            assert set(shown[0]) <= set(whole)
            assert whole["k"].startswith(shown[0].get("k", ""))
            assert shown[0].get("n", []) in ([], [-1500.0], [-1500.0, {}], whole["n"])
        if not shown and text[:end].strip():
            is_call = text[0] == "{" or any(text[:end].startswith(o) for o in form.openings)
            is_piece = any(o.startswith(text[:end]) and o != text[:end] for o in form.openings)
            hides = is_piece or (eager and is_call)
            assert [b.text for b in blocks] == ([] if hides else [text[:end]])


PIECES = [
    *(("", text) for text in ("<", "<tool_", "<tool_call>\n{", "hm\n<tool_cal", "a <", "<thi")),
    *(("", text) for text in ("<think>x</thi", "<think><th", "<think>x</think>\n<tool_c")),
    *(("text", text) for text in ("<", "a\n<tool_", "<tool_call>\n{")),
    *(("thinking", text) for text in ("<", "x\n</", "<thi", "x</think>\n\n<tool_ca")),
]


@pytest.mark.parametrize(("begins_in", "text"), PIECES)
def test_f41_no_piece_of_a_marker_is_shown_where_an_answer_is_cut(
    begins_in: str, text: str
) -> None:
    form = replace(HERMES, eager=True, begins_in=begins_in)
    for tokens in ([text.encode()], [bytes([byte]) for byte in text.encode()]):
        for mode in ("blocks", "text"):
            blocks = folded(form, tokens, [1], mode, ring.BUDGET).blocks
            assert not any("<" in block.text for block in blocks), blocks
    ended = folded(form, [text.encode()], [1], "blocks", ring.STOP_TOKEN).blocks
    if text == "a <":
        assert [block.text for block in ended] == [text], "the model has said so"


@pytest.mark.parametrize("cut", ["\n", "\n\n", "\n\nuse", "\n\nuser"])
def test_f41_no_piece_of_an_end_of_turn_is_shown_where_an_answer_is_cut(cut: str) -> None:
    for blocks in (None, replace(HERMES, eager=True).native()):
        for mode in ("blocks", "text", "sse"):
            tokens = [b"yes", cut.encode()]
            stream = Stream(tokens, form=mode, blocks=blocks, turn_ends=("\n\nuser:",))
            event = run(stream, 2, [1], ring.BUDGET)
            shown = event.text or "".join(t for k, t, _ in stream.pieces if k == "text")
            shown = shown or stream.data.decode()
            assert "yes" in shown and "use" not in shown.partition("yes")[2].partition('"usage"')[0]
            assert "\\n" not in shown.partition("yes")[2] and not shown.endswith("\n\n\n")


def test_f42_a_repeated_opening_is_no_thinking() -> None:
    begun = replace(HERMES, begins_in="thinking")
    wanted = [("thinking", "dup"), ("text", "c")]
    for text in ("<think>dup</think>c", " \n<think>\ndup</think>c", "dup</think>c"):
        assert blocks_of(text, begun) == wanted
        assert blocks_of("<think>" + text, HERMES) == wanted
    assert blocks_of("a <think>b", begun) == [("thinking", "a <think>b")]


def test_a_call_that_the_model_was_not_held_to_breaks_off() -> None:
    """Eager is for constrained models; even so nothing invalid is shown, and nothing is lost."""
    form = replace(HERMES, eager=True)
    text = '<tool_call>{"name": "get", "arguments": {"a": 1, "b": oops}}'
    assert blocks_of(text, form) == [("tool_use", "get", '{"a": 1}'), ("text", ', "b": oops}}')]


@pytest.mark.parametrize("text", SPELLINGS)
@pytest.mark.parametrize(
    "before", ["", "Let me see.\n\n", "```sh\nls\n```\n", "<think>hm</think>\n"]
)
def test_f62_an_answer_that_ends_with_a_call_in_any_spelling_is_a_call(
    text: str, before: str
) -> None:
    *others, (_, name, arguments) = blocks_of(before + text + "\n", LENIENT)
    assert (name, json.loads(arguments)) == ("get", {"a": "\u00e9", "b": [1, 2]})
    kind = "thinking" if before.startswith("<") else "text"
    shown = before.strip().removeprefix("<think>").removesuffix("</think>")
    assert others == ([(kind, shown)] if before else [])


@pytest.mark.parametrize("text", ALIKE)
@pytest.mark.parametrize("before", ["", "Let me see.\n\n"])
def test_f62_text_that_looks_like_a_call_stays_text(text: str, before: str) -> None:
    assert blocks_of(before + text, LENIENT) == [("text", before + text)]


@pytest.mark.parametrize("text", [*SPELLINGS, f"{OBJECT}\nNo.", "```json\n{}\n```"])
def test_f62_no_cut_of_an_answer_changes_its_blocks(text: str) -> None:
    """In two tokens at every byte, and what either of them shows."""
    data = f"So:\n{text}".encode()
    wanted = split(data.decode(), LENIENT)
    for cut in range(len(data) + 1):
        tokens = [data[:cut], data[cut:]]
        stream = Stream(tokens, form="blocks", blocks=LENIENT.native())
        for count in (1, 2):
            stream.push(stream.token(count - 1))
            stream.poll()
            so_far = text_reference.decode_so_far(b"".join(tokens[:count]))
            assert check_pieces(stream.pieces).blocks == split(so_far, LENIENT, ended=False)
        stream.push(stream.end(ring.STOP_TOKEN))
        stream.poll()
        assert check_pieces(stream.pieces).blocks == wanted
        stream.close()


def test_f62_text_is_held_only_while_it_may_be_a_call() -> None:
    for text, shown in [
        ('{"name": "ge', ""), ('{"name": "gr', '{"name": "gr'), ('{"na', ""), ('{"no', '{"no'),
        ("ge", ""), ("gi", "gi"), ("a {", "a"), ("a{", "a{"), ("a get", "a get"),
        ("```json\n{", ""), ("```sh", "```sh"), (f"{OBJECT} ", ""), (f"{OBJECT}.", f"{OBJECT}."),
    ]:  # fmt: skip
        stream = Stream([text.encode()], form="blocks", blocks=LENIENT.native())
        stream.push(stream.token(0))
        stream.poll()
        assert "".join(piece[1] for piece in stream.pieces) == shown, text
        stream.close()


def test_f62_what_is_held_is_bounded() -> None:
    limit = _core.LIMITS["LENIENT_CALLS_BYTES_MAX"]
    call = OBJECT.replace("\u00e9", "\u00e9" * limit)
    tokens = [call[at : at + 499].encode() for at in range(0, len(call), 499)]
    stream = Stream(tokens, form="blocks", blocks=LENIENT.native())
    run(stream, len(tokens), list(range(len(tokens))), ring.BUDGET)
    assert check_pieces(stream.pieces).blocks == [Block("text", call, ended=True)]
    assert split(call, LENIENT) == [Block("text", call, ended=True)]


def test_f62_one_call_is_shown_where_several_are_not_wanted() -> None:
    text = f"{OBJECT}\n```json\n[{OBJECT}]\n```\nput-file(); {OBJECT}"
    calls = [name for _, name, _ in blocks_of(text, LENIENT)]
    assert calls == ["get", "get", "put-file", "get"]
    form = lenient(HERMES, several=False)
    assert [name for _, name, _ in blocks_of(text, form)] == ["get"]


def test_f62_values_without_quotes_have_the_types_of_the_schema() -> None:
    text = (
        "<function=get><parameter=s>2</parameter><parameter=n>2</parameter>"
        '<parameter=t>2 or "3"\n</parameter><parameter=o>{}, 1</parameter></function>'
    )
    wanted = '{"s": "2", "n": 2, "t": "2 or \\"3\\"", "o": "{}, 1"}'
    assert blocks_of(text, LENIENT) == [("tool_use", "get", wanted)]


def test_arguments_leave_as_they_come() -> None:
    pieces = [
        '<tool_call>\n{"name": "get", "arguments": {',
        '"a": "x',
        "y\\",
        "n",
        '", "n": 1',
        "2}}",
        "\n</tool_",
    ]
    form = replace(HERMES, eager=True)
    stream = Stream([piece.encode() for piece in pieces], form="blocks", blocks=form.native())
    seen = []
    for token in range(len(pieces)):
        stream.push(stream.token(token))
        events = stream.poll()
        seen.append([(kind, text) for event in events for kind, text, _ in event.pieces])
    assert seen == [
        [("tool_start", "get"), ("arguments", "{")],
        [("arguments", '"a": "x')],
        [("arguments", "y")],
        [("arguments", "\\n")],
        [("arguments", '"')],
        [("arguments", ', "n": 12}'), ("stop", "")],
        [],
    ]
    stream.close()


def test_a_control_token_counts_as_its_marker() -> None:
    form = of_family(FORMATS["mistral-named"], eager=True)
    tokens = [b"Well", b"", b"get", b"", b"{}", b""]
    markers = [(1, "[TOOL_CALLS]"), (3, "[ARGS]")]
    stream = Stream(tokens, blocks=form.native(markers), form="blocks")
    event = run(stream, len(tokens), [], ring.STOP_TOKEN)
    assert check_pieces(stream.pieces).blocks == [
        Block("text", "Well", ended=True),
        Block("tool_use", "{}", "get", ended=True),
    ]
    assert event.stop_reason == "tool_use"


def test_omitted_thinking_has_a_signature_only() -> None:
    form = replace(HERMES, omit_thinking=True)
    tokens = [b"<think>", b"hm", b"</think>", b"yes"]
    stream = Stream(tokens, blocks=form.native())
    event = run(stream, 4, [2, 3], ring.STOP_TOKEN)
    content = check_stream(stream.data.replace(b'"m\\"1"', b'"msg_1"')).message["content"]
    thinking = {"type": "thinking", "thinking": "", "signature": sign_thinking(b"key", "")}
    assert content == [thinking, {"type": "text", "text": "yes"}]
    assert event.thinking_tokens == 3 and event.output_tokens == 4


def test_a_failure_shows_what_is_certain_and_closes_nothing() -> None:
    form = replace(HERMES, eager=True)
    tokens = [CALL.encode()[:-30]]
    stream = Stream(tokens, blocks=form.native(), form="blocks")
    stream.push(stream.token(0), stream.end(ring.FAILED))
    (event,) = stream.poll()
    assert event.stop_reason == "failed"
    assert [kind for kind, _, _ in event.pieces] == ["tool_start", "arguments"]


def test_blocks_without_a_format_are_one_text() -> None:
    stream = Stream([b"<tool_call>", b" yes"], form="blocks")
    event = run(stream, 2, [1], ring.STOP_TOKEN)
    assert stream.pieces == [("text", "<tool_call>", ""), ("text", " yes", ""), ("stop", "", "")]
    assert event.stop_reason == "end_turn" and event.text == ""


def test_ids_of_calls_are_made_of_the_messages() -> None:
    assert _core.tool_id("msg_0123abC", 0) == "toolu_0123abC00"
    assert _core.tool_id('chatcmpl-1_"é', 123) == "toolu_chatcmpl1123"


@pytest.mark.parametrize(
    "wrong",
    [
        {"openings": [""]}, {"openings": ["<call> "]}, {"openings": ["x" * 65]},
        {"openings": ["x"] * 9}, {"thinking_opening": "<think>"}, {"begins_in": "tool_use"},
        {"begins_in": "thinking"}, {"name_end": "a["}, {"name_end": "[", "bare": True},
        {"tool_names": [""]}, {"tool_names": ["a b"]}, {"tool_names": ["a" * 129]},
        {"arguments_key": "name"}, {"closing": "\n"}, {"lenient_markers": [("", "x")]},
        {"lenient_markers": [("x", "y")] * 33}, {"lenient_markers": [("x", "y ")]},
    ],
)  # fmt: skip
def test_a_format_that_could_not_be_read_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"marker|names|begins_in"):
        _core.BlockFormat(**wrong)  # type: ignore[arg-type]


def test_raw_takes_no_block_format() -> None:
    with pytest.raises(ValueError, match="text format"):
        Stream([b"a"], form="raw", blocks=HERMES.native())


@given(st.binary(min_size=1, max_size=200), st.text(max_size=300))
@example(b"k" * 64, "a" * 55)
@example(b"k" * 65, "a" * 64)
def test_thinking_is_signed_as_its_twin_signs(key: bytes, text: str) -> None:
    form = Format(thinking_opening="<<", thinking_closing=">>", begins_in="thinking")
    text = text.replace(">", "").strip(twin.WHITE)
    stream = Stream([text.encode()], form="blocks", blocks=form.native(), key=key)
    run(stream, 1, [], ring.BUDGET)
    signatures = check_pieces(stream.pieces).signatures
    assert signatures == ([sign_thinking(key, text)] if text else [])
