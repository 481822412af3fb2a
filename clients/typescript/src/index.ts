// Streams of Sublimate's Messages API, in Node and in the browser.

export { Client, fold, streamOf } from "./client.js";
export type { ClientOptions, MessageStream, StreamOptions } from "./client.js";
export type { Decoder } from "./decoder.js";
export { ApiError, StreamError } from "./errors.js";
export { eventOf } from "./events.js";
export type {
  ContentBlock,
  ContextManagement,
  Delta,
  Diagnostics,
  Message,
  StopReasonName,
  StreamEvent,
  Usage,
} from "./events.js";
export { FrameDecoder, FRAME_BYTES_MAX, FRAMES_TYPE } from "./frames.js";
export { SseDecoder } from "./sse.js";
