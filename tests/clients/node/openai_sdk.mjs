// The official OpenAI client for TypeScript: chat completions, and one answer of the Responses API.
import OpenAI from "openai";
import * as driver from "./driver.mjs";

const version = driver.versionOf("openai");
const client = new OpenAI({ baseURL: `${driver.url}/v1`, apiKey: "none", maxRetries: 0 });
const chat = client.chat.completions;
const user = { role: "user", content: driver.ASKED };
const asked = { model: "default", max_completion_tokens: driver.TOKENS, temperature: 0 };
const { name, description, input_schema: parameters } = driver.TOOL;
const tools = [{ type: "function", function: { name, description, parameters } }];

const text = await chat.create({ ...asked, messages: [user] });
let stream = "";
for await (const chunk of await chat.create({ ...asked, messages: [user], stream: true })) {
  stream += chunk.choices[0]?.delta.content ?? "";
}
const folded = await client.responses.create({
  model: "default", input: [user], max_output_tokens: driver.TOKENS, temperature: 0,
});

const choice = { type: "function", function: { name } };
const longer = { ...asked, max_completion_tokens: driver.CALL_TOKENS, messages: [user] };
const called = await chat.create({ ...longer, tools, tool_choice: choice });
const { message, finish_reason: stop } = called.choices[0];
const [call] = message.tool_calls;
const answer = await chat.create({
  ...asked,
  messages: [user, message, { role: "tool", tool_call_id: call.id, content: driver.RESULT }],
  tools,
  tool_choice: "none",
});
const schema = await chat.create({
  ...longer,
  response_format: {
    type: "json_schema", json_schema: { name: "city", strict: true, schema: driver.SCHEMA },
  },
});
const error = await driver.failure(() =>
  chat.create({ ...asked, max_completion_tokens: -5, messages: [user] }),
);

const long = await chat.create({
  ...asked,
  ignore_eos: true,
  max_completion_tokens: driver.LONG_TOKENS,
  messages: [{ role: "user", content: driver.LONG }],
  stream: true,
});
let events = 0;
for await (const _ of long) if (++events === 4) break;
const idle = await driver.waitIdle();

driver.report(version, {
  text: text.choices[0].message.content,
  stream,
  folded: folded.output_text,
  call: { name: call.function.name, input: JSON.parse(call.function.arguments), stop },
  answer: answer.choices[0].message.content,
  schema: schema.choices[0].message.content,
  error,
  idle,
});
