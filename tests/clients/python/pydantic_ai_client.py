"""Pydantic AI's agents over the Messages API: an output type is a forced tool there."""

import asyncio
import importlib.metadata

import driver
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.settings import ModelSettings

model = AnthropicModel("default", provider=AnthropicProvider(base_url=driver.url(), api_key="none"))
longer = ModelSettings(max_tokens=driver.CALL_TOKENS, temperature=0)
short = ModelSettings(max_tokens=driver.TOKENS, temperature=0)
agent = Agent(model, model_settings=short)


async def main() -> None:
    text = (await agent.run(driver.ASKED)).output
    async with agent.run_stream(driver.ASKED) as run:
        pieces = [piece async for piece in run.stream_text(delta=True, debounce_by=None)]

    typed = Agent(model, output_type=driver.City, model_settings=longer)
    run = await typed.run(driver.ASKED)
    (called,) = [message for message in run.new_messages() if message.kind == "response"]
    (call,) = [part for part in called.parts if part.part_kind == "tool-call"]

    history = [
        ModelRequest([UserPromptPart(driver.ASKED)]),
        ModelResponse([ToolCallPart("get_weather", {"city": "Bern"}, "call_1")]),
        ModelRequest([ToolReturnPart("get_weather", driver.RESULT, "call_1")]),
    ]
    answer = (await agent.run("And now?", message_history=history)).output
    try:
        await agent.run(driver.ASKED, model_settings=ModelSettings(max_tokens=-1))
        error = None
    except ModelHTTPError as raised:
        error = {"kind": type(raised).__name__, "status": raised.status_code, "text": str(raised)}

    long = ModelSettings(max_tokens=driver.LONG_TOKENS, temperature=0)
    number = 0
    async with agent.run_stream(driver.LONG, model_settings=long) as stream:
        async for _ in stream.stream_text(delta=True, debounce_by=None):
            number += 1
            if number == 3:
                break
    idle = await asyncio.to_thread(driver.wait_idle)
    driver.report(
        importlib.metadata.version("pydantic-ai-slim"),
        text=text,
        stream="".join(pieces),
        folded=text,
        call={"name": call.tool_name, "input": call.args_as_dict(), "stop": called.finish_reason},
        answer=answer,
        schema=run.output.model_dump_json(),
        error=error,
        idle=idle,
    )


asyncio.run(main())
