// The Node half of bench/frames.py: reads answers from memory, a piece per event, by the official
// SDK's stream parser and by the client of clients/typescript; prints microseconds an event, per
// round.
//
// usage: node frames_reader.mjs FOLDER-WITH-THE-SDK FILE ROUNDS REPEATS
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { streamOf } from "../clients/typescript/dist/index.js";

const [folder, file, rounds, repeats] = process.argv.slice(2);
const sdk = pathToFileURL(`${folder}/node_modules/@anthropic-ai/sdk/core/streaming.mjs`);
const { Stream } = await import(sdk.href);
const bytes = (text) => new TextEncoder().encode(text);
const answers = JSON.parse(readFileSync(file, "utf8")).map(({ sse, frames }) => ({
  sse: sse.map(bytes),
  frames: frames.map((hex) => new Uint8Array(Buffer.from(hex, "hex"))),
}));

function responseOf(pieces, type) {
  let at = 0;
  const body = new ReadableStream({
    pull(controller) {
      if (at < pieces.length) controller.enqueue(pieces[at++]);
      else controller.close();
    },
  });
  return new Response(body, { headers: { "content-type": type } });
}

async function count(events) {
  let number = 0;
  for await (const event of events) number += event.type ? 1 : 0;
  return number;
}

const readers = {
  "anthropic: bytes to events": ({ sse }) =>
    count(Stream.fromSSEResponse(responseOf(sse, "text/event-stream"), new AbortController())),
  "frames: bytes to events": ({ frames }) =>
    count(streamOf(responseOf(frames, "application/octet-stream"))),
  "this client, server-sent events": ({ sse }) =>
    count(streamOf(responseOf(sse, "text/event-stream"))),
};
const times = Object.fromEntries(Object.keys(readers).map((name) => [name, []]));
const WARM_ROUNDS = 5; // the compiler's
for (let round = -WARM_ROUNDS; round < Number(rounds); round++) {
  for (const [name, reader] of Object.entries(readers)) {
    const begun = performance.now();
    let events = 0;
    for (let repeat = 0; repeat < Number(repeats); repeat++)
      for (const answer of answers) events += await reader(answer);
    if (round >= 0) times[name].push(((performance.now() - begun) / events) * 1000);
  }
}
console.log(JSON.stringify(times));
