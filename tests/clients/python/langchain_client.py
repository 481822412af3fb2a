"""LangChain's chat model for the Messages API."""

import importlib.metadata

import driver
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"{city}: {driver.RESULT}"


def model(**fields):
    chosen = {"max_tokens": driver.TOKENS, "temperature": 0, **fields}
    return ChatAnthropic(
        model="default", base_url=driver.url(), api_key="none", max_retries=0, **chosen
    )


user = HumanMessage(driver.ASKED)
chat = model()
text = chat.invoke([user])
pieces = [chunk.text for chunk in chat.stream([user])]
longer = model(max_tokens=driver.CALL_TOKENS)
called = longer.bind_tools([get_weather], tool_choice="get_weather").invoke([user])
(call,) = called.tool_calls
answer = chat.bind_tools([get_weather]).invoke(
    [user, called, ToolMessage(driver.RESULT, tool_call_id=call["id"])]
)
schema = longer.with_structured_output(driver.City, method="json_schema").invoke([user])
try:
    model(max_tokens=-1).invoke([user])
    error = None
except Exception as raised:
    error = {
        "kind": type(raised).__name__,
        "status": getattr(raised, "status_code", 0),
        "text": str(raised),
    }
stream = model(max_tokens=driver.LONG_TOKENS).stream([HumanMessage(driver.LONG)])
for _ in range(3):
    next(stream)
stream.close()
idle = driver.wait_idle()

driver.report(
    importlib.metadata.version("langchain-anthropic"),
    text=text.text,
    stream="".join(pieces),
    folded=text.text,
    call={
        "name": call["name"],
        "input": call["args"],
        "stop": called.response_metadata["stop_reason"],
    },
    answer=answer.text,
    schema=schema.model_dump_json(),
    error=error,
    idle=idle,
)
