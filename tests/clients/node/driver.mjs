// What the drivers of all Node clients share: the same questions, and a report in JSON.
// defines: url, ASKED, LONG, RESULT, TOKENS, CALL_TOKENS, LONG_TOKENS, SCHEMA, TOOL, versionOf, waitIdle, failure, report
import { readFileSync } from "node:fs";

export const url = process.argv[2];
export const ASKED = "Name three rivers of Europe.";
export const LONG = "Tell me everything about the history of Rome, in detail.";
export const RESULT = "It rains in Bern, 7 degrees.";
export const TOKENS = 24;
export const CALL_TOKENS = 64;
export const LONG_TOKENS = 1800;
const IDLE_MS = 5000;

export const SCHEMA = {
  type: "object",
  properties: { city: { enum: ["Bern", "Rome"] }, count: { type: "integer" } },
  required: ["city", "count"],
  additionalProperties: false,
};
export const TOOL = {
  name: "get_weather",
  description: "The weather of a city.",
  input_schema: {
    type: "object",
    properties: { city: { enum: ["Bern", "Rome"] } },
    required: ["city"],
    additionalProperties: false,
  },
};

/** Of an installed package. */
export function versionOf(name) {
  const path = new URL(`./node_modules/${name}/package.json`, import.meta.url);
  return JSON.parse(readFileSync(path, "utf8")).version;
}

/** Nothing runs at the server any more, while this process and its connections live. */
export async function waitIdle() {
  const deadline = Date.now() + IDLE_MS;
  while (Date.now() < deadline) {
    const text = await (await fetch(`${url}/metrics`)).text();
    if (/^sublimate_num_requests_running\{[^}]*\} 0(\.0)?$/m.test(text)) return true;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  return false;
}

/** What a client makes of a request that the server refuses. */
export async function failure(action) {
  try {
    await action();
    return null;
  } catch (raised) {
    const status = raised.status ?? raised.statusCode ?? 0;
    return { kind: raised.constructor.name, status, text: raised.message };
  }
}

/** The one line that is read. */
export function report(version, found) {
  console.log(JSON.stringify({ version, ...found }));
}
