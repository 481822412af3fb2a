// Bytes of a stream in frames: 4 bytes of length, then a StreamEvent (proto/sublimate/v1).

import { fromBinary } from "@bufbuild/protobuf";
import { StreamError } from "./errors.js";
import { eventOf, type StreamEvent } from "./events.js";
import { StreamEventSchema } from "./gen/sublimate/v1/frames_pb.js";
import { isLast, Pending, type Decoder } from "./decoder.js";

export const FRAMES_TYPE = "application/octet-stream";
/** Of one frame, less its length: FRAME_BYTES_MAX in core/limits.h. */
export const FRAME_BYTES_MAX = 1 << 20;
const LENGTH_BYTES = 4;

/** Bytes in, in any pieces; events out. Holds one unfinished frame. */
export class FrameDecoder implements Decoder {
  private readonly pending = new Pending();
  private ended = false;

  constructor(private readonly limitBytes = FRAME_BYTES_MAX) {}

  feed(piece: Uint8Array): StreamEvent[] {
    const data = this.pending.add(piece);
    const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    const events: StreamEvent[] = [];
    let at = 0;
    while (data.length - at >= LENGTH_BYTES && !this.ended) {
      const length = view.getUint32(at);
      if (length > this.limitBytes) {
        throw new StreamError(
          `A frame of ${length} bytes; ${this.limitBytes} is the limit.`,
          "too_large",
        );
      }
      const begin = at + LENGTH_BYTES;
      if (data.length - begin < length) break;
      at = begin + length;
      const event = decode(data.subarray(begin, at));
      if (event === undefined) continue;
      this.ended = isLast(event);
      events.push(event);
    }
    if (this.ended && at < data.length) {
      throw new StreamError("Bytes follow the last event of the stream.", "malformed");
    }
    this.pending.keep(data, at);
    return events;
  }

  close(): void {
    if (!this.ended) {
      throw new StreamError("The stream of frames ended before its last event.", "truncated");
    }
  }
}

function decode(data: Uint8Array): StreamEvent | undefined {
  let frame;
  try {
    frame = fromBinary(StreamEventSchema, data, { readUnknownFields: false });
  } catch {
    throw new StreamError("The bytes of a frame are no event.", "malformed");
  }
  return eventOf(frame);
}
