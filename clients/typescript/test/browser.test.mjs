// The bundle in a real browser: a page of this test streams from the scripted server (SUBLIMATE_URL)
// over both encodings and posts what it saw.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";

const CHROMIUM = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(
  (path) => existsSync(path),
);
const bundle = readFileSync(new URL("../dist/browser.js", import.meta.url));
const PAGE = `<!doctype html><script type="module">
import { Client } from "/client.js";
const client = new Client({ baseUrl: ${JSON.stringify(process.env.SUBLIMATE_URL)} });
const seen = {};
try {
  for (const accept of ["application/octet-stream", "text/event-stream"]) {
    const body = { model: "tiny", max_tokens: 200, messages: [{ role: "user", content: "count" }] };
    const stream = await client.stream(body, { headers: { accept } });
    const types = new Set();
    let text = "";
    for await (const event of stream) {
      types.add(event.type);
      if (event.type === "content_block_delta") text += event.delta.text;
    }
    seen[stream.encoding] = { text, types: [...types] };
  }
} catch (error) {
  seen.error = String(error);
}
await fetch("/seen", { method: "POST", body: JSON.stringify(seen) });
</script>`;

test(
  "Chromium reads frames and falls back",
  { skip: !CHROMIUM && "no Chromium is installed" },
  async (context) => {
    const { promise, resolve } = Promise.withResolvers?.() ?? deferred();
    const server = createServer(async (request, response) => {
      if (request.url === "/seen") {
        const pieces = [];
        for await (const piece of request) pieces.push(piece);
        resolve(JSON.parse(Buffer.concat(pieces).toString()));
      }
      const isScript = request.url === "/client.js";
      response.setHeader("content-type", isScript ? "text/javascript" : "text/html");
      response.end(isScript ? bundle : PAGE);
    });
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    const profile = mkdtempSync(join(tmpdir(), "chromium-"));
    const flags = [
      "--headless",
      "--no-sandbox",
      "--disable-gpu",
      "--no-first-run",
      "--disable-dev-shm-usage",
    ];
    const page = `http://127.0.0.1:${server.address().port}/`;
    const browser = spawn(CHROMIUM, [...flags, `--user-data-dir=${profile}`, page], {
      stdio: "ignore",
    });
    context.after(async () => {
      browser.kill("SIGKILL");
      if (browser.exitCode === null && browser.signalCode === null) await once(browser, "exit");
      server.closeAllConnections();
      server.close();
      rmSync(profile, { recursive: true, force: true, maxRetries: 10 });
    });
    const seen = await promise;
    assert.equal(seen.error, undefined);
    assert.deepEqual(seen.frames, seen.sse);
    assert.ok(seen.frames.text.startsWith("0 1 2 3 ") && seen.frames.text.length === 200);
  },
);

function deferred() {
  let resolve;
  const promise = new Promise((settle) => (resolve = settle));
  return { promise, resolve };
}
