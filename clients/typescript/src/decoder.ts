// What readers of both kinds of streams share.

import type { StreamEvent } from "./events.js";

/** Bytes of a stream in, in any pieces; its events out. */
export interface Decoder {
  /** The events that are whole now. Throws StreamError; then it takes nothing more. */
  feed(piece: Uint8Array): StreamEvent[];
  /** The connection has no more. Throws StreamError if the last event has not come. */
  close(): void;
}

export function isLast(event: StreamEvent): boolean {
  return event.type === "message_stop" || event.type === "error";
}

/** Bytes that wait for more. Grows by doubling, so that many small pieces cost what they are. */
export class Pending {
  private buffer = new Uint8Array(0);
  private length = 0;

  /** All that waits, with the piece behind it; valid until the next call. */
  add(piece: Uint8Array): Uint8Array {
    if (this.length === 0) return piece;
    const length = this.length + piece.length;
    if (length > this.buffer.length) {
      const grown = new Uint8Array(Math.max(2 * this.buffer.length, length));
      grown.set(this.buffer.subarray(0, this.length));
      this.buffer = grown;
    }
    this.buffer.set(piece, this.length);
    this.length = length;
    return this.buffer.subarray(0, length);
  }

  /** Of what `add` returned, keeps what begins at `from`. */
  keep(data: Uint8Array, from: number): void {
    const rest = data.length - from;
    if (data.buffer === this.buffer.buffer) {
      if (from > 0) this.buffer.copyWithin(0, from, data.length);
    } else if (rest > 0) {
      if (rest > this.buffer.length) this.buffer = new Uint8Array(rest);
      this.buffer.set(data.subarray(from));
    }
    this.length = rest;
  }
}
