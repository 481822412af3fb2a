"""Cases of messages_api.jsonl about tools, thinking and blocks, one check each."""

from typing import Any

import httpx
import msgspec

from cases import case, request_of
from cases_messages import answered, ask, count
from grammar import check_stream
from harness import Served, body, serve
from sublimate.edge.textmodel import TextModel
from test_errors import check_error
from test_turns import HERMES
from tiny_model import CONTROL, tiny_metadata, tiny_model

WEATHER = {
    "name": "get_weather",
    "description": "d",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def call_text(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def both(served: Served, request: dict[str, Any]) -> dict[str, Any]:
    """The message, which is the same streamed and whole."""
    whole = answered(served, {**request, "stream": False})
    folded = check_stream(ask(served, {**request, "stream": True}).content).message
    for message in (whole, folded):
        for block in message["content"]:
            block.pop("id", None)
            block.pop("signature", None)
    assert folded["content"] == whole["content"]
    assert folded["stop_reason"] == whole["stop_reason"]
    return whole


def asking(text: str, said: str, constrains: bool = True, **fields: Any) -> dict[str, Any]:
    """What a server says to a request with a tool, when its model answers so."""
    with serve(answers={text: said}, constrains=constrains) as served:
        return both(served, body(text, tools=[WEATHER], max_tokens=300, **fields))


@case("A43", "A44")
def parallel_calls_are_blocks_of_their_own(served: Served) -> None:
    del served
    cities = ("Paris", "Rome", "Oslo")
    calls = "\n".join(call_text("get_weather", f'{{"city": "{city}"}}') for city in cities)
    for delay in (0, 500):  # all of an answer in one poll, and a token each
        with serve(answers={"weather in": "I look.\n" + calls}, step_delay_us=delay) as each:
            request = request_of("A43", max_tokens=1000)
            message = both(each, request)
            reply = ask(each, {**request, "stream": False}).json()
        assert message["content"][0] == {"type": "text", "text": "I look."}
        assert [block["input"]["city"] for block in message["content"][1:]] == [*cities]
        assert message["stop_reason"] == "tool_use"
        ids = {block["id"] for block in reply["content"][1:]}
        assert len(ids) == 3 and all(found.startswith("toolu_") for found in ids)


@case("A66")
def without_a_choice_there_is_no_call(served: Served) -> None:
    del served
    said = call_text("get_weather", '{"city": "P"}')
    with serve(answers={"hi": said}) as each:
        message = both(each, request_of("A66", max_tokens=300))
        assert [block["type"] for block in message["content"]] == ["text"]
        assert message["stop_reason"] == "end_turn"
        free = both(each, request_of("A66", tool_choice={"type": "auto"}, max_tokens=300))
        assert [block["type"] for block in free["content"]] == ["tool_use"]
        assert count(each, request_of("A66")) == count(
            each, request_of("A66", tool_choice={"type": "auto"})
        ), "the tools are told all the same: the prefix stays"


CITIES = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}},
          "required": ["city"], "additionalProperties": False}  # fmt: skip


@case("A67")
def a_choice_of_tools_is_kept(served: Served) -> None:
    """Whatever the model would say: "Hello there!" here."""
    other = {**WEATHER, "name": "clock", "input_schema": {"type": "object", "maxProperties": 0,
             "additionalProperties": False}}  # fmt: skip
    tools = [{**WEATHER, "input_schema": CITIES}, other]
    for single in (False, True):
        for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
            request = request_of("A67", tools=tools, max_tokens=2000, temperature=0)
            request["messages"][0]["content"] = "say hello"
            request["tool_choice"] = {**choice, "disable_parallel_tool_use": single}
            message = both(served, request)
            calls = message["content"]
            assert calls and {block["type"] for block in calls} == {"tool_use"}
            assert len(calls) == 1 or not single
            if choice["type"] == "tool":
                assert {call["name"] for call in calls} == {"get_weather"}
                assert all(call["input"]["city"] in ("Paris", "Rome") for call in calls)
            assert message["stop_reason"] == "tool_use"
        free = {"type": "auto", "disable_parallel_tool_use": single}
        for choice in (free, {"type": "none"}):
            message = both(served, {**request, "tool_choice": choice})
            assert [block["type"] for block in message["content"]] == ["text"]


