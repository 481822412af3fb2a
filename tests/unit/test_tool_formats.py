"""Tool and thinking formats: chosen by the template, equal to what templates render, stable."""

import base64
import hashlib
import hmac
import json
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tool_templates
from sublimate.config import EdgeSettings
from sublimate.errors import ModelError
from sublimate.model.template import ChatTemplate
from sublimate.model.thinking import (
    ThinkingFormat,
    choose_thinking_format,
    is_own_signature,
    sign_thinking,
)
from sublimate.model.tool_formats import (
    FORMATS,
    Tool,
    ToolCall,
    ToolFormat,
    ToolResult,
    canonical_json,
    choose_tool_format,
    marker_tokens,
)
from tool_templates import TEMPLATES, render

KNOWING = [name for name, family in FORMATS.items() if family.template_knows]
NAMES = st.from_regex(r"[a-zA-Z0-9_-]{1,16}", fullmatch=True)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text("abc", min_size=1, max_size=3), JSON, max_size=3)
CALLS = st.builds(
    ToolCall,
    st.integers(0, 999).map("call{:05d}".format),
    NAMES,
    ARGUMENTS.map(canonical_json),
)
WORDS = st.text("ab <é", min_size=1, max_size=8).map(str.strip).filter(bool)


@given(JSON)
def test_canonical_json_is_what_json_dumps_writes(value: Any) -> None:
    assert canonical_json(value) == json.dumps(value, ensure_ascii=False)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_template_chooses_the_format(name: str) -> None:
    assert choose_tool_format(TEMPLATES[name], ()).name == name


@pytest.mark.parametrize(
    ("special", "name"),
    [
        (("[TOOL_CALLS]", "[INST]"), "mistral"),
        (("[TOOL_CALLS]", "[ARGS]"), "mistral-named"),
        (("<start_of_turn>",), "gemma"),
        (("<|im_start|>",), "generic"),
        ((), "generic"),
    ],
)
def test_without_a_template_the_vocabulary_chooses(special: tuple[str, ...], name: str) -> None:
    assert choose_tool_format("", special).name == name


@pytest.mark.parametrize(
    "other", ["<tool_call>\n<function=x>", "<tool_call>x<arg_key>", "<|tool_call>"]
)
def test_a_family_whose_arguments_are_not_json_gets_the_generic_format(other: str) -> None:
    assert choose_tool_format(other, ("<tool_call>",)).name == "generic"


def test_a_format_can_be_named() -> None:
    assert choose_tool_format(TEMPLATES["hermes"], (), "llama3") is FORMATS["llama3"]
    with pytest.raises(ModelError, match=r"'klingon'.*hermes"):
        choose_tool_format("", (), "klingon")


def test_the_setting_names_every_format() -> None:
    hints = get_type_hints(EdgeSettings, include_extras=True)["tool_format"]
    assert set(get_args(get_args(hints)[0])) == {"", *FORMATS}
    assert EdgeSettings().tool_format == ""


def test_a_named_format_is_the_templates() -> None:
    special = {"<|im_start|>": 1, "<|im_end|>": 2}
    chosen = ChatTemplate(TEMPLATES["hermes"], special, tool_format="gemma")
    assert chosen.tool_format is FORMATS["gemma"] and chosen.report.tools == "text"
    assert ChatTemplate(TEMPLATES["hermes"], special).tool_format is FORMATS["hermes"]


# ---- calls --------------------------------------------------------------------------------------


def message(text: str, calls: list[ToolCall]) -> dict[str, Any]:
    """An assistant turn as templates take it."""
    named = [
        {"id": c.id, "function": {"name": c.name, "arguments": json.loads(c.arguments)}}
        for c in calls
    ]
    return {"role": "assistant", "content": text, **({"tool_calls": named} if named else {})}


def written(family: ToolFormat, text: str, calls: list[ToolCall]) -> str:
    """An answer as the model writes it."""
    separator = family.text_separator if text and calls else ""
    return text + separator + (family.calls_text(calls) if calls else "")


