// Ollama's client for JavaScript.
import { Ollama } from "ollama";
import * as driver from "./driver.mjs";

const client = new Ollama({ host: driver.url });
const user = { role: "user", content: driver.ASKED };
const options = { temperature: 0, num_predict: driver.TOKENS };
const asked = { model: "default", messages: [user], options };

const text = await client.chat(asked);
let stream = "";
for await (const part of await client.chat({ ...asked, stream: true })) stream += part.message.content;
const call = { function: { name: "get_weather", arguments: { city: "Bern" } } };
const { name, description, input_schema: parameters } = driver.TOOL;
const answer = await client.chat({
  ...asked,
  messages: [
    user,
    { role: "assistant", content: "", tool_calls: [call] },
    { role: "tool", tool_name: name, content: driver.RESULT },
  ],
  tools: [{ type: "function", function: { name, description, parameters } }],
});
const schema = await client.chat({
  ...asked,
  options: { ...options, num_predict: driver.CALL_TOKENS },
  format: driver.SCHEMA,
});

driver.report(driver.versionOf("ollama"), {
  text: text.message.content,
  stream,
  answer: answer.message.content || JSON.stringify(answer.message.tool_calls),
  schema: schema.message.content,
});
