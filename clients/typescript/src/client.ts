// A streaming request: asks for frames, and takes server-sent events from who has none.

import type { Decoder } from "./decoder.js";
import { ApiError, StreamError } from "./errors.js";
import type { Message, StreamEvent } from "./events.js";
import { FrameDecoder, FRAMES_TYPE } from "./frames.js";
import { SseDecoder } from "./sse.js";

const EVENTS_TYPE = "text/event-stream";

export interface ClientOptions {
  /** As in "http://127.0.0.1:8000". */
  baseUrl: string;
  apiKey?: string;
  headers?: Record<string, string>;
  /** In place of the global one. */
  fetch?: typeof globalThis.fetch;
}

export interface StreamOptions {
  signal?: AbortSignal;
  headers?: Record<string, string>;
}

/** The events of one answer, once, in order. Pings are left out. */
export interface MessageStream extends AsyncIterable<StreamEvent> {
  /** What the server chose. */
  readonly encoding: "frames" | "sse";
  readonly requestId: string | null;
  /** Reads the rest of the stream into the message that it stands for. */
  message(): Promise<Message>;
}

export class Client {
  constructor(private readonly options: ClientOptions) {}

  /**
   * Sends a request of the Messages API; `stream` is set here. Throws ApiError if the answer is an
   * error; the stream throws it too, or StreamError.
   */
  async stream(request: object, options: StreamOptions = {}): Promise<MessageStream> {
    const { baseUrl, apiKey, headers, fetch = globalThis.fetch } = this.options;
    const response = await fetch(`${baseUrl.replace(/\/$/, "")}/v1/messages`, {
      method: "POST",
      headers: {
        accept: `${FRAMES_TYPE}, ${EVENTS_TYPE};q=0.5`,
        "content-type": "application/json",
        "anthropic-version": "2023-06-01",
        ...(apiKey !== undefined && { "x-api-key": apiKey }),
        ...headers,
        ...options.headers,
      },
      body: JSON.stringify({ ...request, stream: true }),
      ...(options.signal && { signal: options.signal }),
    });
    if (!response.ok) throw await errorOf(response);
    return streamOf(response);
  }
}

/** The stream of a response to a request of one's own. Throws StreamError if it is none. */
export function streamOf(response: Response): MessageStream {
  const type = (response.headers.get("content-type") ?? "").split(";")[0]?.trim().toLowerCase();
  const requestId = response.headers.get("request-id");
  if (response.body === null || (type !== FRAMES_TYPE && type !== EVENTS_TYPE)) {
    throw new StreamError(`The answer is no stream but ${type || "nothing"}.`, "malformed");
  }
  const isFramed = type === FRAMES_TYPE;
  const events = read(response.body, isFramed ? new FrameDecoder() : new SseDecoder());
  return {
    encoding: isFramed ? "frames" : "sse",
    requestId,
    [Symbol.asyncIterator]: () => events,
    message: () => fold(events),
  };
}

async function* read(
  body: ReadableStream<Uint8Array>,
  decoder: Decoder,
): AsyncGenerator<StreamEvent, void, undefined> {
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      for (const event of decoder.feed(value)) {
        if (event.type === "error") {
          throw new ApiError(event.error.message, event.error.type, 200, event.request_id);
        }
        if (event.type !== "ping") yield event;
      }
    }
    decoder.close();
  } finally {
    // Who leaves the loop early closes the connection, which ends the answer at the server.
    await reader.cancel().catch(() => undefined);
  }
}

async function errorOf(response: Response): Promise<ApiError> {
  const text = await response.text();
  let error: { type?: string; message?: string } | undefined;
  try {
    error = (JSON.parse(text) as { error?: typeof error }).error;
  } catch {
    // A proxy's page.
  }
  const message = error?.message ?? `The server answered with ${response.status}.`;
  const requestId = response.headers.get("request-id");
  return new ApiError(message, error?.type ?? "api_error", response.status, requestId);
}

/** The message that the events of a stream stand for. */
export async function fold(events: AsyncIterable<StreamEvent>): Promise<Message> {
  let message: Message | undefined;
  let json = "";
  for await (const event of events) {
    if (event.type === "message_start") message = event.message;
    if (message === undefined) throw new StreamError("The beginning is missing.", "malformed");
    if (event.type === "content_block_start") {
      message.content.push(event.content_block);
      json = "";
    } else if (event.type === "content_block_delta") {
      json += append(message, event.delta);
    } else if (event.type === "content_block_stop") {
      const block = message.content.at(-1);
      if (block?.type === "tool_use" && json) block.input = JSON.parse(json) as typeof block.input;
    } else if (event.type === "message_delta") {
      const { usage, delta, context_management: management } = event;
      Object.assign(message.usage, usage);
      Object.assign(message, delta, management && { context_management: management });
    }
  }
  if (message === undefined) throw new StreamError("The stream is empty.", "truncated");
  return message;
}

type DeltaOf = Extract<StreamEvent, { type: "content_block_delta" }>["delta"];

/** Adds to the open block; returns what is of a tool's input, which is JSON only when it is whole. */
function append(message: Message, delta: DeltaOf): string {
  const block = message.content.at(-1);
  if (delta.type === "input_json_delta") return delta.partial_json;
  if (delta.type === "text_delta" && block?.type === "text") block.text += delta.text;
  if (block?.type !== "thinking") return "";
  if (delta.type === "thinking_delta") block.thinking += delta.thinking;
  if (delta.type === "signature_delta") block.signature = delta.signature;
  return "";
}