def test_calls_as_each_family_writes_them() -> None:
    calls = [ToolCall("1", "get", '{"a": 1}'), ToolCall("2", "put", "{}")]
    assert {name: family.calls_text(calls) for name, family in FORMATS.items()} == {
        "mistral-named": '[TOOL_CALLS]get[ARGS]{"a": 1}[TOOL_CALLS]put[ARGS]{}',
        "mistral": '[TOOL_CALLS][{"name": "get", "arguments": {"a": 1}}, '
        '{"name": "put", "arguments": {}}]',
        "hermes": '<tool_call>\n{"name": "get", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "put", "arguments": {}}\n</tool_call>',
        "llama3": '{"name": "get", "parameters": {"a": 1}}\n{"name": "put", "parameters": {}}',
        "gemma": '```tool_code\n{"name": "get", "parameters": {"a": 1}}\n```\n'
        '```tool_code\n{"name": "put", "parameters": {}}\n```',
        "generic": '<tool_call>\n{"name": "get", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "put", "arguments": {}}\n</tool_call>',
    }


@given(
    st.sampled_from(["hermes", "mistral-named"]), WORDS | st.just(""), st.lists(CALLS, max_size=3)
)
def test_templates_render_what_the_model_wrote(name: str, text: str, calls: list[ToolCall]) -> None:
    family = FORMATS[name]
    question = [{"role": "user", "content": "q"}]
    before = render(TEMPLATES[name], question, add_generation_prompt=True)
    after = render(TEMPLATES[name], [*question, message(text, calls)])
    answer = written(family, text, calls)
    assert after == before + answer + tool_templates.END_OF_TURN[name]


@given(CALLS)
def test_llama_renders_its_one_call_alike(call: ToolCall) -> None:
    question = [{"role": "user", "content": "q"}]
    before = render(TEMPLATES["llama3"], question, add_generation_prompt=True)
    after = render(TEMPLATES["llama3"], [*question, message("", [call])])
    assert after == before + FORMATS["llama3"].call_text(call) + "<|eot_id|>"
    assert not FORMATS["llama3"].parallel


@given(CALLS)
def test_mistrals_list_differs_by_the_id_only(call: ToolCall) -> None:
    rendered = render(TEMPLATES["mistral"], [message("", [call])])
    assert rendered.replace(f', "id": "{call.id}"', "", 1) == (
        FORMATS["mistral"].call_text(call) + "</s>"
    )


Exchange = st.tuples(WORDS, WORDS | st.just(""), st.lists(CALLS, max_size=2), WORDS)


@given(st.sampled_from(sorted(TEMPLATES)), st.lists(Exchange, min_size=1, max_size=4))
def test_a_turn_extends_the_one_before_it(
    name: str, exchanges: list[tuple[str, str, list[ToolCall], str]]
) -> None:
    """Prompt of turn N, then what the model wrote, is how the prompt of turn N+1 begins."""
    family = FORMATS[name]
    messages: list[dict[str, Any]] = []
    before = ""
    for question, text, calls, result in exchanges:
        if name == "llama3":
            text, calls = (text, []) if text or not calls else ("", calls[:1])
        if name == "mistral":
            calls = []
        results = [ToolResult(call.id, result) for call in calls]
        messages.append({"role": "user", "content": question})
        prompt = render(TEMPLATES[name], messages, add_generation_prompt=True)
        assert prompt.startswith(before)
        answer = written(family, text, calls)
        before = prompt + answer + tool_templates.END_OF_TURN[name]
        if family.template_knows:
            messages.append(message(text, calls))
            messages += [{"role": "tool", "content": family.result_content(r)} for r in results]
        else:
            messages.append({"role": "assistant", "content": answer})
            told = "\n".join(map(family.result_text, results))
            messages += [{"role": "user", "content": told}] if told else []
    last = render(TEMPLATES[name], [*messages, {"role": "user", "content": "x"}])
    assert last.startswith(before)


@given(st.lists(st.builds(Tool, NAMES, st.text(max_size=9), ARGUMENTS), min_size=1, max_size=3))
def test_the_description_names_every_tool_and_the_form_of_a_call(tools: list[Tool]) -> None:
    for family in FORMATS.values():
        text = family.describe(tools)
        for tool in tools:
            assert canonical_json(tool.declaration["function"]) in text
        assert text.endswith(family.call_text(ToolCall("", "NAME", "{...}")))
        assert ("Several" in text) == family.parallel


def test_results_as_text() -> None:
    good, bad = ToolResult("1", "42"), ToolResult("1", "no file", is_error=True)
    assert FORMATS["generic"].result_text(good) == "<tool_response>\n42\n</tool_response>"
    assert FORMATS["gemma"].result_text(bad) == "```tool_output\nError: no file\n```"
    assert FORMATS["hermes"].result_content(bad) == "Error: no file"


