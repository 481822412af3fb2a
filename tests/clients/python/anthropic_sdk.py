"""The official Anthropic client for Python, any major version."""

import anthropic
import driver

client = anthropic.Anthropic(base_url=driver.url(), api_key="none", max_retries=0)
exact = {"temperature": 0}  # not in the signatures since version 1
user = {"role": "user", "content": driver.ASKED}


def ask(messages, **fields):
    body = {**exact, **fields.pop("extra_body", {})}
    tokens = fields.pop("max_tokens", driver.TOKENS)
    return client.messages.create(
        model="default", max_tokens=tokens, messages=messages, extra_body=body, **fields
    )


text = ask([user])
with client.messages.stream(
    model="default", max_tokens=driver.TOKENS, messages=[user], extra_body=exact
) as stream:
    pieces = list(stream.text_stream)
    final = stream.get_final_message()

choice = {"type": "tool", "name": "get_weather"}
longer = {"max_tokens": driver.CALL_TOKENS}
called = ask([user], tools=[driver.TOOL], tool_choice=choice, **longer)
(call,) = [block for block in called.content if block.type == "tool_use"]
result = {"type": "tool_result", "tool_use_id": call.id, "content": driver.RESULT}
turns = [
    user,
    {"role": "assistant", "content": [block.model_dump() for block in called.content]},
    {"role": "user", "content": [result]},
]
answer = ask(turns, tools=[driver.TOOL])

format_ = {"type": "json_schema", "schema": driver.SCHEMA}
schema = ask([user], extra_body={"output_config": {"format": format_}}, **longer)

try:
    client.messages.create(model="default", max_tokens=-1, messages=[user])
    error = None
except anthropic.APIStatusError as raised:
    error = {"kind": type(raised).__name__, "status": raised.status_code, "text": str(raised)}

with client.messages.stream(
    model="default",
    max_tokens=driver.LONG_TOKENS,
    messages=[{"role": "user", "content": driver.LONG}],
    extra_body={**exact, "ignore_eos": True},
) as stream:
    for number, _ in enumerate(stream.text_stream):
        if number == 3:
            break
idle = driver.wait_idle()

driver.report(
    anthropic.__version__,
    text=text.content[0].text,
    stream="".join(pieces),
    folded=final.content[0].text,
    call={"name": call.name, "input": call.input, "stop": called.stop_reason},
    answer=answer.content[0].text,
    schema=schema.content[0].text,
    error=error,
    idle=idle,
)