@case("A90")
def an_answer_with_a_format_is_a_document(served: Served) -> None:
    request = request_of("A90", max_tokens=300)
    schema = request["output_config"]["format"]["schema"]
    schema["properties"]["title"] = {"enum": ["One", "Two"]}
    request["messages"][0]["content"] = "say hello"
    found = set()
    for seed in range(20):
        message = answered(served, {**request, "seed": seed, "stream": False})
        (block,) = message["content"]
        document = msgspec.json.decode(block["text"])
        assert set(document) == {"title"} and message["stop_reason"] == "end_turn"
        found.add(document["title"])
    assert found == {"One", "Two"}
    both(served, {**request, "seed": 5})
    old = {name: value for name, value in request.items() if name != "output_config"}
    old["output_format"] = {"type": "json_schema", "schema": schema}
    assert msgspec.json.decode(both(served, {**old, "seed": 5})["content"][0]["text"])
    begun = [*request["messages"], {"role": "assistant", "content": "{"}]
    check_error(ask(served, {**request, "messages": begun}), 400, "output_config.format: ")


@case("A70")
def results_stand_directly_behind_their_calls(served: Served) -> None:
    request = request_of("A70", max_tokens=4)
    seen = rendered(served, request)
    places = [seen.index(part) for part in ('{"city": "P"}', "12C", "note")]
    assert places == sorted(places)


def rendered(served: Served, request: dict[str, Any]) -> str:
    """The prompt of a request, as its tokens read."""
    from sublimate.api.messages.read import read_count

    generation = read_count(served.server, msgspec.json.encode(request), b"")
    return served.server.model.template.render(generation.turns, generation.tools).plain


@case("A72")
def a_deferred_tool_is_told_at_the_result_that_names_it(served: Served) -> None:
    request = request_of("A72", max_tokens=4)
    before = {**request, "messages": request["messages"][:1]}
    without = {**before, "tools": request["tools"][1:]}
    assert rendered(served, before) == rendered(served, without)
    whole = rendered(served, request)
    opening = rendered(served, before).removesuffix("<|im_start|>assistant\n")
    assert whole.startswith(opening) and "get_weather" not in opening
    assert whole.rindex('"city"') > whole.index("select:get_weather")
    answered(served, request)
    request["messages"][2]["content"][0]["content"][0]["tool_name"] = "nothing"
    check_error(ask(served, request), 400, "messages.2.content.0.content.0.tool_name: ")


@case("A73")
def a_beta_changes_no_request_that_does_not_use_it(served: Served) -> None:
    request = request_of("A73", max_tokens=4)
    betas = {"anthropic-beta": "advanced-tool-use-2025-11-20,claude-code-20250219,nobody-knows"}
    path = "/v1/messages/count_tokens"
    replies = [served.client.post(path, json=request, headers=each) for each in ({}, betas)]
    assert replies[0].json() == replies[1].json() and replies[0].status_code == 200


@case("A76", "R106")
def arguments_are_an_object_whatever_the_model_would_say(served: Served) -> None:
    del served
    for arguments in ("[1]", '"x"', "{", '{"city": }', "5", "null"):
        said = call_text("get_weather", arguments)
        message = asking("hi", said, constrains=False)
        assert [block["type"] for block in message["content"]] == ["text"]
        assert message["stop_reason"] == "end_turn"
        (held,) = asking("hi", said, temperature=0)["content"]
        assert held["type"] == "tool_use" and isinstance(held["input"], dict)
    unknown = asking("hi", call_text("format_disk", "{}"), constrains=False)
    assert [block["type"] for block in unknown["content"]] == ["text"]
    (held,) = asking("hi", call_text("format_disk", "{}"), temperature=0)["content"]
    assert held["name"] == "get_weather"


@case("A94")
def text_behind_a_call_is_a_block_of_its_own(served: Served) -> None:
    del served
    said = "before\n" + call_text("f", '{"x": "1"}') + "\nafter"
    with serve(answers={"call f": said}) as each:
        message = both(each, request_of("A94", max_tokens=500))
    assert [block["type"] for block in message["content"]] == ["text", "tool_use", "text"]


