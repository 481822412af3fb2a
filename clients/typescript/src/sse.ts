// Bytes of a stream of server-sent events, from servers that have no frames.

import { isLast, Pending, type Decoder } from "./decoder.js";
import { StreamError } from "./errors.js";
import type { StreamEvent } from "./events.js";

const LINE_BYTES_MAX = 8 << 20;
const NEWLINE = 10;
const CARRIAGE_RETURN = 13;
const DATA = "data:";

/** Reads the data of each event, which names its type too; comments and other fields are skipped. */
export class SseDecoder implements Decoder {
  private readonly pending = new Pending();
  private readonly text = new TextDecoder("utf-8");
  private data: string[] = [];
  private ended = false;

  feed(piece: Uint8Array): StreamEvent[] {
    const bytes = this.pending.add(piece);
    const events: StreamEvent[] = [];
    let at = 0;
    for (let end; (end = bytes.indexOf(NEWLINE, at)) >= 0; at = end + 1) {
      const line = bytes.subarray(
        at,
        bytes[end - 1] === CARRIAGE_RETURN && end > at ? end - 1 : end,
      );
      const event = this.line(this.text.decode(line));
      if (event === undefined || this.ended) continue;
      this.ended = isLast(event);
      events.push(event);
    }
    if (bytes.length - at > LINE_BYTES_MAX) {
      throw new StreamError("A line of the stream is too long.", "too_large");
    }
    this.pending.keep(bytes, at);
    return events;
  }

  close(): void {
    if (!this.ended) throw new StreamError("The stream ended before its last event.", "truncated");
  }

  private line(line: string): StreamEvent | undefined {
    if (line.startsWith(DATA)) this.data.push(line.slice(line[DATA.length] === " " ? 6 : 5));
    if (line !== "" || this.data.length === 0) return undefined;
    const data = this.data.join("\n");
    this.data = [];
    try {
      return JSON.parse(data) as StreamEvent;
    } catch {
      throw new StreamError("The data of an event is no JSON.", "malformed");
    }
  }
}
