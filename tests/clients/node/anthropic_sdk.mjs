// The official Anthropic client for TypeScript: the package's name is the second argument.
import * as driver from "./driver.mjs";

const name = process.argv[3];
const { default: Anthropic } = await import(name);
const version = driver.versionOf(name);

const client = new Anthropic({ baseURL: driver.url, apiKey: "none", maxRetries: 0 });
const user = { role: "user", content: driver.ASKED };
const asked = { model: "default", max_tokens: driver.TOKENS, temperature: 0 };

const text = await client.messages.create({ ...asked, messages: [user] });
let stream = "";
const streaming = client.messages.stream({ ...asked, messages: [user] });
streaming.on("text", (piece) => (stream += piece));
const final = await streaming.finalMessage();

const tools = [driver.TOOL];
const choice = { type: "tool", name: "get_weather" };
const called = await client.messages.create({
  ...asked, max_tokens: driver.CALL_TOKENS, messages: [user], tools, tool_choice: choice,
});
const call = called.content.find((block) => block.type === "tool_use");
const result = { type: "tool_result", tool_use_id: call.id, content: driver.RESULT };
const answer = await client.messages.create({
  ...asked,
  tools,
  messages: [
    user,
    { role: "assistant", content: called.content },
    { role: "user", content: [result] },
  ],
});
const schema = await client.messages.create({
  ...asked,
  max_tokens: driver.CALL_TOKENS,
  messages: [user],
  output_config: { format: { type: "json_schema", schema: driver.SCHEMA } },
});
const error = await driver.failure(() =>
  client.messages.create({ ...asked, max_tokens: -1, messages: [user] }),
);

const long = client.messages.stream({
  ...asked,
  ignore_eos: true,
  max_tokens: driver.LONG_TOKENS,
  messages: [{ role: "user", content: driver.LONG }],
});
let events = 0;
try {
  for await (const _ of long) if (++events === 8) long.abort();
} catch (raised) {
  if (raised.constructor.name !== "APIUserAbortError") throw raised;
}
const idle = await driver.waitIdle();

driver.report(version, {
  text: text.content[0].text,
  stream,
  folded: final.content[0].text,
  call: { name: call.name, input: call.input, stop: called.stop_reason },
  answer: answer.content[0].text,
  schema: schema.content[0].text,
  error,
  idle,
});
