"""instructor over the Anthropic client: a schema as a forced tool, whole and in parts."""

import importlib.metadata

import anthropic
import driver
import instructor

client = instructor.from_anthropic(
    anthropic.Anthropic(base_url=driver.url(), api_key="none", max_retries=0)
)
asked = {
    "model": "default",
    "max_tokens": driver.CALL_TOKENS,
    "messages": [{"role": "user", "content": driver.ASKED}],
    "response_model": driver.City,
    "max_retries": 0,
    "extra_body": {"temperature": 0},
}
whole = client.messages.create(**asked)
parts = list(client.messages.create_partial(**asked))

driver.report(
    importlib.metadata.version("instructor"),
    schema=whole.model_dump_json(),
    partial=parts[-1].model_dump_json(),
)
