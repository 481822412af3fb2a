// The client against a scripted server (SUBLIMATE_URL): frames and server-sent events say the same.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { test } from "node:test";
import { ApiError, Client, fold, streamOf, StreamError } from "../dist/index.js";

const url = process.env.SUBLIMATE_URL;
assert.ok(url, "SUBLIMATE_URL names a server; `make test-typescript` starts one");
const client = new Client({ baseUrl: url });
const TOOLS = ["get", "put"].map((name) => ({
  name,
  description: "d",
  input_schema: { type: "object" },
}));

function request(content, fields = {}) {
  return { model: "tiny", max_tokens: 64, messages: [{ role: "user", content }], ...fields };
}

/** Ids differ from answer to answer, and the second prompt is found in the cache. */
function comparable(message) {
  const { input_tokens, cache_read_input_tokens, ...usage } = message.usage;
  const content = message.content.map(({ id, ...block }) => block);
  return {
    ...message,
    id: "",
    content,
    usage: { ...usage, prompt: input_tokens + cache_read_input_tokens },
  };
}

const CASES = {
  text: ["say hello", {}],
  escapes: ["say utf8", {}],
  nothing: ["say nothing", {}],
  stop_sequence: ["say stop", { stop_sequences: ["STOP"] }],
  max_tokens: ["count", { max_tokens: 40 }],
  tools: ["wombat", { tools: TOOLS, max_tokens: 4000 }],
  thinking: ["ferret", { thinking: { type: "adaptive" }, max_tokens: 400 }],
  diagnostics: ["say hello", { diagnostics: { previous_message_id: "msg_0" } }],
  edits: ["say hello", { context_management: { edits: [{ type: "clear_tool_uses_20250919" }] } }],
};

for (const [name, [content, fields]] of Object.entries(CASES)) {
  test(`${name}: frames, server-sent events and the whole answer say the same`, async () => {
    const frames = await client.stream(request(content, fields));
    const sse = await client.stream(request(content, fields), {
      headers: { accept: "text/event-stream" },
    });
    assert.deepEqual([frames.encoding, sse.encoding], ["frames", "sse"]);
    assert.match(frames.requestId, /^req_/);
    const [framed, told] = [await frames.message(), await sse.message()];
    assert.deepEqual(comparable(framed), comparable(told));
    const whole = await fetch(`${url}/v1/messages`, {
      method: "POST",
      body: JSON.stringify(request(content, fields)),
    });
    const { usage, ...message } = comparable(await whole.json());
    const { usage: streamedUsage, ...streamed } = comparable(framed);
    assert.deepEqual(streamed, message);
    assert.equal(streamedUsage.output_tokens, usage.output_tokens);
  });
}

test("events come one by one, without pings", async () => {
  const types = [];
  let text = "";
  for await (const event of await client.stream(request("count", { max_tokens: 30 }))) {
    if (types.at(-1) !== event.type) types.push(event.type);
    if (event.type === "content_block_delta") text += event.delta.text;
  }
  assert.deepEqual(types, [
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "message_stop",
  ]);
  assert.equal(text, "0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15".slice(0, 30));
});

test("an error before the stream has its status, type and id", async () => {
  await assert.rejects(client.stream(request("say hello", { max_tokens: -1 })), (error) => {
    assert.ok(error instanceof ApiError);
    assert.deepEqual([error.status, error.type], [400, "invalid_request_error"]);
    assert.match(error.message, /max_tokens/);
    return /^req_/.test(error.requestId);
  });
});

test("who leaves the loop early, or aborts, ends the answer at the server", async () => {
  for await (const event of await client.stream(request("count", { max_tokens: 2000 })))
    if (event.type === "content_block_delta") break;
  const stop = new AbortController();
  const stream = await client.stream(request("count", { max_tokens: 2000 }), {
    signal: stop.signal,
  });
  const reading = fold(stream);
  stop.abort();
  await assert.rejects(reading, { name: "AbortError" });
  const metrics = async () => (await fetch(`${url}/metrics`)).text();
  for (let tries = 0; ; tries++) {
    if (/num_requests_running\{[^}]*\} 0\.0/.test(await metrics())) break;
    assert.ok(tries < 200, "both requests are gone");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
});

/** A server that answers everything with these bytes. */
async function answering(type, pieces) {
  const server = createServer((_, response) => {
    response.writeHead(200, { "content-type": type, "request-id": "req_1" });
    for (const piece of pieces) response.write(piece);
    response.end();
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  return { server, client: new Client({ baseUrl: `http://127.0.0.1:${server.address().port}/` }) };
}

test("a server that knows no frames is read all the same", async (context) => {
  const events = [
    { type: "message_start", message: { content: [], usage: {} } },
    { type: "content_block_start", index: 0, content_block: { type: "text", text: "" } },
    { type: "content_block_delta", index: 0, delta: { type: "text_delta", text: "Hi." } },
    { type: "content_block_stop", index: 0 },
    { type: "message_delta", delta: { stop_reason: "end_turn" }, usage: { output_tokens: 2 } },
    { type: "message_stop" },
  ];
  const pieces = events.map((event) => `event: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`);
  const one = await answering("text/event-stream; charset=utf-8", pieces);
  context.after(() => one.server.close());
  const stream = await one.client.stream(request("a"));
  assert.deepEqual([stream.encoding, stream.requestId], ["sse", "req_1"]);
  const message = await stream.message();
  assert.deepEqual(message.content, [{ type: "text", text: "Hi." }]);
  assert.equal(message.stop_reason, "end_turn");
});

test("a cut stream, an error within one, and what is no stream", async (context) => {
  const ping = new Uint8Array([0, 0, 0, 2, 0x3a, 0]);
  const cut = await answering("application/octet-stream", [ping, ping.slice(0, 5)]);
  context.after(() => cut.server.close());
  await assert.rejects(fold(await cut.client.stream({})), {
    name: "StreamError",
    code: "truncated",
  });

  const error =
    'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"m"},"request_id":"r"}\n\n';
  const failing = await answering("text/event-stream", [error]);
  context.after(() => failing.server.close());
  await assert.rejects(fold(await failing.client.stream({})), {
    name: "ApiError",
    type: "overloaded_error",
    requestId: "r",
  });

  const page = await answering("text/html", ["<html>"]);
  context.after(() => page.server.close());
  await assert.rejects(page.client.stream({}), StreamError);
  assert.throws(() => streamOf(new Response(null)), StreamError);
});
