"""Frameworks that speak OpenAI's and Ollama's APIs: the second argument names one and its API."""

import asyncio
import importlib.metadata
import json
import sys
from typing import Any

import driver

BASE = f"{driver.url()}/v1"
USER = {"role": "user", "content": driver.ASKED}
FUNCTION = {
    "type": "function",
    "function": {
        "name": driver.TOOL["name"],
        "description": driver.TOOL["description"],
        "parameters": driver.TOOL["input_schema"],
    },
}


def langchain(api: str) -> dict[str, Any]:
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI, OpenAI

    shared: dict[str, Any] = {
        **{"model": "default", "base_url": BASE, "api_key": "none", "max_retries": 0},
        "temperature": 0,
    }
    if api == "completions":
        model = OpenAI(max_tokens=driver.TOKENS, **shared)
        both = model.generate([driver.ASKED, driver.LONG]).generations
        assert len(both) == 2 and both[1][0].text
        return {"text": both[0][0].text, "stream": "".join(model.stream(driver.ASKED))}

    def chat(tokens: int) -> ChatOpenAI:
        return ChatOpenAI(max_tokens=tokens, use_responses_api=api == "responses", **shared)

    @tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return f"{city}: {driver.RESULT}"

    user = HumanMessage(driver.ASKED)
    longer = chat(driver.CALL_TOKENS)
    called = longer.bind_tools([get_weather], tool_choice="get_weather").invoke([user])
    (call,) = called.tool_calls
    result = ToolMessage(driver.RESULT, tool_call_id=call["id"])
    answer = chat(driver.TOKENS).bind_tools([get_weather]).invoke([user, called, result])
    schema = longer.with_structured_output(driver.City, method="json_schema").invoke([user])
    return {
        "text": chat(driver.TOKENS).invoke([user]).text,
        "stream": "".join(chunk.text for chunk in chat(driver.TOKENS).stream([user])),
        "call": {"name": call["name"], "input": call["args"]},
        "answer": answer.text or "a call",
        "schema": schema.model_dump_json(),
    }


def litellm(api: str) -> dict[str, Any]:
    from litellm import completion

    prefix, base = ("openai", BASE) if api == "openai" else ("ollama_chat", driver.url())
    asked: dict[str, Any] = {
        **{"model": f"{prefix}/default", "api_base": base, "api_key": "none", "temperature": 0},
        "max_tokens": driver.TOKENS,
    }
    text = completion(messages=[USER], **asked).choices[0].message.content
    chunks = completion(messages=[USER], stream=True, **asked)
    found = {"text": text, "stream": "".join(c.choices[0].delta.content or "" for c in chunks)}
    if api != "openai":
        return found
    forced = {"type": "function", "function": {"name": "get_weather"}}
    asked["max_tokens"] = driver.CALL_TOKENS
    message = completion(messages=[USER], tools=[FUNCTION], tool_choice=forced, **asked)
    called = message.choices[0].message
    (call,) = called.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": driver.RESULT}
    turns = [USER, called.model_dump(exclude_none=True), result]
    answer = completion(messages=turns, tools=[FUNCTION], tool_choice="none", **asked)
    given = {"name": call.function.name, "input": json.loads(call.function.arguments)}
    return {**found, "call": given, "answer": answer.choices[0].message.content}


def ollama(api: str) -> dict[str, Any]:
    del api
    from ollama import Client

    client = Client(host=driver.url())
    options = {"temperature": 0, "num_predict": driver.TOKENS}
    asked: dict[str, Any] = {"model": "default", "messages": [USER], "options": options}
    text = client.chat(**asked).message.content
    stream = "".join(part.message.content or "" for part in client.chat(stream=True, **asked))
    call = {"function": {"name": "get_weather", "arguments": {"city": "Bern"}}}
    turns = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "get_weather", "content": driver.RESULT},
    ]
    answer = client.chat(**{**asked, "messages": turns}, tools=[FUNCTION]).message
    longer = {**options, "num_predict": driver.CALL_TOKENS}
    schema = client.chat(**{**asked, "options": longer}, format=driver.SCHEMA).message.content
    said = answer.content or str(answer.tool_calls)
    return {"text": text, "stream": stream, "answer": said, "schema": schema}


def agents(api: str) -> dict[str, Any]:
    from agents import (
        Agent,
        ModelSettings,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=BASE, api_key="none", max_retries=0)
    kind = OpenAIResponsesModel if api == "responses" else OpenAIChatCompletionsModel
    model = kind(model="default", openai_client=client)
    cities: list[str] = []

    @function_tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        cities.append(city)
        return driver.RESULT

    def agent(tools: list[Any], **settings: Any) -> Agent:
        # A response that is cut is an error to this library, so the model has to end by itself.
        chosen = ModelSettings(temperature=0, max_tokens=driver.LONG_TOKENS, **settings)
        return Agent(name="a", model=model, tools=tools, model_settings=chosen)

    async def streamed() -> str:
        running = Runner.run_streamed(agent([]), driver.ASKED)
        pieces: list[str] = []
        async for event in running.stream_events():
            data = getattr(event, "data", None)
            if getattr(data, "type", "") == "response.output_text.delta":
                pieces.append(data.delta)
        return "".join(pieces)

    async def all_of_it() -> dict[str, Any]:
        text = (await Runner.run(agent([]), driver.ASKED)).final_output
        acting = agent([get_weather], tool_choice="required")
        answer = (await Runner.run(acting, driver.ASKED, max_turns=6)).final_output
        given = {"name": "get_weather", "input": {"city": cities[0]}}
        return {"text": text, "stream": await streamed(), "call": given, "answer": str(answer)}

    return asyncio.run(all_of_it())


name, _, chosen = sys.argv[2].partition(":")
run = {"langchain-openai": langchain, "litellm": litellm, "ollama": ollama, "openai-agents": agents}
driver.report(importlib.metadata.version(name), **run[name](chosen))
