// Vercel's AI SDK with its providers for the Messages API and for OpenAI's, which the third argument
// names: anthropic, responses (the default of the latter), chat or completion.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateObject, generateText, jsonSchema, streamText, tool } from "ai";
import * as driver from "./driver.mjs";

const api = process.argv[3];
const version = driver.versionOf(`@ai-sdk/${api === "anthropic" ? "anthropic" : "openai"}`);
const settings = { baseURL: `${driver.url}/v1`, apiKey: "none" };
const openai = createOpenAI(settings);
const model = {
  anthropic: () => createAnthropic(settings)("default"),
  responses: () => openai("default"),
  chat: () => openai.chat("default"),
  completion: () => openai.completion("default"),
}[api]();
const asked = { model, maxOutputTokens: driver.TOKENS, temperature: 0, maxRetries: 0 };
const user = { role: "user", content: driver.ASKED };

const text = await generateText({ ...asked, prompt: driver.ASKED });
const streaming = streamText({ ...asked, prompt: driver.ASKED });
let stream = "";
for await (const piece of streaming.textStream) stream += piece;

if (api === "completion") {
  driver.report(version, { text: text.text, stream });
  process.exit(0);
}

const tools = {
  get_weather: tool({
    description: driver.TOOL.description,
    inputSchema: jsonSchema(driver.TOOL.input_schema),
  }),
};
const called = await generateText({
  ...asked,
  maxOutputTokens: driver.CALL_TOKENS,
  messages: [user],
  tools,
  toolChoice: { type: "tool", toolName: "get_weather" },
});
const [call] = called.toolCalls;
const result = {
  type: "tool-result",
  toolCallId: call.toolCallId,
  toolName: call.toolName,
  output: { type: "text", value: driver.RESULT },
};
const answer = await generateText({
  ...asked,
  tools,
  messages: [user, ...called.response.messages, { role: "tool", content: [result] }],
});
const schema = await generateObject({
  ...asked,
  maxOutputTokens: driver.CALL_TOKENS,
  prompt: driver.ASKED,
  schema: jsonSchema(driver.SCHEMA),
});
const error = await driver.failure(() =>
  generateText({ ...asked, temperature: -5, topK: -5, prompt: driver.ASKED }),
);

const controller = new AbortController();
const long = streamText({
  ...asked,
  prompt: driver.LONG,
  maxOutputTokens: driver.LONG_TOKENS,
  abortSignal: controller.signal,
});
let pieces = 0;
for await (const _ of long.fullStream) if (++pieces === 6) controller.abort();
const idle = await driver.waitIdle();

driver.report(version, {
  text: text.text,
  stream,
  folded: await streaming.text,
  call: { name: call.toolName, input: call.input, stop: called.finishReason },
  answer: answer.text,
  schema: JSON.stringify(schema.object),
  error,
  idle,
});