@pytest.mark.parametrize("family", FORMATS.values(), ids=list(FORMATS))
def test_a_call_begins_with_a_marker_or_bare(family: ToolFormat) -> None:
    text = family.call_text(ToolCall("1", "get", "{}"))
    assert text.startswith(family.openings[0]) or (family.bare and text.startswith("{"))
    assert text.rstrip("]").endswith(family.closing)
    assert all(marker == marker.strip() for marker in family.markers)
    assert all(family.markers)


def test_what_no_format_could_write_is_refused() -> None:
    for name in ("", 'a"b', "a b", "x" * 129, "é"):
        with pytest.raises(ValueError, match="name"):
            Tool(name)
    for arguments in ("", "[]", "{", '"{}"'):
        with pytest.raises(ValueError, match="object"):
            ToolCall("1", "get", arguments)
    with pytest.raises(ValueError, match="no text"):
        FORMATS["generic"].calls_text([])
    with pytest.raises(ValueError, match="nothing"):
        FORMATS["generic"].describe([])
    with pytest.raises(TypeError, match="white space"):
        type("Spaced", (ToolFormat,), {"openings": ("<call> ",)})
    with pytest.raises(TypeError, match="name_end"):
        type("Nameless", (ToolFormat,), {"shape": "named"})
    with pytest.raises(ValueError, match="markers"):
        ThinkingFormat("<think>", "<think>")
    with pytest.raises(ValueError, match="key"):
        sign_thinking(b"", "text")


def test_marker_tokens_are_those_that_the_vocabulary_has() -> None:
    special = {"[TOOL_CALLS]": 9, "[ARGS]": 32, "<s>": 1}
    assert marker_tokens(FORMATS["mistral-named"].markers, special) == {
        9: "[TOOL_CALLS]",
        32: "[ARGS]",
    }
    assert marker_tokens(FORMATS["generic"].markers, special) == {}


# ---- thinking -----------------------------------------------------------------------------------


def test_the_template_chooses_the_thinking_format() -> None:
    qwen = choose_thinking_format(TEMPLATES["hermes"], ())
    assert qwen == ThinkingFormat("<think>", "</think>", "enable_thinking")
    assert choose_thinking_format(tool_templates.R1, ()) == ThinkingFormat("<think>", "</think>")
    assert choose_thinking_format(TEMPLATES["generic"], ()) is None
    assert choose_thinking_format("", ("[THINK]", "[/THINK]", "[INST]")) == ThinkingFormat(
        "[THINK]", "[/THINK]"
    )
    assert choose_thinking_format("", ("[THINK]",)) is None
    v31 = "{% if not thinking is defined %}{% set thinking = false %}{% endif %}<think>"
    assert choose_thinking_format(v31, ()) == ThinkingFormat("<think>", "</think>", "thinking")
    quoted = "{% if block['type'] == 'thinking' %}<think>{% endif %} thinking, enable_thinking"
    assert choose_thinking_format(quoted, ()) == ThinkingFormat("<think>", "</think>")


@pytest.mark.parametrize(
    ("source", "variables", "opened"),
    [(TEMPLATES["hermes"], True, False), (TEMPLATES["hermes"], False, False),
     (tool_templates.R1, True, True)],
)  # fmt: skip
def test_whether_the_prompt_opens_the_thinking(source: str, variables: bool, opened: bool) -> None:
    family = choose_thinking_format(source, ())
    assert family is not None
    prompt = render(
        source,
        [{"role": "user", "content": "q"}],
        add_generation_prompt=True,
        **family.variables(variables),
    )
    assert family.opened_by(prompt) == opened
    assert prompt.endswith(family.text("")) == (not variables and bool(family.switch))


@given(st.binary(min_size=1, max_size=80), st.text(max_size=40), st.text(max_size=40))
def test_a_signature_is_of_key_and_text(key: bytes, text: str, other: str) -> None:
    signature = sign_thinking(key, text)
    assert is_own_signature(key, text, signature)
    assert is_own_signature(key, other, signature) == (other == text)
    assert not is_own_signature(key + b"1", text, signature)
    assert not is_own_signature(key, text, other)
    digest = hmac.new(key, text.encode(), hashlib.sha256).digest()
    assert base64.b64decode(signature, validate=True) == digest