def cut_anywhere(answer: str, reply_of: Any) -> None:
    for limit in range(1, len(answer) + 2):
        reply: httpx.Response = reply_of(limit)
        assert reply.status_code == 200, reply.text
        message = reply.json()
        assert message["stop_reason"] == ("max_tokens" if limit <= len(answer) else "tool_use")
        for block in message["content"]:
            assert block["type"] == "text" or isinstance(block["input"], dict)


@case("A64")
def a_cut_call_is_no_error(served: Served) -> None:
    del served
    answer = "I look.\n" + call_text("get_weather", '{"city": "P\\n"}')
    with serve(answers={"hi": answer}) as each:
        free = {"tool_choice": {"type": "auto"}}
        cut_anywhere(answer, lambda limit: ask(each, request_of("A64", max_tokens=limit, **free)))
    with serve(answers={"hi": (call := call_text("get_weather", '{"city": "P"}'))}) as each:
        cut_anywhere(call, lambda limit: ask(each, request_of("A64", max_tokens=limit)))


# ---- what another server's tools are ------------------------------------------------------------
@case("A75")
def server_tools_are_left_out_and_the_answer_says_so(served: Served) -> None:
    reply = ask(served, request_of("A75"))
    assert reply.status_code == 200
    assert reply.headers["x-left-out"] == "tools.0:web_search_20250305"


@case("A69")
def schemas_with_rare_keywords_are_taken(served: Served) -> None:
    answered(served, request_of("A69", max_tokens=4))


# ---- thinking ------------------------------------------------------------------------------------
def thinking_model(template: str = HERMES) -> TextModel:
    control = [*CONTROL, "<think>", "</think>"]
    tiny = tiny_metadata()
    tokens = [*tiny["tokenizer.ggml.tokens"], "<think>", "</think>"]
    types = [*tiny["tokenizer.ggml.token_type"], 4, 4]
    assert len(control) == 5
    fields = {"ggml.tokens": tokens, "ggml.token_type": types, "chat_template": template}
    return tiny_model(**fields)


ENDLESS = "<think>\n" + "hm " * 200


@case("A79")
def thinking_leaves_room_for_an_answer(served: Served) -> None:
    del served
    with serve(answers={"hi": ENDLESS}, model=thinking_model()) as each:
        request = request_of("A79")
        message = both(each, request)
        assert [block["type"] for block in message["content"]] == ["thinking", "text"]
        assert message["content"][1]["text"] and message["stop_reason"] == "max_tokens"
        usage = answered(each, request)["usage"]
    assert usage["output_tokens"] == 256
    assert 256 - 64 - 16 < usage["output_tokens_details"]["thinking_tokens"] <= 256 - 64


@case("A80")
def thinking_alone_is_no_answer(served: Served) -> None:
    del served
    said = {"hi": "<think>\nhm\n</think>\n\n", "ho": "<think>\nhm"}
    always = HERMES.replace("enable_thinking is false", "false")  # there is nothing to switch
    with serve(answers=said, model=thinking_model(always)) as each:
        for asked in said:  # the model ends its turn behind its thinking, and within it
            request = request_of("A80", seed=1, messages=[{"role": "user", "content": asked}])
            streamed = check_stream(ask(each, {**request, "stream": True}).content).message
            for message in (answered(each, request), streamed):
                kinds = [block["type"] for block in message["content"]]
                assert kinds[0] == "thinking" and message["content"][0]["signature"]
                assert kinds[1:] == ["text"] or message["stop_reason"] == "max_tokens", message


@case("A39")
def stop_strings_are_matched_in_text_alone(served: Served) -> None:
    del served
    with serve(
        answers={"hi": "<think>\n2 + 2 = 4\n</think>\n\nIt is 4."}, model=thinking_model()
    ) as each:
        message = both(each, request_of("A39", max_tokens=400))
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    assert message["content"][0]["thinking"] == "2 + 2 = 4"
    assert message["content"][1]["text"] == "It is " and message["stop_sequence"] == "4"
