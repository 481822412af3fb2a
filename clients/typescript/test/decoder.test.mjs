// The decoders by themselves: any pieces, limits, and every way in which a stream can be wrong.
import assert from "node:assert/strict";
import { test } from "node:test";
import { create, toBinary } from "@bufbuild/protobuf";
import { FrameDecoder, FRAME_BYTES_MAX, SseDecoder, StreamError } from "../dist/index.js";
import { StreamEventSchema } from "../dist/gen/sublimate/v1/frames_pb.js";

function framed(bytes) {
  const frame = new Uint8Array(4 + bytes.length);
  new DataView(frame.buffer).setUint32(0, bytes.length);
  frame.set(bytes, 4);
  return frame;
}

function frame(kind, value = {}) {
  const event = create(StreamEventSchema, { event: { case: kind, value } });
  return framed(toBinary(StreamEventSchema, event));
}

function joined(...parts) {
  return new Uint8Array(parts.flatMap((part) => [...part]));
}

const delta = (text, index = 0) =>
  frame("contentBlockDelta", { index, delta: { case: "text", value: text } });
const STOP = frame("messageStop");
const PING = frame("ping");

function thrown(code, action) {
  assert.throws(action, (error) => error instanceof StreamError && error.code === code);
}

test("events come out whole wherever the bytes are cut", () => {
  const data = joined(PING, delta("a 😸"), delta("x".repeat(300), 200), delta("é"), STOP);
  const expected = [
    { type: "ping" },
    { type: "content_block_delta", index: 0, delta: { type: "text_delta", text: "a 😸" } },
    {
      type: "content_block_delta",
      index: 200,
      delta: { type: "text_delta", text: "x".repeat(300) },
    },
    { type: "content_block_delta", index: 0, delta: { type: "text_delta", text: "é" } },
    { type: "message_stop" },
  ];
  for (let size = 1; size <= data.length; size++) {
    const decoder = new FrameDecoder();
    const events = [];
    for (let at = 0; at < data.length; at += size)
      events.push(...decoder.feed(data.slice(at, at + size)));
    decoder.close();
    assert.deepEqual(events, expected, `pieces of ${size}`);
  }
});

test("a piece that is used again by its owner has been copied", () => {
  const decoder = new FrameDecoder();
  const piece = delta("ab");
  const first = piece.slice(0, 9);
  assert.deepEqual(decoder.feed(first), []);
  first.fill(0);
  const [event] = decoder.feed(piece.slice(9));
  assert.equal(event.delta.text, "ab");
});

test("what is wrong is a typed error", () => {
  const bytes = (...values) => new Uint8Array(values);
  const malformed = [
    framed(bytes(0x3a)),
    framed(bytes(0x3a, 5, 1)),
    framed(bytes(0x1a, 3, 0x12, 1, 0xff)), // no UTF-8
    framed(bytes(0x1a, 2, 0x08, 1)), // a delta without content
    framed(bytes(0x0a, 0)), // a message_start without its message
    frame("messageDelta", { stopReason: 77, usage: {} }),
    frame("contentBlockStart", {
      contentBlock: { block: { case: "toolUse", value: { input: "{" } } },
    }),
    frame("contentBlockStart", {
      contentBlock: { block: { case: "toolUse", value: { input: "[1]" } } },
    }),
    joined(STOP, PING),
    joined(STOP, bytes(0)),
  ];
  for (const data of malformed) thrown("malformed", () => new FrameDecoder().feed(data));
  thrown("too_large", () => new FrameDecoder().feed(bytes(0xff, 0xff, 0xff, 0xff)));
  const over = new Uint8Array(4);
  new DataView(over.buffer).setUint32(0, FRAME_BYTES_MAX + 1);
  thrown("too_large", () => new FrameDecoder().feed(over));
  thrown("too_large", () => new FrameDecoder(4).feed(delta("ab")));
});

test("a cut stream is told at its end", () => {
  const data = joined(PING, STOP);
  for (let size = 0; size < data.length; size++) {
    const decoder = new FrameDecoder();
    decoder.feed(data.slice(0, size));
    thrown("truncated", () => decoder.close());
  }
});

test("kinds of a later version are left out", () => {
  const later = framed(new Uint8Array([0xfa, 0x06, 2, 8, 1]));
  const decoder = new FrameDecoder();
  const events = decoder.feed(joined(framed(new Uint8Array(0)), later, PING, later, STOP));
  assert.deepEqual(events, [{ type: "ping" }, { type: "message_stop" }]);
});

test("server-sent events: pieces, comments, line ends and errors", () => {
  const text =
    ': hello\r\nevent: ping\r\ndata: {"type": "ping"}\r\n\r\n' +
    'event: content_block_delta\ndata:{"type":"content_block_delta","index":0,\n' +
    'data: "delta":{"type":"text_delta","text":"é😸"}}\n\n' +
    'event: message_stop\ndata: {"type":"message_stop"}\n\n';
  const data = new TextEncoder().encode(text);
  for (let size = 1; size <= data.length; size++) {
    const decoder = new SseDecoder();
    const events = [];
    for (let at = 0; at < data.length; at += size)
      events.push(...decoder.feed(data.slice(at, at + size)));
    decoder.close();
    assert.deepEqual(
      events.map((event) => event.type),
      ["ping", "content_block_delta", "message_stop"],
    );
    assert.equal(events[1].delta.text, "é😸");
  }
  thrown("malformed", () => new SseDecoder().feed(new TextEncoder().encode("data: {\n\n")));
  thrown("truncated", () => new SseDecoder().close());
});

test("any bytes give events or a typed error, the same wherever they are cut", () => {
  let state = 1;
  const below = (limit) => (state = (Math.imul(state, 1103515245) + 12345) >>> 0) % limit;
  const frames = [PING, STOP, delta("a 😸"), frame("messageDelta", { stopReason: 1, usage: {} })];
  const outcome = (data, size) => {
    const decoder = new FrameDecoder();
    const events = [];
    try {
      for (let at = 0; at < data.length; at += size)
        events.push(...decoder.feed(data.slice(at, at + size)));
      decoder.close();
    } catch (error) {
      assert.ok(error instanceof StreamError, String(error));
      return error.code;
    }
    return events;
  };
  const seen = new Set();
  for (let round = 0; round < 3000; round++) {
    const data = joined(...Array.from({ length: 1 + below(3) }, () => frames[below(4)]));
    for (let left = below(3); left > 0; left--) data[below(data.length)] = below(256);
    const whole = outcome(data, data.length);
    assert.deepEqual(outcome(data, 1 + below(9)), whole);
    seen.add(typeof whole === "string" ? whole : "events");
  }
  assert.deepEqual([...seen].sort(), ["events", "malformed", "too_large", "truncated"]);
});
