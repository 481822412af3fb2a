"""Calls of tools through the whole server: the stream equals the message, wherever it is cut."""

from typing import Any

import pytest

from grammar import check_stream
from harness import Served, serve
from sublimate import _core

ARGUMENTS = (
    '{"path": "notes/é", "lines": ["a\\\\b", "\\u00e9\\ud83d\\ude38 😸", ""], '
    '"deep": {"n": -1.5e3}}'
)
CALL = f'<tool_call>\n{{"name": "put", "arguments": {ARGUMENTS}}}\n</tool_call>'
# By words that stand in no description of a tool.
ANSWERS: dict[str, str | bytes] = {
    "wombat": f"Let me see.\n{CALL}",
    "magpie": f"{CALL}\n\n{CALL.replace('put', 'get')}",
    "badger": f"So STOP: {CALL}\nDone STOP it",
    "weasel": CALL.replace("put", "nobody"),
}
COUNTED = "".join(f"{number} " for number in range(200))
TOOLS = [
    {"name": name, "description": "d", "input_schema": {"type": "object"}}
    for name in ("get", "put")
]


@pytest.fixture(scope="module")
def served() -> Any:
    with serve(answers=ANSWERS, constrains=False) as server:
        yield server


def both(served: Served, asked: str, **fields: Any) -> dict[str, Any]:
    """The message of the stream, which is that of the whole answer but for the ids."""
    fields = {"tools": TOOLS, **fields}
    streamed = check_stream(served.message(asked, stream=True, **fields).content).message
    whole = served.message(asked, **fields).json()
    for message in (streamed, whole):
        calls = [block for block in message["content"] if block["type"] == "tool_use"]
        own = message.pop("id").removeprefix("msg_")
        assert [call.pop("id") for call in calls] == [
            f"toolu_{own}{i:02}" for i in range(len(calls))
        ]
        for name in ("cache_read_input_tokens", "input_tokens"):
            del message["usage"][name]  # the second one finds the first one's prompt
    for name in ("content", "stop_reason", "stop_sequence"):
        assert streamed[name] == whole[name]
    assert streamed["usage"]["output_tokens"] == whole["usage"]["output_tokens"]
    return whole


def kinds(message: dict[str, Any]) -> list[str]:
    return [block.get("name", block["type"]) for block in message["content"]]


def test_calls_are_blocks_of_their_own(served: Served) -> None:
    one = both(served, "wombat", max_tokens=4000)
    assert kinds(one) == ["text", "put"] and one["stop_reason"] == "tool_use"
    assert one["content"][0]["text"] == "Let me see."
    assert one["content"][1]["input"]["lines"] == ["a\\b", "é😸 😸", ""]
    two = both(served, "magpie", max_tokens=4000)
    assert kinds(two) == ["put", "get"] and two["stop_reason"] == "tool_use"


def test_a_call_of_no_tool_is_text(served: Served) -> None:
    message = both(served, "weasel", max_tokens=4000)
    assert kinds(message) == ["text"] and message["stop_reason"] == "end_turn"
    assert message["content"][0]["text"] == ANSWERS["weasel"]
    untold = both(served, "wombat", max_tokens=4000, tools=[])
    assert untold["content"][0]["text"] == ANSWERS["wombat"]


def test_stop_sequences_act_on_text_alone(served: Served) -> None:
    inside = both(served, "wombat", max_tokens=4000, stop_sequences=["lines", "tool_call"])
    assert kinds(inside) == ["text", "put"] and inside["stop_reason"] == "tool_use"
    first = both(served, "badger", max_tokens=4000, stop_sequences=["STOP"])
    assert first["content"] == [{"type": "text", "text": "So "}]
    assert (first["stop_reason"], first["stop_sequence"]) == ("stop_sequence", "STOP")
    later = both(served, "badger", max_tokens=4000, stop_sequences=["STOP it"])
    assert kinds(later) == ["text", "put", "text"] and later["content"][2]["text"] == "Done "
    assert later["stop_reason"] == "stop_sequence"


def test_every_cut_is_an_answer(served: Served) -> None:
    """Cut anywhere: no error, arguments that parse, and the reason that the client acts on."""
    whole = both(served, "wombat", max_tokens=4000)
    length = whole["usage"]["output_tokens"]
    seen = set()
    for max_tokens in range(1, length, 3):
        message = both(served, "wombat", max_tokens=max_tokens)
        assert message["stop_reason"] == "max_tokens"
        assert message["usage"]["output_tokens"] == max_tokens
        seen.add(tuple(kinds(message)))
    assert ("text",) in seen and ("text", "put") in seen


def test_frames_of_blocks_go_to_the_socket_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the tokens in the middle of an answer the event loop sees few, tools or not."""
    answers: dict[str, str | bytes] = {"otter": COUNTED + CALL}
    with serve(answers=answers, step_delay_us=500, constrains=False) as served:
        link = served.server.engine
        assert link is not None
        seen: list[_core.StreamEvent] = []
        deliver = link._deliver

        def counting(events: list[_core.StreamEvent]) -> None:
            seen.extend(events)
            deliver(events)

        monkeypatch.setattr(link, "_deliver", counting)
        stream = served.message("otter", stream=True, tools=TOOLS, max_tokens=4000).content
        message = check_stream(stream).message
        assert kinds(message) == ["text", "put"]
        assert message["content"][0]["text"] == COUNTED.rstrip()
        assert stream.count(b"text_delta") > 100, "text leaves as it comes"
        assert len(seen) < 20, "the head, the first bytes and the end"
