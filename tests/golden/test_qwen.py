"""A real model that was taught to call tools, on four APIs: forced calls, chosen calls, questions
that need none, and agents that go on with results.

The model has half a billion parameters. What it asks for is checked where it is sensible; where it
repeats a call that was answered, the test ends the loop as an agent would.
"""

import itertools
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from servers import Server

import sublimate

pytestmark = [pytest.mark.qwen, pytest.mark.timeout(1800)]  # some hundred answers
MODEL = "qwen2.5-coder-0.5b"
START_SECONDS = 300.0  # on a machine that does other things too
TURNS_MAX = 6

Schema = dict[str, Any]


def schema(name: str) -> Schema:
    return {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}


WEATHER = ("get_weather", "Get the current weather of a city", schema("city"))
READ = ("read_file", "Read a file from disk", schema("path"))
CALCULATE = ("calculate", "Evaluate an arithmetic expression", schema("expression"))
TOOLS = [WEATHER, READ, CALCULATE]
ARGUMENTS = {name: next(iter(s["properties"])) for name, _, s in TOOLS}

CITIES = ["Oslo", "Paris", "London", "Tokyo", "Berlin", "New York"]
WEATHER_QUESTIONS = [
    "What is the weather in Oslo?",
    "How warm is it in Paris today?",
    "Is it raining in London right now?",
    "What's the weather like in Tokyo?",
    "Please tell me the weather in Berlin.",
    "Do I need an umbrella in New York?",
]
# The model takes some questions, such as "What is 2+2?", for ones about the weather: none is here.
PLAIN_QUESTIONS = [
    "Explain recursion in one sentence.",
    "Who wrote Hamlet?",
    "What does JSON stand for?",
    "Thanks!",
    "What is a list in Python?",
    "How do I exit vim?",
    "What is a mutex?",
    "Who are you?",
    "What is the boiling point of water?",
    "Summarise the plot of Romeo and Juliet.",
    "What is the largest planet?",
    "Write a limerick.",
    "What is the meaning of 'ubiquitous'?",
    "How do I boil an egg?",
    "Why is the sky blue?",
    "What is machine learning?",
    "Write a haiku about the sea.",
    "What is the difference between TCP and UDP?",
    "How does photosynthesis work?",
    "What is a binary search tree?",
]


class Reply:
    """An answer: text, calls as (id, name, arguments), and its own form for the next request."""

    def __init__(self, text: str, calls: list[tuple[str, str, Any]], history: list[Any]) -> None:
        self.text, self.calls, self.history = text, calls, history

    @property
    def valid(self) -> bool:
        """One call or more, each of an offered tool with what its schema requires."""
        return bool(self.calls) and all(
            name in ARGUMENTS and isinstance(arguments.get(ARGUMENTS[name]), str)
            for _, name, arguments in self.calls
        )


def post(url: str, asked: Any) -> bytes:
    data = json.dumps({"model": MODEL, **asked}).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return response.read()


