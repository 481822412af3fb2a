"""The official OpenAI client for Python: chat completions, and one answer of the Responses API."""

import driver
import openai

client = openai.OpenAI(base_url=f"{driver.url()}/v1", api_key="none", max_retries=0)
user = {"role": "user", "content": driver.ASKED}
asked = {"model": "default", "max_completion_tokens": driver.TOKENS, "temperature": 0}
tool = {
    "type": "function",
    "function": {
        "name": driver.TOOL["name"],
        "description": driver.TOOL["description"],
        "parameters": driver.TOOL["input_schema"],
    },
}

chat = client.chat.completions
text = chat.create(messages=[user], **asked)
pieces = [
    chunk.choices[0].delta.content or ""
    for chunk in chat.create(messages=[user], stream=True, **asked)
    if chunk.choices
]
folded = client.responses.create(
    model="default", input=[user], max_output_tokens=driver.TOKENS, temperature=0
).output_text

longer = {**asked, "max_completion_tokens": driver.CALL_TOKENS}
forced = {"type": "function", "function": {"name": "get_weather"}}
called = chat.create(messages=[user], tools=[tool], tool_choice=forced, **longer)
(call,) = called.choices[0].message.tool_calls
turns = [
    user,
    called.choices[0].message.model_dump(exclude_none=True),
    {"role": "tool", "tool_call_id": call.id, "content": driver.RESULT},
]
answer = chat.create(messages=turns, tools=[tool], tool_choice="none", **asked)
schema = chat.parse(messages=[user], response_format=driver.City, **longer)

try:
    chat.create(model="default", messages=[user], max_completion_tokens=-5)
    error = None
except openai.APIStatusError as raised:
    error = {"kind": type(raised).__name__, "status": raised.status_code, "text": str(raised)}

stream = chat.create(
    model="default",
    max_completion_tokens=driver.LONG_TOKENS,
    messages=[{"role": "user", "content": driver.LONG}],
    stream=True,
    extra_body={"ignore_eos": True},
)
for number, _ in enumerate(stream):
    if number == 3:
        break
stream.close()
idle = driver.wait_idle()

driver.report(
    openai.__version__,
    text=text.choices[0].message.content,
    stream="".join(pieces),
    folded=folded,
    call={
        "name": call.function.name,
        "input": driver.json.loads(call.function.arguments),
        "stop": called.choices[0].finish_reason,
    },
    answer=answer.choices[0].message.content,
    schema=schema.choices[0].message.parsed.model_dump_json(),
    error=error,
    idle=idle,
)