def events(data: bytes) -> list[dict[str, Any]]:
    lines = [line[6:] for line in data.decode().split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def messages(url: str, history: list[Any], choice: str, stream: bool, tools: list[Any]) -> Reply:
    data = post(
        f"{url}/v1/messages",
        {
            "max_tokens": 128, "temperature": 0, "stream": stream, "messages": history,
            "tool_choice": {"type": "any" if choice == "required" else choice},
            "tools": [{"name": n, "description": d, "input_schema": s} for n, d, s in tools],
        },
    )  # fmt: skip
    blocks: list[Any] = []
    for event in events(data) if stream else ():
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"] | {"json": ""})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            blocks[-1]["json"] += delta.get("partial_json", "")
            if "text" in delta:
                blocks[-1]["text"] += delta["text"]
    for block in blocks:
        if arguments := block.pop("json"):
            block["input"] = json.loads(arguments)
    blocks = blocks or json.loads(data if not stream else b'{"content": []}')["content"]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = [(b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
    return Reply(text, calls, [{"role": "assistant", "content": blocks}])


def messages_results(results: list[tuple[str, str, str]]) -> list[Any]:
    content = [{"type": "tool_result", "tool_use_id": i, "content": text} for i, _, text in results]
    return [{"role": "user", "content": content}]


def functions(tools: list[Any]) -> list[Any]:
    return [{"name": n, "description": d, "parameters": s} for n, d, s in tools]


def chat(url: str, history: list[Any], choice: str, stream: bool, tools: list[Any]) -> Reply:
    data = post(
        f"{url}/v1/chat/completions",
        {
            "max_tokens": 128, "temperature": 0, "stream": stream, "messages": history,
            "tool_choice": choice,
            "tools": [{"type": "function", "function": f} for f in functions(tools)],
        },
    )  # fmt: skip
    message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
    if not stream:
        message |= json.loads(data)["choices"][0]["message"]
    for event in events(data) if stream else ():
        delta = event["choices"][0]["delta"] if event["choices"] else {}
        message["content"] += delta.get("content") or ""
        for call in delta.get("tool_calls", []):
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append(call)
            else:
                made = message["tool_calls"][call["index"]]["function"]
                made["arguments"] += call["function"]["arguments"]
    made = message["tool_calls"]
    calls = [(c["id"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in made]
    if not calls:
        del message["tool_calls"]
    return Reply(message["content"] or "", calls, [message])


def chat_results(results: list[tuple[str, str, str]]) -> list[Any]:
    return [{"role": "tool", "tool_call_id": i, "content": text} for i, _, text in results]


def responses(url: str, history: list[Any], choice: str, stream: bool, tools: list[Any]) -> Reply:
    data = post(
        f"{url}/v1/responses",
        {
            "max_output_tokens": 128, "temperature": 0, "stream": stream, "input": history,
            "tool_choice": choice,
            "tools": [{"type": "function", **f} for f in functions(tools)],
        },
    )  # fmt: skip
    items = (events(data)[-1]["response"] if stream else json.loads(data))["output"]
    text = "".join(item["content"][0]["text"] for item in items if item["type"] == "message")
    made = [item for item in items if item["type"] == "function_call"]
    return Reply(text, [(c["call_id"], c["name"], json.loads(c["arguments"])) for c in made], items)


def responses_results(results: list[tuple[str, str, str]]) -> list[Any]:
    return [
        {"type": "function_call_output", "call_id": i, "output": text} for i, _, text in results
    ]


def ollama(url: str, history: list[Any], choice: str, stream: bool, tools: list[Any]) -> Reply:
    assert choice in ("auto", "none"), "Ollama's API has no choice of tools"
    asked = {
        "stream": stream,
        "messages": history,
        "options": {"num_predict": 128, "temperature": 0},
    }
    if choice == "auto":
        asked["tools"] = [{"type": "function", "function": f} for f in functions(tools)]
    lines = [json.loads(line) for line in post(f"{url}/api/chat", asked).splitlines()]
    text = "".join(line["message"]["content"] for line in lines)
    made = [call for line in lines for call in line["message"].get("tool_calls", [])]
    calls = [("", call["function"]["name"], call["function"]["arguments"]) for call in made]
    message: dict[str, Any] = {"role": "assistant", "content": text}
    return Reply(text, calls, [message | ({"tool_calls": made} if made else {})])


def ollama_results(results: list[tuple[str, str, str]]) -> list[Any]:
    return [{"role": "tool", "tool_name": name, "content": text} for _, name, text in results]


Ask = Callable[[str, list[Any], str, bool, list[Any]], Reply]
SURFACES: dict[str, tuple[Ask, Callable[[list[tuple[str, str, str]]], list[Any]]]] = {
    "messages": (messages, messages_results),
    "chat": (chat, chat_results),
    "responses": (responses, responses_results),
    "ollama": (ollama, ollama_results),
}
FORCED = [name for name in SURFACES if name != "ollama"]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    command = ["-m", "sublimate", "serve", "--model", MODEL, "--port", "0", "--json"]
    with Server([*command, "--context-length", "8192", "--log-level", "error"]) as running:
        running.ready(START_SECONDS)
        yield running


def asked(
    server: Server, surface: str, question: str, choice: str, stream: bool, tools: list[Any] = TOOLS
) -> Reply:
    history = [{"role": "user", "content": question}]
    return SURFACES[surface][0](server.url, history, choice, stream, tools)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("surface", FORCED)
def test_a_forced_call_is_valid_20_times_of_20(server: Server, surface: str, stream: bool) -> None:
    questions = [*WEATHER_QUESTIONS, *PLAIN_QUESTIONS[:14]]
    replies = [asked(server, surface, q, "required", stream) for q in questions]
    assert [reply.text for reply in replies if not reply.valid] == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("surface", SURFACES)
def test_f62_questions_for_a_tool_get_its_call(server: Server, surface: str, stream: bool) -> None:
    right = 0
    for question, city in zip(WEATHER_QUESTIONS, CITIES, strict=True):
        reply = asked(server, surface, question, "auto", stream)
        right += [(name, a) for _, name, a in reply.calls] == [("get_weather", {"city": city})]
    print(f"{surface}: {right} of {len(WEATHER_QUESTIONS)}")
    assert right >= 4


@pytest.mark.parametrize("tools", [[WEATHER], TOOLS], ids=["one tool", "three tools"])
def test_f62_plain_questions_get_no_call(server: Server, tools: list[Any]) -> None:
    called = [
        question
        for question in PLAIN_QUESTIONS
        if asked(server, "messages", question, "auto", True, tools).calls
    ]
    print(f"calls for {called}")
    assert len(called) <= 2


def loop(
    server: Server, surface: str, question: str, first: str, stream: bool, run: Callable[..., str]
) -> tuple[list[tuple[str, Any]], str]:
    """An agent: runs what is called until an answer has no call, or repeats what was answered; then
    it asks once more without tools. Returns the calls and the last text."""
    ask, results_of = SURFACES[surface]
    history: list[Any] = [{"role": "user", "content": question}]
    made: list[tuple[str, Any]] = []
    for turn in itertools.count():
        assert turn < TURNS_MAX, made
        is_repeated = len(made) != len({json.dumps(call) for call in made})
        choice = "none" if is_repeated else first if turn == 0 else "auto"
        reply = ask(server.url, history, choice, stream, TOOLS)
        if not reply.calls:
            return made, reply.text
        assert reply.valid
        made += [(name, arguments) for _, name, arguments in reply.calls]
        done = [(i, name, run(name, **arguments)) for i, name, arguments in reply.calls]
        history += [*reply.history, *results_of(done)]
    raise AssertionError


@pytest.mark.parametrize("surface", FORCED)
def test_a_loop_whose_first_call_is_forced_ends(server: Server, surface: str) -> None:
    def run(name: str, **arguments: str) -> str:
        return json.dumps({"temperature_celsius": 7, "sky": "clear", **arguments})

    calls, text = loop(server, surface, WEATHER_QUESTIONS[0], "required", True, run)
    assert calls[0] == ("get_weather", {"city": "Oslo"}) and text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("surface", SURFACES)
def test_an_agent_reads_a_file_and_answers(
    server: Server, surface: str, stream: bool, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("The password of the cellar is marmalade.")

    def run(name: str, **arguments: str) -> str:
        if name != "read_file":
            return f"error: {name} is not available"
        return (tmp_path / Path(arguments["path"]).name).read_text()

    question = "Read the file notes.txt and tell me the password of the cellar."
    calls, text = loop(server, surface, question, "auto", stream, run)
    assert calls[0] == ("read_file", {"path": "notes.txt"})
    assert "marmalade" in text


def test_f58_int8_pages_cost_little_where_keys_have_biases() -> None:
    text = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()
    losses: dict[str, float] = {}
    kinds: tuple[Literal["bf16", "int8"], ...] = ("bf16", "int8")
    for kind in kinds:
        with sublimate.Engine(MODEL, kv=kind, context_length=1025, kv_memory=64 << 20) as engine:
            ids = engine.tokenise(text)[:1024]
            ((logprobs, _),) = engine.score([ids])
            losses[kind] = -float(logprobs[1:].mean())
    print(losses)
    assert abs(losses["int8"] - losses["bf16"]) < 0.01
